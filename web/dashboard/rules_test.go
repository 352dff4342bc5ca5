package dashboard

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
)

// TestChangeRules checks that the form sets a value, says what is wrong with one, and is refused if somebody else was
// faster. A value can be unset again. Pages show values with their words quoted.
func TestChangeRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	const at = "/queues/orders/rules"
	set := func(revision string, fields ...string) []string {
		return append([]string{"revision", revision}, fields...)
	}
	sent := w.post(at, set("0", "rule", "batch_size", "value", "10", "for", "2h", "why", "a <b>sale</b>")...)
	if sent.Code != http.StatusSeeOther || sent.Header().Get("Location") != at {
		t.Fatalf("got %d to %s, want 303 to the page; %s", sent.Code, sent.Header().Get("Location"), sent.Body)
	}
	expect(t, w.get(at), 200, `<code>10</code>`, `<span class="tag warn">run time</span> by <bdi>anyone</bdi>`, "a &lt;b&gt;sale&lt;/b&gt;", "<code>3</code>", `aria-label="Unset batch_size"`)
	for why, c := range map[string]struct {
		status int
		fields []string
	}{
		"want a whole number, 1 to 1000, got 0":     {400, set("1", "rule", "batch_size", "value", "0", "why", "typo")},
		"does not change at run time":               {400, set("1", "rule", "shards", "value", "8")},
		"is no value":                               {400, set("1", "rule", "batch_size", "value", "{")},
		"must be a duration of more than 0":         {400, set("1", "rule", "batch_size", "value", "1", "for", "soon")},
		"they are at revision 1, not 0":             {412, set("0", "rule", "batch_size", "value", "1")},
		"revision: &#34;x&#34; is no revision":      {400, set("x", "rule", "batch_size", "value", "1")},
		"unknown rule &#34;batchsize&#34;, did you": {400, set("1", "rule", "batchsize", "value", "1")},
	} {
		expect(t, w.post(at, c.fields...), c.status, why)
	}
	expect(t, w.post(at, set("1", "rule", "prefetch", "value", "0", "why", "typo")...), 400, "<h2 id=\"set\">Change a rule</h2>", "Nothing was changed.", "<option selected>prefetch</option>", `value="typo"`)
	if page := w.post(at, set("1", "rule", "prefetch", "value", "0")...).Body.String(); strings.Index(page, "Nothing was changed.") < strings.Index(page, "Change a rule") || strings.Count(page, "Nothing was changed.") != 1 {
		t.Error("what was wrong with the form is not said beside it")
	}
	if sent := w.post(at, set("1", "unset", "batch_size")...); sent.Code != http.StatusSeeOther {
		t.Errorf("unset: got %d; %s", sent.Code, sent.Body)
	}
	if page := w.get(at).Body.String(); strings.Contains(page, "Unset batch_size") {
		t.Error("what was unset can be unset again")
	}
	expect(t, w.get("/changes?queue=orders"), 200, `<th scope="row">rules</th>`, `<code>{batch_size: 3}</code> → <code>{batch_size: 10,`, "a &lt;b&gt;sale&lt;/b&gt;")
}

// TestTrack checks that a job's page starts and ends its tracking, and shows what people did to the job.
func TestTrack(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	const page = "/queues/orders/job?id=f1"
	for _, c := range []struct {
		undo, then string
	}{{"", "Track no longer"}, {"1", "<button>Track</button>"}} {
		sent := w.post("/queues/orders/track", "key", keyOf("f1"), "undo", c.undo)
		if sent.Code != http.StatusSeeOther {
			t.Fatalf("got %d; %s", sent.Code, sent.Body)
		}
		expect(t, w.get(page), 200, c.then)
	}
	expect(t, w.get(page), 200, "Changes by people", `<th scope="row">untrack</th>`, `<th scope="row">track</th>`)
	w.post("/do", "do", "run-now", "queue", "orders", "key", keyOf("f1"))
	expect(t, w.get(page), 200, `<th scope="row">run-now</th>`)
	expect(t, w.post("/queues/orders/track", "key", keyOf("\xff")), 400, "not UTF-8")
	expect(t, w.post("/queues/nowhere/track", "key", keyOf("f1")), 404)
}

// TestBars checks that the parts of a run's time are side by side and fill its line. A run with an unknown beginning
// has none.
func TestBars(t *testing.T) {
	t.Parallel()
	at := time.Unix(1763600000, 0)
	var r runLine
	r.Due, r.Popped, r.Ended = at, at.Add(time.Second), at.Add(4*time.Second)
	if r.Bars() != nil {
		t.Errorf("no beginning: got %v", r.Bars())
	}
	r.Began, r.Took = at.Add(2*time.Second), 2*time.Second
	want := []bar{{"due", "0.00", "25.00"}, {"popped", "25.00", "25.00"}, {"ran", "50.00", "50.00"}}
	for i, got := range r.Bars() {
		if got != want[i] {
			t.Errorf("got %v, want %v", got, want[i])
		}
	}
	r.Due = at.Add(time.Hour) // clocks
	for _, b := range r.Bars() {
		if strings.HasPrefix(b.Width, "-") || strings.HasPrefix(b.From, "-") {
			t.Errorf("a bar goes backwards: %v", b)
		}
	}
}

