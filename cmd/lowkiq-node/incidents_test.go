//go:build unix

package main

import (
	"fmt"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// incident is the situation in which the commands of a page of docs/incidents run.
type incident struct{ queue, commands string }

// Handlers of the queue orders.
const (
	fast = `while read -r line; do echo "{\"ok\":true}"; done`
	slow = `while read -r line; do sleep 0.3; echo "{\"ok\":true}"; done`
	// poisoned fails each job whose id it does not know to be good.
	poisoned = `while read -r line; do case $line in *order-1[78]*) echo "{\"ok\":false,\"error\":\"no account 4711\"}";; *) echo "{\"ok\":true}";; esac; done`
	// deployed fails the first job as a bad version would, and does the others as a good version would.
	deployed = `while read -r line; do if [ -e seen ]; then echo "{\"ok\":true}"; else touch seen; echo "{\"ok\":false,\"error\":\"no account 4711\"}"; fi; done`
)

func incidents() map[string]incident {
	orders := func(more, handler string) string {
		return fmt.Sprintf("shards: 16, %shandler: {exec: [sh, -c, '%s'], processes: 1}", more, handler)
	}
	return map[string]incident{
		"README.md": {queue: orders("", fast)},
		"queue-is-stuck.md": {orders("", fast), `lowkiq-node queues pause orders
for i in 1 2 3; do lowkiq-node push --queue orders --id order-$i --payload 1; done`},
		"lag-grows.md": {orders("", slow), `seq 1 900 | sed 's/.*/{"id":"order-&","payload":1}/' | lowkiq-node push --queue orders`},
		"poison-message.md": {orders("max_retry_count: 0, ", poisoned),
			`for i in 16 17 18; do lowkiq-node push --queue orders --id order-$i --payload '{"account":4711}'; done`},
		"one-customer-floods.md": {orders("", slow),
			`(seq 1 900 | sed 's/.*/{"id":"acme:&","payload":1}/'; echo '{"id":"globex:1","payload":1}') | lowkiq-node push --queue orders`},
		"redis-is-full.md": {orders("", fast), `redis-cli -u "$LOWKIQ_REDIS" CONFIG SET maxmemory 1mb`},
		"redis-failed-over.md": {orders("", fast),
			`lowkiq-node push --queue orders --id order-17 --payload 1 --perform-in 1h
redis-cli -u "$LOWKIQ_REDIS" CONFIG SET maxmemory-policy noeviction`},
		"node-flaps.md":         {queue: orders("", fast)},
		"roll-back-a-deploy.md": {orders("max_retry_count: 0, ", deployed), `lowkiq-node push --queue orders --id order-17 --payload 1`},
	}
}

// The commands of docs/incidents work while the incident happens. What a page shows comes within the patience of the
// test, because a cluster takes time to notice an incident and to recover from it.
func TestIncidentPagesRun(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	for _, program := range []string{"redis-cli", "seq"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: %s is not on PATH, so the commands of docs/incidents were NOT run; install redis-tools and coreutils to run them", program)
		}
	}
	pages := map[string]string{}
	for name, text := range clitest.Documents(t) {
		if dir, page := path.Split(name); dir == "incidents/" {
			pages[page] = text
		}
	}
	known := incidents()
	if got, want := slices.Sorted(maps.Keys(pages)), slices.Sorted(maps.Keys(known)); !slices.Equal(got, want) {
		t.Fatalf("got the pages %q, want %q: each page needs its incident here", got, want)
	}
	for page, text := range pages {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			w := walk(t, "queues:\n  orders: {"+known[page].queue+"}\n")
			for line := range strings.Lines(known[page].commands) {
				if _, err := w.output(line); err != nil {
					t.Fatal(err)
				}
			}
			steps := stepsOf(text)
			for _, s := range steps {
				w.await(s)
			}
			w.end()
			if len(steps) < 2 {
				t.Errorf("got %d blocks of commands, want at least 2: the test looks in the wrong place", len(steps))
			}
		})
	}
}

// await runs commands, and if the page shows their output it repeats them until they print this.
func (w *walked) await(s step) {
	w.t.Helper()
	var printed string
	var err error
	if !clitest.Eventually(func() bool {
		printed, err = "", nil
		for _, line := range s.lines() {
			output, failed := w.output(line)
			if printed += output; failed != nil && err == nil {
				err = failed
			}
		}
		return s.output == "" || err == nil && alike(printed, s.output)
	}) {
		w.t.Errorf("%s\nprints\n%s\nwant\n%s", s.commands, printed, s.output)
	}
	if err != nil {
		w.t.Error(err)
	}
}
