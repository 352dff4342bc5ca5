//go:build linux

package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/workflow"
)

// press is one use of a button: what is done on a page, and what has become of the jobs.
type press struct {
	name  string
	path  string
	tick  int    // boxes that are ticked before; inRow = the button in a row is pressed
	label string // of the button; the first one that has it
	asks  string // what the confirmation says
	says  string // what the result says
	jobs  string // the queue afterwards
}

const inRow = -1

// presses are all buttons that act on jobs, in an order in which each has something to do.
var presses = map[string][]press{
	"b-retry": {
		{"one now", "/jobs?state=retry", inRow, "Run now", "1 job", "1 job made due now", "1 ready 0 scheduled 9 retry 0 blocked 0 dead"},
		{"selected now", "/jobs?state=retry", 2, "Run now", "2 jobs", "2 jobs made due now", "3 ready 0 scheduled 7 retry 0 blocked 0 dead"},
		{"selected killed", "/jobs?state=retry", 2, "Kill", "2 jobs", "2 jobs sent to the morgue", "3 ready 0 scheduled 5 retry 0 blocked 2 dead"},
		{"selected deleted", "/jobs?state=retry", 1, "Delete", "1 job", "1 job deleted", "3 ready 0 scheduled 4 retry 0 blocked 2 dead"},
		{"all killed", "", 0, "Kill all failed", "7 jobs", "7 jobs sent to the morgue", "0 ready 0 scheduled 0 retry 0 blocked 9 dead"},
		{"all back", "/morgue", 0, "Requeue all", "9 jobs", "9 jobs requeued", "9 ready 0 scheduled 0 retry 0 blocked 0 dead"},
	},
	"b-later": {
		{"job's page", query("/job", "id", hostile[0]), 0, "Run now", "1 job", "1 job made due now", "1 ready 8 scheduled 0 retry 0 blocked 0 dead"},
		{"job's page, kill", query("/job", "id", hostile[1]), 0, "Kill", "1 job", "1 job sent to the morgue", "1 ready 7 scheduled 0 retry 0 blocked 1 dead"},
		{"job's page, delete", query("/job", "id", hostile[5]), 0, "Delete", "1 job", "1 job deleted", "1 ready 6 scheduled 0 retry 0 blocked 1 dead"},
		{"all now", "", 0, "Run all now", "6 jobs", "6 jobs made due now", "7 ready 0 scheduled 0 retry 0 blocked 1 dead"},
	},
	"b-morgue": {
		{"one back", "/morgue", inRow, "Requeue", "1 job", "1 job requeued", "1 ready 0 scheduled 0 retry 0 blocked 11 dead"},
		{"selected back", "/morgue", 2, "Requeue", "2 jobs", "2 jobs requeued", "3 ready 0 scheduled 0 retry 0 blocked 9 dead"},
		{"selected deleted", "/morgue", 2, "Delete", "2 jobs", "2 jobs deleted", "3 ready 0 scheduled 0 retry 0 blocked 7 dead"},
		{"all deleted", "/morgue", 0, "Delete all", "7 jobs", "7 jobs deleted", "3 ready 0 scheduled 0 retry 0 blocked 0 dead"},
	},
	"b-blocked": {
		{"one goes on", "/blocked", inRow, "Requeue", "1 job", "1 job requeued", "1 ready 0 scheduled 0 retry 9 blocked 0 dead"},
		{"selected skipped", "/blocked", 2, "Skip oldest", "2 jobs", "2 jobs skipped", "1 ready 0 scheduled 0 retry 7 blocked 2 dead"},
		{"selected buried", "/blocked", 1, "Bury", "1 job", "1 job buried", "1 ready 0 scheduled 0 retry 6 blocked 3 dead"},
		{"all go on", "/blocked", 0, "Requeue all", "6 jobs", "6 jobs requeued", "7 ready 0 scheduled 0 retry 0 blocked 3 dead"},
	},
}