// TestHold checks that the page of an id holds the id, and the page of rules a prefix. The same pages end the holds,
// and name what is wrong.
func TestHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	job, holds := "/queues/orders/job?id=f1", "/queues/orders/rules"
	expect(t, w.get(job), 200, "<button>Hold</button>")
	expect(t, w.get(holds), 200, "Nothing is held.")
	for _, c := range []struct {
		form []string
		to   string
	}{
		{[]string{"key", keyOf("f1"), "for", "1h", "why", "<b>x</b>"}, "/queues/orders/job?"},
		{[]string{"prefix", "acme:", "back", "rules"}, "/queues/orders/rules#holds"},
	} {
		if sent := w.post("/queues/orders/hold", c.form...); sent.Code != 303 || !strings.HasPrefix(sent.Header().Get("Location"), c.to) {
			t.Fatalf("%q: got %d to %q, want 303 to %q", c.form, sent.Code, sent.Header().Get("Location"), c.to)
		}
	}
	expect(t, w.get(job), 200, "Hold no longer", `<th scope="row">hold</th>`)
	expect(t, w.get(holds), 200, `<th scope="row" class="break"><span class="id">f1<`, `<span class="soft">ids that begin with</span> <span class="id">acme:<`, "&lt;b&gt;x&lt;/b&gt;", "Undo the hold of ids that begin with acme:")
	for _, form := range [][]string{{"key", keyOf("f1"), "undo", "1"}, {"prefix", "acme:", "undo", "1", "back", "rules"}} {
		if sent := w.post("/queues/orders/hold", form...); sent.Code != 303 {
			t.Errorf("%q: got %d, want 303", form, sent.Code)
		}
	}
	expect(t, w.get(holds), 200, "Nothing is held.")
	expect(t, w.get("/queues/orders/jobs?state=held"), 200, "No job waits here.")
	expect(t, w.post("/queues/orders/hold", "prefix", "a", "for", "soon"), 400, "must be a duration")
	expect(t, w.post("/queues/orders/hold", "key", keyOf("\xff")), 400, "not UTF-8")
	expect(t, w.post("/queues/orders/hold", "key", keyOf("f1"), "prefix", "acme:"), 400, "there must be an id or a prefix, not both")
	expect(t, w.post("/queues/orders/hold", "id", "f1", "prefix", "acme:", "undo", "1"), 400, "there must be an id or a prefix, not both")
	expect(t, w.get(holds), 200, "Nothing is held.")
	expect(t, w.post("/queues/nowhere/hold", "prefix", "a"), 404)
}

// TestCancel checks that the page of an id in flight ends its run. The page of an idle id says that it does not run.
func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	expect(t, w.get("/queues/orders/job?id=w1"), 200, "<summary>End its run</summary>", "<option>hold</option>")
	if page := w.get("/queues/orders/job?id=f1").Body.String(); strings.Contains(page, "End its run") {
		t.Error("an id that is not in flight has the form")
	}
	if sent := w.post("/queues/orders/cancel", "key", keyOf("w1"), "then", "bury", "why", "it hangs"); sent.Code != 303 {
		t.Errorf("got %d, want 303", sent.Code)
	}
	expect(t, w.get("/queues/orders/job?id=w1"), 200, `<th scope="row">cancel</th>`, "it hangs")
	expect(t, w.post("/queues/orders/cancel", "key", keyOf("f1"), "then", "retry"), 409, "not running")
	expect(t, w.post("/queues/orders/cancel", "key", keyOf("w1"), "then", "kill"), 400, "must be retry, hold, bury or delete")
	expect(t, w.post("/queues/nowhere/cancel", "key", keyOf("w1")), 404)
}

// The list of changes shows those by people, and apart from them those by the cluster itself.
func TestChangesByPeopleAndByTheCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	log := changes.In(w.client.DB())
	must(t, log.Add(t.Context(), changes.Line{Who: changes.Who{Role: "admin", Name: "ann"}, Action: "pause", Queue: "orders"}))
	for range 2 * shownChanges { // they leave room for those of people
		must(t, log.Add(t.Context(), changes.Line{Who: changes.Itself("n1"), Action: "leader", Target: "n1"}))
	}
	people, cluster := w.get("/changes"), w.get("/changes?by=cluster")
	expect(t, people, 200, `<th scope="row">pause</th>`, "ann (admin)", `href="./changes?by=cluster"`, `aria-current="page">By people`)
	expect(t, cluster, 200, `<th scope="row">leader</th>`, `aria-current="page">By the cluster`)
	if strings.Contains(people.Body.String(), "leader</th>") || strings.Contains(cluster.Body.String(), "pause</th>") {
		t.Error("got changes of both kinds on a page, want each on its own")
	}
	expect(t, w.get("/changes?by=nobody"), 400, "must be people or cluster")
}
