package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/web/actions"
)

// stateOf is where an id is, "" if it is nowhere.
func (w *world) stateOf(id string) browse.State {
	w.t.Helper()
	found, ok, err := browse.Of(w.orders).Job(w.t.Context(), id)
	must(w.t, err)
	if !ok {
		return ""
	}
	return found.State
}

// follow goes to the page that an action leads to.
func (w *world) follow(answer *httptest.ResponseRecorder) *httptest.ResponseRecorder {
	w.t.Helper()
	if answer.Code != http.StatusSeeOther {
		w.t.Fatalf("got status %d, want 303; body %s", answer.Code, answer.Body)
	}
	return w.get(answer.Header().Get("Location"))
}

// Every button asks first, naming the number of jobs, and changes nothing by that; then
// it does what it says, and says what it did; reloading that changes nothing any more.
func TestButtonsOnJobs(t *testing.T) {
	t.Parallel()
	stock := "no <b>stock</b> for #"
	for _, c := range []struct {
		action, kind string
		ids          []string
		id           string // one of those that change
		before       browse.State
		after        browse.State
		question     string
		result       string
	}{
		{"run-now", "", []string{"s1", "f1"}, "s1", browse.StateScheduled, browse.StateReady, "Run now: 2 jobs of queue orders?", "2 jobs made due now"},
		{"kill", "", []string{"r1"}, "r1", browse.StateReady, browse.StateMorgue, "Kill: 1 job of queue orders?", "1 job sent to the morgue"},
		{"delete", "", []string{"r1", "r2", "gone"}, "r2", browse.StateReady, "", "Delete: 2 jobs of queue orders?", "2 jobs deleted"},
		{"unblock", "", []string{"b1"}, "b1", browse.StateBlocked, browse.StateReady, "Requeue: 1 job of queue orders?", "1 job requeued"},
		{"skip", "", []string{"b1"}, "b1", browse.StateBlocked, browse.StateMorgue, "Skip oldest: 1 job", "1 job skipped"},
		{"bury", "", []string{"b1"}, "b1", browse.StateBlocked, browse.StateMorgue, "Bury: 1 job", "1 job buried"},
		{"requeue", "", []string{"d1", "d2"}, "d1", browse.StateMorgue, browse.StateReady, "Requeue: 2 jobs", "2 jobs requeued"},
		{"delete-dead", "", []string{"d1"}, "d1", browse.StateMorgue, "", "Delete: 1 job", "1 job deleted"},
		{"run-all", "", nil, "f2", browse.StateRetry, browse.StateReady, "Run all now: 3 jobs", "3 jobs made due now"},
		{"run-scheduled", "", nil, "s1", browse.StateScheduled, browse.StateReady, "Run all scheduled now: 1 job", "1 job made due now"},
		{"run-failed", "no stock for #", nil, "f1", browse.StateRetry, browse.StateReady, "Run all failed now: 1 job", "1 job made due now"},
		{"kill-failed", "", nil, "f1", browse.StateRetry, browse.StateMorgue, "Kill all failed: 2 jobs", "2 jobs sent to the morgue"},
		{"delete-failed", "", nil, "f1", browse.StateRetry, "", "Delete all failed: 2 jobs", "2 jobs deleted"},
		{"unblock-all", "", nil, "b1", browse.StateBlocked, browse.StateReady, "Requeue all: 1 job", "1 job requeued"},
		{"requeue-all", "", nil, "d2", browse.StateMorgue, browse.StateReady, "Requeue all: 3 jobs", "3 jobs requeued"},
		{"requeue-all", stock, nil, "d3", browse.StateMorgue, browse.StateReady, "Requeue all: 2 jobs", "2 jobs requeued"},
		{"requeue-all", browse.NoKind, nil, "d2", browse.StateMorgue, browse.StateReady, "Requeue all: 1 job of", "1 job requeued"},
		{"delete-all-dead", "", nil, "d1", browse.StateMorgue, "", "Delete all: 3 jobs", "3 jobs deleted"},
	} {
		t.Run(c.action+c.kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t).fill()
			w.t = t
			form := []string{"do", c.action, "queue", "orders", "back", "/queues/orders/jobs"}
			if c.kind != "" {
				form = append(form, "kind", c.kind)
			}
			for _, id := range c.ids {
				form = append(form, "key", keyOf(id))
			}
			expect(t, w.post("/confirm", form...), 200, "<h1>"+c.question, `action="./do"`, `href="./queues/orders/jobs"`)
			if got := w.stateOf(c.id); got != c.before {
				t.Fatalf("after the question: got %s in state %q, want %q", c.id, got, c.before)
			}
			done := w.post("/do", form...)
			expect(t, w.follow(done), 200, "<h1>Done</h1>", c.result)
			if got := w.stateOf(c.id); got != c.after {
				t.Errorf("got %s in state %q, want %q", c.id, got, c.after)
			}
			expect(t, w.follow(done), 200, c.result)
			if got := w.stateOf(c.id); got != c.after {
				t.Errorf("after a reload: got %s in state %q, want %q", c.id, got, c.after)
			}
		})
	}
}