// TestButtons presses every button: first the confirmation is left without doing
// anything, then it is meant. Once with scripts, and once without, those of two queues
// unless everything is tested: each kind of button is on their pages.
func TestButtons(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	all := slices.Collect(maps.Keys(presses))
	for scripts, queues := range map[string][]string{
		"with scripts":    all,
		"without scripts": tier.Of(nil, []string{"b-later", "b-morgue"}, all),
	} {
		t.Run(scripts, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1", "n2")
			w.fillForButtons()
			b := newTab(t, browser, look{1440, "light"})
			if scripts == "without scripts" {
				b.do(command(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
			}
			b.pressPause(w)
			b.pressWorkflow(w)
			for _, name := range queues {
				for _, p := range presses[name] {
					t.Run(name+"/"+p.name, func(t *testing.T) { b.t, w.t = t, t; b.press(w, name, p) })
				}
			}
			b.t, w.t = t, t
			b.pressGroups(w)
			b.pressDrain(w)
		})
	}
}

// fillForButtons puts jobs where buttons look for them, and keeps handlers away from then on.
func (w *world) fillForButtons() {
	w.t.Helper()
	w.push("b-retry", named("bad", 10)...)
	w.push("b-morgue", named("bad", 12)...)
	w.push("b-blocked", named("bad", 10)...)
	w.push("b-group", named("bad", 16)...)
	w.push("b-fails", named("bad", 16)...)
	w.schedule("b-later", hostile...)
	w.await("b-retry", "ten retries", func(c protocol.Counts, _ int) bool { return c.Retry == 10 })
	w.await("b-morgue", "twelve dead", func(_ protocol.Counts, dead int) bool { return dead == 12 })
	w.await("b-blocked", "ten blocked", func(c protocol.Counts, _ int) bool { return c.Blocked == 10 })
	w.await("b-group", "sixteen dead", func(_ protocol.Counts, dead int) bool { return dead == 16 })
	w.await("b-fails", "sixteen retries", func(c protocol.Counts, _ int) bool { return c.Retry == 16 })
	for name := range presses {
		w.pause(name)
	}
	w.pause("b-group")
	w.pause("b-fails")
}

// pause waits until every node has seen that the queue is paused.
func (w *world) pause(name string) {
	w.t.Helper()
	if err := w.client.Registry().Pause(context.Background(), name); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range w.nodes {
		await(w.t, "a node sees the pause", patience, func() bool {
			return strings.Contains(p.said(), fmt.Sprintf(`"queue":%q,"paused":true`, name))
		})
	}
}

// state is what a queue holds, in words.
func (w *world) state(name string) string {
	c, dead := w.counts(name)
	return fmt.Sprintf("%d ready %d scheduled %d retry %d blocked %d dead", c.Ready, c.Scheduled, c.Retry, c.Blocked, dead)
}

// press uses one button.
func (b *tab) press(w *world, name string, p press) {
	b.t.Helper()
	before := w.state(name)
	at := w.url("n1") + "/queues/" + name + p.path
	ask := func() {
		b.t.Helper()
		b.open(at)
		eval[int](b, fmt.Sprintf(`[...document.querySelectorAll("input[name=key]")].slice(0, %d).filter((e) => e.checked = true).length`, max(0, p.tick)))
		if p.tick == inRow {
			b.clickIn("tbody", p.label)
		} else {
			b.click(p.label)
		}
		if title := b.heading(); !strings.Contains(title, p.asks+" ") {
			b.t.Errorf("the confirmation asks %q, want %q in it", title, p.asks)
		}
	}
	ask()
	for _, o := range b.objections() {
		b.t.Error(o)
	}
	b.click("Cancel")
	if got := w.state(name); got != before {
		b.t.Errorf("after cancel: got %s, want %s", got, before)
	}
	ask()
	b.click(p.label)
	b.says(p.says)
	for range 2 {
		if got := w.state(name); got != p.jobs {
			b.t.Errorf("got %s, want %s", got, p.jobs)
		}
		b.do(chromedp.Reload()) // repeats nothing
	}
	for _, fault := range b.wrong() {
		b.t.Error(fault)
	}
}

func (b *tab) click(label string) {
	b.t.Helper()
	b.clickIn("main", label)
}

// clickIn presses the first button or link with a label in a part of the page, and waits
// for the next page. If it is in a menu, it opens the menu first. An ellipsis says that a button asks first.
func (b *tab) clickIn(part, label string) {
	b.t.Helper()
	expression := fmt.Sprintf(`(() => {
		const e = [...document.querySelectorAll("%[1]s button, %[1]s a")]
			.find((e) => (e.checkVisibility() || e.closest("details")) && e.textContent.trim().replace("…", "") === %[2]q);
		e?.closest("details:not([open])")?.querySelector("summary").click();
		if (e && !e.checkVisibility()) throw new Error("the menu is closed");
		if (e) e.click();
		return Boolean(e);
	})()`, part, label)
	found := false
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	_, err := chromedp.RunResponse(ctx, func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		var err error
		if found, err = chromedp.Evaluate[bool](expression, byAPerson)(ctx, t); err == nil && !found {
			err = fmt.Errorf("no button %q", label)
		}
		return chromedp.Void{}, err
	})
	if err != nil {
		b.t.Fatalf("click %q at %s: %v", label, b.where(), err)
	}
}

// byAPerson lets a script act as a person would: a page that moves on by itself is marked.
func byAPerson(p *runtime.EvaluateParams) { p.UserGesture = new(true) }

func (b *tab) heading() string {
	b.t.Helper()
	return eval[string](b, `document.querySelector("h1").textContent`)
}

// says requires a text on the page, whatever its spaces and marks are.
func (b *tab) says(want string) {
	b.t.Helper()
	if text := eval[string](b, `document.querySelector("main").innerText`); !strings.Contains(text, want) {
		b.t.Errorf("got %q, want %q in it", text, want)
	}
}

