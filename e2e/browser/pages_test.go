//go:build linux

package browser

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/workflow"
)

// page is one of the dashboard.
type page struct {
	name string // of its pictures
	path string
	want string // what is to be read on it
	fail bool   // it answers with an error, as it should
}

// query makes "path?key=value…" of pairs.
func query(path string, pairs ...string) string {
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	return path + "?" + values.Encode()
}

// pages are all that the dashboard has, with something to show and with nothing.
func pages() []page {
	list := []page{
		{name: "overview", path: "/", want: "orders"},
		{name: "overview-filtered", path: "/?q=mai", want: "mail"},
		{name: "overview-none", path: "/?q=nobody", want: "nobody"},
		{name: "queue", path: "/queues/orders", want: "orders"},
		{name: "queue-orphan", path: "/queues/orphan", want: "orphan"},
		{name: "queue-idle", path: "/queues/idle", want: "idle"},
		{name: "jobs", path: "/queues/orders/jobs", want: "later"},
		{name: "jobs-scheduled", path: "/queues/orders/jobs?state=scheduled", want: "later"},
		{name: "jobs-search", path: query("/queues/orders/jobs", "q", `error:"connection refused"`), want: "bad-"},
		{name: "jobs-search-none", path: query("/queues/orders/jobs", "q", "tag:nobody nowhere"), want: "No job matches"},
		{name: "jobs-search-refused", path: query("/queues/orders/jobs", "q", strings.Repeat("much-too-long", 20)), want: "at most 200 are allowed"},
		{name: "jobs-search-part", path: query("/queues/orphan/jobs", "q", "ok-", "limit", "25"), want: "Go on"},
		{name: "morgue-search", path: query("/queues/mail/morgue", "q", `bad error:"connection refused"`), want: "looked through"},
		{name: "jobs-retry", path: "/queues/orders/jobs?state=retry", want: "bad-"},
		{name: "jobs-orphan", path: query("/queues/orphan/jobs", "by", "id"), want: "a-big-one"},
		{name: "jobs-none", path: "/queues/idle/jobs", want: "idle"},
		{name: "in-flight", path: "/queues/orders/in-flight", want: "slow-1"},
		{name: "in-flight-none", path: "/queues/idle/in-flight", want: "idle"},
		{name: "blocked", path: "/queues/ledger/blocked", want: "bad-"},
		{name: "blocked-none", path: "/queues/idle/blocked", want: "idle"},
		{name: "morgue", path: "/queues/mail/morgue", want: "bad-"},
		{name: "morgue-none", path: "/queues/idle/morgue", want: "idle"},
		{name: "errors", path: "/queues/mail/errors", want: "connection refused"},
		{name: "errors-retry", path: "/queues/orders/errors", want: "connection refused"},
		{name: "errors-none", path: "/queues/idle/errors", want: "idle"},
		{name: "runs", path: "/queues/ledger/runs", want: "exhausted"},
		{name: "runs-done", path: "/queues/orders/runs?verdict=done", want: "ok-"},
		{name: "rules", path: "/queues/orders/rules", want: "a sale of"},
		{name: "rules-orphan", path: "/queues/orphan/rules", want: "does not handle"},
		{name: "days", path: "/queues/orders/days", want: "Attempts of jobs"},
		{name: "days-92", path: "/queues/orders/days?days=92", want: "Attempts of jobs"},
		{name: "days-none", path: "/queues/idle/days", want: "No process counted anything"},
		{name: "events", path: "/watch", want: "Events while"},
		{name: "changes", path: "/changes", want: "a sale of"},
		{name: "recurring", path: "/recurring", want: "nightly"},
		{name: "recurring-one", path: "/recurring/nightly", want: "Europe/Berlin"},
		{name: "recurring-none", path: "/recurring/nobody", want: "nobody", fail: true},
		{name: "workflows", path: "/workflows", want: "import-42"},
		{name: "workflow", path: "/workflow?id=import-42", want: "These are the first of 40."},
		{name: "workflow-hostile", path: query("/workflow", "id", hostile[0]), want: "All jobs are done."},
		{name: "workflow-none", path: "/workflow?id=nobody", want: "There is no workflow nobody.", fail: true},
		{name: "job-in-flight", path: query("/queues/orders/job", "id", "slow-1"), want: "has it (flight"},
		{name: "job-retry", path: query("/queues/orders/job", "id", "bad-003"), want: "bad-003"},
		{name: "job-morgue", path: query("/queues/mail/job", "id", "bad-001"), want: "exhausted"},
		{name: "job-blocked", path: query("/queues/ledger/job", "id", "bad-001"), want: "bad-001"},
		{name: "job-big", path: query("/queues/orphan/job", "id", "a-big-one"), want: "0123456789abcdef"},
		{name: "job-none", path: query("/queues/idle/job", "id", "nobody"), want: "nobody", fail: true},
		{name: "shards", path: "/shards", want: "orders"},
		{name: "nodes", path: "/nodes", want: "n2"},
		{name: "plan", path: "/plan", want: "n1"},
		{name: "plan-add", path: query("/plan", "add", "n4"), want: "n4"},
		{name: "plan-remove", path: query("/plan", "remove", "n2"), want: "n2"},
		{name: "redis", path: "/redis", want: "noeviction"},
		{name: "nowhere", path: "/nowhere", want: "nowhere", fail: true},
		{name: "nowhere-queue", path: "/queues/nobody", want: "nobody", fail: true},
	}
	for _, one := range []string{"", "/jobs", "/jobs?q=later", "/jobs?by=id", "/in-flight", "/blocked", "/morgue", "/errors", "/runs",
		"/days", "/rules"} {
		name := "long" + strings.NewReplacer("/", "-", "?", "-", "=", "-").Replace(one)
		list = append(list, page{name: name, path: "/queues/" + longest + one, want: longest[:20]})
	}
	wide := strings.Repeat("W", lowkiq.MaxIDBytes)
	list = append(list,
		page{name: "long-job", path: query("/queues/"+longest+"/job", "id", "later-"+wide[6:]), want: "later-"},
		page{name: "long-found", path: query("/search", "id", hostile[0]), want: "What was searched"},
		page{name: "search", path: query("/search", "q", "bad-00"), want: "What was searched"},
		page{name: "search-beginning", path: query("/search", "q", "later*"), want: "ids that begin with later"},
		page{name: "search-none", path: query("/search", "q", "tag:nobody"), want: "Nothing matches"},
		page{name: "changes-cluster", path: "/changes?by=cluster", want: "New leaders"},
		page{name: "long-workflow", path: "/workflow?id=" + longest[:workflow.MaxID], want: longest[:20]},
		page{name: "long-recurring", path: "/recurring/" + longest, want: longest[:20]},
	)
	for i, id := range hostile {
		list = append(list, page{name: fmt.Sprint("job-hostile-", i), path: query("/queues/orphan/job", "id", id)})
	}
	return list
}