// A job whose next attempt is due has failed all the same: figures, lists, errors and buttons mean
// it too.
func TestFailedAndDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	n, err := browse.Of(w.orders).RunNow(t.Context(), "f1", "f2")
	if n != 2 || err != nil {
		t.Fatalf("run now: got %d, %v, want 2", n, err)
	}
	w.settle("orders")
	const link = `href="./queues/orders/jobs?state=%s"%s>%d</a>`
	expect(t, w.get("/"), 200, fmt.Sprintf(link, "failed", ` class="warn"`, 2))
	expect(t, w.get("/queues/orders"), 200, fmt.Sprintf(link, "failed", "", 2), fmt.Sprintf(link, "retry", "", 0))
	expect(t, w.get("/queues/orders/jobs?state=failed"), 200, ">f1</a>", ">f2</a>")
	expect(t, w.get("/queues/orders/errors"), 200, "no price", "no stock")
	expect(t, w.post("/confirm", "do", "kill-failed", "queue", "orders", "back", "/queues/orders"), 200, "Kill all failed: 2 jobs of queue orders?")
	expect(t, w.follow(w.post("/do", "do", "kill-failed", "queue", "orders", "back", "/")), 200, "2 jobs sent to the morgue")
}

func TestRowButton(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	expect(t, w.post("/confirm", "one", "run-now:"+keyOf("f1"), "key", keyOf("f2"), "queue", "orders"), 200, "Run now: 1 job", ">f1</li>")
	id := "\xff\n"
	expect(t, w.post("/confirm", "one", "kill:"+keyOf(id), "queue", "orders"), 200, "Kill: 1 job", `&#34;\xff\n&#34;`)
	expect(t, w.follow(w.post("/do", "do", "kill", "key", keyOf(id), "queue", "orders")), 200, "1 job sent")
	if got := w.stateOf(id); got != browse.StateMorgue {
		t.Errorf("got %q, want it in the morgue", got)
	}
}

func TestHonestAboutWhatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	form := []string{"do", "requeue", "queue", "orders", "key", keyOf("d1"), "key", keyOf("d2"), "key", keyOf("x"), "key", keyOf("d1")}
	expect(t, w.post("/confirm", form...), 200, "Requeue: 2 jobs", "Of the 3 that were selected, 1 are no longer there")
	_, err := browse.Of(w.orders).Delete(t.Context(), browse.StateMorgue, "d2")
	must(t, err)
	expect(t, w.follow(w.post("/do", form...)), 200, "1 job requeued", "2 jobs were not changed")
	expect(t, w.post("/confirm", form...), 200, "There is nothing to do")
}

// What lies in the morgue of an id that waits as well is counted there.
func TestCountsWhereTheActionLooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	w.push(job("d1"))
	expect(t, w.post("/confirm", "do", "requeue", "queue", "orders", "key", keyOf("d1")), 200, "Requeue: 1 job of queue orders?")
	expect(t, w.post("/confirm", "do", "kill", "queue", "orders", "key", keyOf("d1"), "key", keyOf("d2")), 200, "Kill: 1 job of queue orders?")
}

