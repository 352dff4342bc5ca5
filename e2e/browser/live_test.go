//go:build linux

package browser

import (
	"fmt"
	"testing"
)

// figure is the number of ready jobs that the overview shows of a queue.
func figure(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("main tbody tr")].find((r) => r.cells[0].innerText.trim().startsWith(%q)).cells[2].innerText.trim()`, name)
}

// TestLive: figures and the map of shards change on an open page, whatever node shows it,
// and not by loading the page again.
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
