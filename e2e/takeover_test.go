//go:build linux

package e2e

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/lab/judge"
)

// TestTakeover checks that the second of two workers for a queue waits until the first is gone. No id is ever with both
// (I1).
func TestTakeover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end       func(*rig, *process) (at time.Duration)
		duplicate int
	}{
		"after kill -9": {(*rig).kill, -1},
		"after SIGTERM": {func(r *rig, p *process) time.Duration {
			at := judge.Now()
			p.terminate(patience)
			return at
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 16)
			a := r.start(settings{Name: "a", TTL: calmTTL, Work: 10 * time.Millisecond})
			feed := r.feed(realEvents(3000))
			feed.share(1, 2)
			r.works(a)
			b := r.start(settings{Name: "b", TTL: calmTTL, Work: time.Millisecond})
			r.leased(b, 1)
			if b.first() != 0 {
				t.Error("the second worker works while the first lives")
			}
			feed.share(2, 2)
			gone := c.end(r, a)
			took := r.works(b) - gone
			if limit := servesAgain + slack; took > limit {
				t.Errorf("got %s until the second took over, want at most %s", took, limit)
			}
			t.Logf("taken over in %s", took)
			feed.finish()
			r.drained()
			b.terminate(patience)
			r.verdict(judge.Config{ShardConcurrency: 1, MaxDuplicates: c.duplicate})
			r.noneFailed()
		})
	}
}
