package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestMorgueIsTrimmed checks that the morgue keeps the ids that were buried last, by the configuration and then by settings.
// Without a rule it keeps all ids.
func TestMorgueIsTrimmed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	run := start(t, Config{Redis: srv.URL(), trimEvery: 10 * time.Millisecond},
		QueueConfig{Shards: 1, Rules: rules.Rules{MaxRetryCount: -1, Exhausted: "bury", Morgue: rules.Morgue{Keep: 3}}},
		func(context.Context, *lowkiq.Batch) error { return errors.New("no") }).serving()
	buried := func() (ids []string) {
		page, err := browse.Of(p.Queue).Page(t.Context(), browse.Query{State: browse.StateMorgue, Range: browse.Range{Limit: 100}})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Jobs {
			ids = append(ids, j.ID)
		}
		return ids
	}
	bury := func(ids ...string) {
		for _, id := range ids { // one after the other, or they are as old as each other
			p.push(lowkiq.Push{ID: id, Payload: []byte("1")}, lowkiq.Push{ID: id, Payload: []byte("2")})
			p.drained()
		}
	}
	same := func(what string, want ...string) {
		t.Helper()
		await(t, what, func() bool {
			got := map[string]bool{}
			for _, id := range buried() {
				got[id] = true
			}
			for _, id := range want {
				if !got[id] {
					return false
				}
			}
			return len(got) == len(want)
		})
	}
	bury("a", "b", "c", "d", "e")
	same("three are kept", "c", "d", "e")
	p.set(rules.Change{}, "morgue", `"all"`)
	run.renew()
	await(t, "the rule is in force", func() bool { return run.queues.handled["orders"].rulesNow().Morgue == rules.Morgue{} })
	bury("f", "g")
	same("all are kept", "c", "d", "e", "f", "g")
	p.set(rules.Change{}, "morgue", `{"for":"1s"}`)
	run.renew()
	same("none is kept for longer than a second")
	stats, err := p.Queue.Stats(t.Context())
	if err != nil || stats.Morgue != 0 {
		t.Errorf("got %d payloads in the morgue, %v, want none", stats.Morgue, err)
	}
	await(t, "14 payloads are counted", func() bool { return testutil.ToFloat64(run.queues.handled["orders"].metrics.Trimmed) == 14 })
}
