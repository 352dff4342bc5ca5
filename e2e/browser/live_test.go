//go:build linux

package browser

import (
	"fmt"
	"testing"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// figure is the number of ready jobs that the overview shows of a queue.
func figure(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("main tbody tr")].find((r) => r.cells[0].innerText.trim().startsWith(%q))?.cells[2].innerText.trim()`, name)
}

// TestJobStaysLive checks that the page of a job shows changes without a reload, and that nothing moves while a person
// types.
func TestJobStaysLive(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	w := newWorld(t, "n1")
	w.push("orders", "slow-job")
	w.await("orders", "it is in flight", func(c protocol.Counts, _ int) bool { return c.InFlight == 1 })
	b := newTab(t, browser, looks[3])
	b.open(w.url("n1") + query("/queues/orders/job", "id", "slow-job"))
	b.sees("a job in flight", `document.querySelector("main").innerText.includes("in flight")`)
	eval[bool](b, "window.same = true")
	w.push("orders", "slow-job")
	b.sees("what was pushed meanwhile", `document.querySelector("main").innerText.includes("Pushed meanwhile")`)
	eval[bool](b, `(document.querySelector("details.menu:has([name=why])").open = true, document.querySelector("main input[name=why]").focus(), document.querySelector("main input[name=why]").value = "typed", true)`)
	w.endpoint.letGo()
	w.await("orders", "it is done", func(c protocol.Counts, _ int) bool { return c.Total() == 0 })
	if !eval[bool](b, `document.querySelector("main input[name=why]")?.value === "typed"`) {
		t.Error("what somebody types is gone, want nothing moved meanwhile")
	}
	eval[bool](b, `(document.activeElement.blur(), true)`)
	b.sees("that it is done", `[...document.querySelectorAll("main td .tag")].some((e) => e.innerText === "done")`)
	if !eval[bool](b, "window.same === true") {
		t.Error("the page was loaded again, want it changed in place")
	}
	for _, o := range b.objections() {
		t.Error(o)
	}
	for _, fault := range b.wrong() {
		t.Error(fault)
	}
}

// TestShiftTicks checks that a shift-click ticks all boxes between two.
func TestShiftTicks(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	w := newWorld(t, "n1")
	w.schedule("idle", named("later", 10)...)
	b := newTab(t, browser, looks[3])
	b.open(w.url("n1") + "/queues/idle/jobs")
	const click = `(() => { const all = [...document.querySelectorAll("input[name=key]")]; for (const [i, shiftKey] of %s) all[i].dispatchEvent(new MouseEvent("click", {bubbles: true, shiftKey}));
		return all.map(one => one.checked ? "x" : ".").join(""); })()`
	if got := eval[string](b, fmt.Sprintf(click, "[[2, false], [5, true]]")); got != "..xxxx...." {
		t.Errorf("third to sixth: got %s", got)
	}
	if got := eval[string](b, fmt.Sprintf(click, "[[8, false], [7, true], [4, false], [2, true]]")); got != ".....x.xx." {
		t.Errorf("two more, and three less: got %s", got)
	}
}

// TestLive checks that figures and the map of shards change on an open page of every node, without a reload.
func TestLive(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	w := newWorld(t, "n1", "n2", "n3")
	w.pause("idle")
	overview, shards := newTab(t, browser, looks[3]), newTab(t, browser, looks[2])
	overview.open(w.url("n1") + "/")
	overview.sees("the queue", figure("idle")+` === "0"`)
	eval[bool](overview, "window.same = true")
	w.push("idle", named("ok", 7)...)
	overview.sees("the push", figure("idle")+` === "7"`)
	w.push("idle", named("more", 5)...)
	overview.sees("another push", figure("idle")+` === "12"`)
	if !eval[bool](overview, "window.same === true") {
		t.Error("the overview was loaded again, want it changed in place")
	}

	shards.open(w.url("n1") + "/shards")
	shards.sees("three nodes", `["n1", "n2", "n3"].every((n) => document.querySelector("main table").innerText.includes(n))`)
	eval[bool](shards, "window.same = true")
	shards.shoot("live-before-kill")
	w.nodes["n3"].kill()
	await(t, "the shards of n3 are elsewhere on the page", patience, func() bool {
		return eval[bool](shards, `!document.querySelector("main table").innerText.includes("n3")`)
	})
	shards.shoot("live-after-kill")
	if !eval[bool](shards, "window.same === true") {
		t.Error("the map was loaded again, want it changed in place")
	}
	for _, b := range []*tab{overview, shards} {
		for _, o := range b.objections() {
			t.Error(o)
		}
		for _, fault := range b.wrong() {
			t.Error(fault)
		}
	}
}