// pressPause pauses a queue and lets it go on.
func (b *tab) pressPause(w *world) {
	b.t.Helper()
	for _, c := range []struct {
		label, done string
		paused      bool
	}{{"Pause", "is paused", true}, {"Resume", "goes on", false}} {
		b.open(w.url("n1") + "/queues/idle")
		b.click(c.label)
		b.click(c.label)
		b.says(c.done)
		registry, err := w.client.Registry().Entries(context.Background())
		if err != nil || registry["idle"].Paused != c.paused {
			b.t.Errorf("after %s: got paused %v, %v", c.label, registry["idle"].Paused, err)
		}
	}
}

// pressWorkflow closes a workflow, which ends then, and cancels another.
func (b *tab) pressWorkflow(w *world) {
	b.t.Helper()
	for _, c := range []struct {
		label string
		state workflow.State
	}{{"Close it", workflow.StateDone}, {"Cancel it", workflow.StateCancelled}} {
		id := strings.Fields(c.label)[0] + hostile[0]
		w.startWorkflow(workflow.Workflow{ID: id, Open: true, Jobs: []workflow.Job{{Queue: "idle", Push: lowkiq.Push{ID: "ok"}}}})
		w.awaitWorkflow(id, "has a job that is done", func(s workflow.Status) bool { return s.Done == 1 })
		b.open(w.url("n1") + query("/workflow", "id", id))
		b.click(c.label)
		w.awaitWorkflow(id, "is "+string(c.state), func(s workflow.Status) bool { return s.State == c.state })
		b.do(chromedp.Reload())
		b.says(string(c.state))
	}
}

// pressGroups acts on one kind of error, of the dead and of the failed.
func (b *tab) pressGroups(w *world) {
	b.t.Helper()
	n := b.pressGroup(w, "b-group", browse.StateMorgue, "Requeue this group", "Requeue all")
	if got, want := w.state("b-group"), fmt.Sprintf("%d ready 0 scheduled 0 retry 0 blocked %d dead", n, 16-n); got != want {
		b.t.Errorf("one kind requeued: got %s, want %s", got, want)
	}
	n = b.pressGroup(w, "b-fails", browse.StateRetry, "Run this group now", "Run all failed now")
	if got, want := w.state("b-fails"), fmt.Sprintf("%d ready 0 scheduled %d retry 0 blocked 0 dead", n, 16-n); got != want {
		b.t.Errorf("one kind run: got %s, want %s", got, want)
	}
	// Those that are due again have failed as well.
	b.press(w, "b-fails", press{"all deleted", "", 0, "Delete all failed", "16 jobs", "16 jobs deleted",
		"0 ready 0 scheduled 0 retry 0 blocked 0 dead"})
}

// pressGroup presses the button of the most frequent kind, and returns how many it has.
func (b *tab) pressGroup(w *world, name string, state browse.State, label, meant string) int {
	b.t.Helper()
	groups, err := browse.Of(w.queue(name)).Errors(context.Background(), state)
	if err != nil || len(groups.Groups) != len(failures) {
		b.t.Fatalf("got %+v, %v, want %d kinds", groups, err, len(failures))
	}
	n := groups.Groups[0].Jobs
	b.open(w.url("n2") + "/queues/" + name + "/errors")
	b.click(label)
	if title := b.heading(); !strings.Contains(title, fmt.Sprintf(" %d job", n)) {
		b.t.Errorf("the confirmation asks %q, want %d jobs in it", title, n)
	}
	b.click(meant)
	return n
}

// opensWith opens a page until an expression holds: without scripts it does not change by itself.
func (b *tab) opensWith(at, expression string) {
	b.t.Helper()
	await(b.t, expression+" at "+at, patience, func() bool {
		b.open(at)
		return eval[bool](b, expression)
	})
}

// pressDrain empties a node and lets it take shards again.
func (b *tab) pressDrain(w *world) {
	b.t.Helper()
	owned := func(node string) (n int) {
		instances, err := w.client.Leases().All(context.Background())
		if err != nil {
			b.t.Fatal(err)
		}
		for _, i := range instances {
			var lease struct {
				Node   string
				Queues map[string]int
			}
			if json.Unmarshal(i.Lease, &lease) == nil && lease.Node == node {
				for _, shards := range lease.Queues {
					n += shards
				}
			}
		}
		return n
	}
	before := owned("n1")
	b.opensWith(w.url("n2")+"/nodes", `document.querySelectorAll("main button").length === 2`)
	b.click("Drain")
	if title := b.heading(); !strings.Contains(title, fmt.Sprintf(" %d shard", before)) {
		b.t.Errorf("the confirmation asks %q, want %d shards in it", title, before)
	}
	b.click("Drain")
	b.says("to give its shards away")
	await(b.t, "n1 is empty", patience, func() bool { return owned("n1") == 0 })
	b.opensWith(w.url("n1")+"/nodes", `document.querySelector("main").innerText.includes("Undo drain")`)
	b.click("Undo drain")
	b.click("Undo drain")
	b.says("may own some again")
	await(b.t, "n1 has shards again", patience, func() bool { return owned("n1") > 0 })
}