// All ids of a page are counted at once, not one after the other.
func TestCountsTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for swept := false; !swept; { // the next sweep is 15 s away then
		w.pages.sampler.mu.Lock()
		now, change := w.pages.sampler.now, w.pages.sampler.change
		w.pages.sampler.mu.Unlock()
		if swept = !now.Swept.IsZero(); !swept {
			<-change
		}
	}
	w.fillQueueOnly()
	form := []string{"do", "kill", "queue", "orders"}
	var jobs []lowkiq.Push
	for i := range requestedIDs {
		jobs = append(jobs, job(fmt.Sprint("id", i)))
		form = append(form, "key", keyOf(jobs[i].ID))
	}
	w.push(jobs...)
	options, err := redis.ParseURL(w.redis.URL())
	must(t, err)
	rdb := redis.NewClient(options)
	defer rdb.Close() //nolint:errcheck // it only reads
	must(t, rdb.ConfigResetStat(t.Context()).Err())
	expect(t, w.post("/confirm", form...), 200, "Kill: 1,000 jobs of queue orders?")
	text, err := rdb.Info(t.Context(), "commandstats").Result()
	must(t, err)
	if !strings.Contains(text, "cmdstat_evalsha:calls=2,") {
		t.Errorf("got %s, want 2 scripts for %d ids of a shard", text, requestedIDs)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	for _, c := range []struct {
		action, question, result string
		paused                   bool
	}{
		{"pause", "Pause queue orders, where 10 jobs wait?", "is paused. No node begins a job of it any more.", true},
		{"resume", "Resume queue orders, where 10 jobs wait?", "goes on", false},
	} {
		expect(t, w.post("/confirm", "do", c.action, "queue", "orders"), 200, c.question)
		expect(t, w.follow(w.post("/do", "do", c.action, "queue", "orders")), 200, c.result)
		entries, err := w.client.Registry().Entries(t.Context())
		must(t, err)
		if got := entries["orders"].Paused; got != c.paused {
			t.Errorf("%s: got paused %t, want %t", c.action, got, c.paused)
		}
		if got := strings.Contains(w.get("/queues/orders").Body.String(), "it is paused: pushes"); got != c.paused {
			t.Errorf("%s: got the page to say paused %t, want %t", c.action, got, c.paused)
		}
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	expect(t, w.post("/confirm", "do", "drain", "node", "n1", "back", "/nodes"), 200, "Drain n1 and move 4 shards?", "No other node is live")
	if page := w.post("/confirm", "do", "drain", "node", "n2").Body.String(); strings.Contains(page, "No other node is live") {
		t.Error("n1 is live")
	}
	if w.drains.Load() != 0 {
		t.Error("got a drain by the question alone")
	}
	expect(t, w.follow(w.post("/do", "do", "drain", "node", "n1")), 200, "n1/01J.1", "to give its shards away", "It has none left")
	expect(t, w.follow(w.post("/do", "do", "undrain", "node", "n1")), 200, "It may own some again")
	expect(t, w.post("/do", "do", "drain", "node", "n2"), 200, "It did not go through", "nobody listens")
}

func TestBulkOffersToGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	a := actions.Named("requeue-all")
	part := result{request: request{Action: a, Queue: "orders", SoFar: 5, Cursor: "abc", Back: "/"}, Changed: 10_000, Left: 90_000}
	answer := httptest.NewRecorder()
	w.pages.writePage(answer, httptest.NewRequest(http.MethodPost, "/do", nil), part.toView())
	expect(t, answer, 200, "Not all is done yet", "10,005 jobs requeued", "90,000 jobs have not been examined", "Go on with 90,000 jobs", `name="cursor" value="abc"`, `name="sofar" value="10005"`)
	expect(t, w.post("/do", "do", "requeue-all", "queue", "orders", "cursor", "not a cursor", "sofar", "7"), 200, "It did not go through", "7 jobs requeued")
}

func TestImpossibleRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	many := []string{"do", "kill", "queue", "orders"}
	for i := range requestedIDs + 1 {
		many = append(many, "key", keyOf(fmt.Sprint(i)))
	}
	for _, c := range []struct {
		name   string
		status int
		want   string
		form   []string
	}{
		{"nothing", 400, "is no action of these pages", nil},
		{"unknown", 400, "is no action of these pages", []string{"do", "explode", "queue", "orders"}},
		{"no ids", 400, "No job is selected", []string{"do", "kill", "queue", "orders"}},
		{"bad key", 400, "names no id", []string{"do", "kill", "queue", "orders", "key", "*"}},
		{"too many", 400, "at most 1000", many},
		{"no queue", 400, "queue name is empty", []string{"do", "run-all"}},
		{"unknown queue", 404, "unknown queue", []string{"do", "run-all", "queue", "nowhere"}},
		{"no node", 400, "node name is empty", []string{"do", "drain"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, path := range []string{"/confirm", "/do"} {
				expect(t, w.post(path, c.form...), c.status, c.want)
			}
		})
	}
}

// TestSwitchWithAKind checks that an action that is not about jobs ignores a kind.
func TestSwitchWithAKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	expect(t, w.post("/confirm", "do", "pause", "queue", "orders", "kind", "x"), 200, "Pause")
}

// TestBackIsKeptWhateverItsLength checks that the link back works with a page's cursor of kilobytes.
func TestBackIsKeptWhateverItsLength(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	back := "/queues/orders/jobs?cursor=" + strings.Repeat("a", 5000)
	expect(t, w.post("/confirm", "do", "requeue", "queue", "orders", "key", keyOf("d1"), "back", back), 200, back)
}

// Buttons that destroy something are in a menu, which needs no script.
func TestDestroyingButtonsAreInAMenu(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	for target, hidden := range map[string][]string{
		"/queues/orders": {"delete-failed"}, "/queues/orders/jobs": {"delete-failed", "delete"}, "/queues/orders/morgue": {"delete-all-dead", "delete-dead"},
		"/queues/orders/job?id=r1": {"delete"}, "/recurring": {"remove recurring"}, "/recurring/sync": {"remove recurring"}, "/queues/orders/job?id=w1": nil,
	} {
		page := w.get(target)
		expect(t, page, 200, `<details class="menu`, "<summary")
		open, within := page.Body.String(), ""
		for strings.Contains(open, "<details") {
			before, rest, _ := strings.Cut(open, "<details")
			menu, after, _ := strings.Cut(rest, "</details>")
			open, within = before+after, within+menu
		}
		if strings.Contains(open, `class="danger"`) {
			t.Errorf("%s: got a button that destroys something outside of a menu", target)
		}
		for _, name := range hidden {
			if !strings.Contains(within, `value="`+name+`" class="danger"`) {
				t.Errorf("%s: got menus %s, want %s in them", target, within, name)
			}
		}
	}
}
