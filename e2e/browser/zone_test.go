//go:build linux

package browser

import (
	"testing"

	"github.com/chromedp/cdproto/emulation"
)

// timesAre holds if all times of a page are those of the zone at an offset from UTC, in minutes.
const timesAre = `(minutes => { const all = [...document.querySelectorAll("main time[datetime]")].filter(e => /^\d{4}-/.test(e.textContent.trim()) || e.title);
	const want = (e) => new Date(new Date(e.dateTime).getTime() + minutes * 60000).toISOString().slice(0, 19).replace("T", " ");
	return all.length > 0 && all.every(e => (e.title || e.textContent.trim()) === want(e)); })`

// TestTimesInTheViewersZone checks that times are in UTC until a person chooses the local zone. The browser remembers
// the choice. Live parts follow it.
func TestTimesInTheViewersZone(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	w := newWorld(t, "n1")
	b := newTab(t, browser, looks[0])
	b.do(command(emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Dubai"}))
	b.open(w.url("n1") + "/")
	b.sees("times in UTC", timesAre+`(0) && document.querySelector("[data-zone]").innerText === "times are UTC"`)
	eval[bool](b, `(document.querySelector("[data-zone-toggle]").click(), true)`)
	b.sees("times of the zone", timesAre+`(240) && document.querySelector("[data-zone]").innerText === "times are Asia/Dubai"`)
	eval[bool](b, `(window.first = document.querySelector("main time").dateTime, true)`)
	b.sees("newer figures", `document.querySelector("main time").dateTime !== window.first`)
	b.sees("times of the zone in them", timesAre+`(240)`)
	for _, o := range b.objections() {
		t.Error(o)
	}
	w.push("orders", "bad-1")
	b.open(w.url("n1") + query("/queues/orders/job", "id", "bad-1"))
	b.sees("times of the zone on another page", timesAre+`(240)`)
	eval[bool](b, `(document.querySelector("[data-zone-toggle]").click(), true)`)
	b.sees("UTC again", timesAre+`(0)`)
	for _, fault := range b.wrong() {
		t.Error(fault)
	}
}
