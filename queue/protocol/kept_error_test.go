package protocol_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestErrorStaysUntilSuccess checks that the last error stays with a job until an attempt succeeds, wherever the job
// waits meanwhile. People look for its text.
func TestErrorStaysUntilSuccess(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	const failure = "no account"
	bury := func(r *rig, policy Policy) {
		r.t.Helper()
		_, flight := r.popOne("a")
		n, err := r.claim.Bury(r.ctx, Burial{Flight: flight, ID: "a", Policy: policy, RetryCount: 3, Error: failure})
		r.noErr(err)
		eq(r.t, "buried", n, 1)
	}
	requeue := func(r *rig) {
		r.t.Helper()
		n, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a")
		r.noErr(err)
		eq(r.t, "requeued", n, 1)
	}
	for name, do := range map[string]func(r *rig){
		"requeue":               func(r *rig) { bury(r, Bury); requeue(r) },
		"requeue to what waits": func(r *rig) { bury(r, Bury); r.push(job("a", "later")); requeue(r) },
		"requeue during a flight": func(r *rig) {
			bury(r, Bury)
			r.push(job("a", "later"))
			_, flight := r.popOne("a")
			requeue(r)
			_, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: "a", Kind: Return})
			r.noErr(err)
		},
		"the rest after skip": func(r *rig) { bury(r, Skip) },
		"the rest after the oldest was killed": func(r *rig) {
			bury(r, Block)
			n, err := browse.Of(r.q).BuryOldest(r.ctx, browse.StateBlocked, "a")
			r.noErr(err)
			eq(r.t, "killed", n, 1)
		},
		"killed beside the morgue": func(r *rig) {
			bury(r, Bury)
			r.push(job("a", "fresh"))
			n, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "a")
			r.noErr(err)
			eq(r.t, "killed", n, 1)
			requeue(r)
		},
		"unblock": func(r *rig) {
			bury(r, Block)
			n, err := browse.Of(r.q).Requeue(r.ctx, browse.StateBlocked, "a")
			r.noErr(err)
			eq(r.t, "unblocked", n, 1)
		},
	} {
		for size, payloads := range map[string]int{"few": 2, "a crowd": 100} {
			t.Run(name+", "+size, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, b, func(cfg *Config) { cfg.Cluster = fmt.Sprint(strings.ReplaceAll(name, " ", "-"), payloads) })
				jobs := make([]lowkiq.Push, payloads)
				for i := range jobs {
					jobs[i] = job("a", fmt.Sprint(i))
				}
				r.push(jobs...)
				do(r)
				again, flight := r.popOne("a")
				eq(t, "error", again.Error, failure)
				eq(t, "retry count", again.RetryCount, -1)
				r.ack(flight, "a")
				r.push(job("a", "new"))
				fresh, _ := r.popOne("a")
				eq(t, "error after success", fresh.Error, "")
			})
		}
	}
}
