package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/recurring"
)

// entry is one as the book has it.
func (w *world) entry(name string) recurring.Entry {
	w.t.Helper()
	e, err := recurring.Of(w.client).Entry(w.t.Context(), name)
	must(w.t, err)
	return e
}

// The buttons of an entry ask first, and do it then.
func TestRecurringButtons(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	expect(t, w.post("/confirm", "do", "pause recurring", "entry", "report", "back", "/recurring"), 200, "Pause report (at 06:00, Monday to Friday, Europe/Berlin)?", `name="entry" value="report"`)
	if w.entry("report").Paused {
		t.Error("got it paused by the question alone")
	}
	expect(t, w.follow(w.post("/do", "do", "pause recurring", "entry", "report", "back", "/recurring")), 200, "<b>report</b> is paused.", `href="./recurring"`)
	if !w.entry("report").Paused {
		t.Error("got it not paused")
	}
	expect(t, w.get("/recurring"), 200, `<span class="tag warn">paused</span>`, "Resume…")
	expect(t, w.follow(w.post("/do", "do", "resume recurring", "entry", "report")), 200, "goes on with its next tick")
	expect(t, w.follow(w.post("/do", "do", "run recurring", "entry", "sync")), 200, "<b>sync</b> was pushed")
	expect(t, w.get("/queues/mail/jobs"), 200, ">sync</a>")
	expect(t, w.post("/do", "do", "remove recurring", "entry", "report"), 200, "It did not go through", "it comes from the file of a node")
	expect(t, w.post("/confirm", "do", "remove recurring", "entry", "sync"), 200, "Remove sync", "This cannot be undone")
	expect(t, w.follow(w.post("/do", "do", "remove recurring", "entry", "sync", "back", "/recurring/sync")), 200, "<b>sync</b> is removed", `href="./recurring"`)
	expect(t, w.get("/recurring/sync"), 404, "there is no recurring entry with this name")
	expect(t, w.post("/confirm", "do", "pause recurring", "entry", "nobody"), 404, "there is no recurring entry with this name")
	expect(t, w.post("/confirm", "do", "pause recurring", "entry", "<b>"), 400, "use letters")
	lines, _, err := changes.In(w.client.DB()).Read(t.Context(), changes.Query{})
	must(t, err)
	if len(lines) != 4 || lines[0].Action != "remove recurring" || lines[0].Target != "sync" {
		t.Errorf("got %+v, want what was done written down, and not what was refused", lines)
	}
}

// What a form says becomes an entry, or is shown again with why not.
func TestRecurringForms(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	answer := w.post("/recurring", "name", "often", "every", "30s", "offset", "5s", "queue", "orders", "payload", `{"at":"{tick}"}`, "missed", "none")
	if got := answer.Header().Get("Location"); got != "/recurring/often" {
		t.Fatalf("got %d and %q, want the page of the entry: %s", answer.Code, got, answer.Body)
	}
	expect(t, w.follow(answer), 200, "every 30s &#43; 5s", "<dd>none</dd>")
	if e := w.entry("often"); e.ID != "often" || string(e.Payload) != `{"at":"{tick}"}` || e.Spec.Missed != recurring.None {
		t.Errorf("got %+v", e)
	}
	for name, form := range map[string][]string{
		"409 there is a recurring entry": {"name", "often", "every", "1s", "queue", "orders"},
		"400 never comes":                {"name", "x", "cron", "0 0 31 2 *", "queue", "orders"},
		"400 is not a duration":          {"name", "x", "every", "now & then", "queue", "orders"},
		"400 want JSON":                  {"name", "x", "every", "1s", "queue", "orders", "payload", "</textarea><b>"},
		"404 unknown queue":              {"name", "x", "every", "1s", "queue", "nowhere"},
		"400 want cron, as in":           {"name", "x", "queue", "orders"},
		"400 use letters":                {"name", "a b", "every", "1s", "queue", "orders"},
		"400 want a name of the time zo": {"name", "x", "cron", "@daily", "zone", "Berlin", "queue", "orders"},
	} {
		status := map[byte]int{'9': 409, '0': 400, '4': 404}[name[2]]
		expect(t, w.post("/recurring", form...), status, name[4:], "Nothing was changed.", "<h1>Recurring</h1>")
	}
	if page := w.post("/recurring", "name", "x", "every", "1s", "queue", "orders", "payload", "</textarea><b>").Body.String(); !strings.Contains(page, "&lt;/textarea&gt;&lt;b&gt;") {
		t.Errorf("got %s, want what was filled in shown again", page)
	}
	expect(t, w.follow(w.post("/recurring/sync", "cron", "@hourly", "zone", "Asia/Kathmandu", "queue", "orders", "id", "x", "missed", "all")), 200, "each hour, Asia/Kathmandu")
	if e := w.entry("sync"); e.Every != 0 || e.Jitter != 0 || e.ID != "x" || e.Header["tag"] != "vip" || e.Backlog != 100 {
		t.Errorf("got %+v, want what the form says, and the header it had", e)
	}
	expect(t, w.post("/recurring/sync", "every", "1s", "jitter", "1s", "queue", "orders"), 400, "jitter 1s: want 0 or more", "<h1>sync</h1>")
	expect(t, w.follow(w.post("/recurring/report", "cron", "@daily", "queue", "mail")), 200, "edited at run time", "Reset…")
	expect(t, w.follow(w.post("/do", "do", "reset recurring", "entry", "report")), 200, "is as its file says")
	expect(t, w.post("/recurring/nobody", "every", "1s", "queue", "orders"), 404, "there is no recurring entry with this name")
	if e := w.entry("report"); e.Edited || time.Until(*e.Next) < 0 {
		t.Errorf("got %+v, want it as its file says", e)
	}
}