// TestPages looks at every page as each kind of person would, on one node after the other.
func TestPages(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	names := []string{"n1", "n2", "n3"}
	w := newWorld(t, names...)
	w.fill()
	for round, l := range looks {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			b := newTab(t, browser, l)
			for i, p := range pages() {
				if p.want == "" && round%3 != 0 {
					continue // hostile ids need not be looked at in all four ways
				}
				t.Run(p.name, func(t *testing.T) {
					b.t = t
					b.check(w.url(names[i%len(names)]), p)
				})
			}
			b.t = t
		})
	}
}

// check opens a page, waits until it is whole, and looks at it.
func (b *tab) check(node string, p page) {
	b.t.Helper()
	if p.fail {
		b.allow(node + p.path)
	}
	b.open(node + p.path)
	b.sees(fmt.Sprintf("%q", p.want), fmt.Sprintf("document.body.innerText.includes(%q) && !document.body.innerText.includes(%q)", p.want, unread))
	for _, o := range b.objections() {
		b.t.Error(o)
	}
	b.shoot(p.name)
	// A long name takes no more than a part of a table: its first figures are on the screen.
	b.sees("figures beside names", `[...document.querySelectorAll("table.wide tbody tr")].every(r => r.cells[1].getBoundingClientRect().right <= innerWidth + 1)`)
	if b.width < 600 {
		// A table whose rows are blocks of lines does not scroll sideways.
		for _, off := range eval[[]string](b, `[...document.querySelectorAll(".stack td, .stack tbody th, .list td, .list tbody th")].filter(c => c.getBoundingClientRect().right > innerWidth + 1).map(c => c.outerHTML.slice(0, 200))`) {
			b.t.Errorf("off the edge: %s", off)
		}
		// An error is wholly on the screen, and an id on one line.
		b.sees("errors within the width", `[...document.querySelectorAll("td.error")].every(e => e.getBoundingClientRect().right <= innerWidth + 1)`)
		b.sees("ids on one line", `[...document.querySelectorAll(".list th.id a")].every(e => e.getBoundingClientRect().height < 40)`)
	}
	if b.scheme == "light" {
		if unmarked, reached := b.tabThrough(25); len(unmarked) > 0 || reached < 3 {
			b.t.Errorf("by keyboard: %d elements reached, the focus does not show on %q", reached, unmarked)
		}
	}
	for _, fault := range b.wrong() {
		b.t.Error(fault)
	}
}
