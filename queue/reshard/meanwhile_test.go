package reshard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestPushesWhileJobsMove checks that each record is in one list. Producers push ids of the former shards while these move,
// some of them for later. People delete ids, and workers die, so that ids are in quarantine.
func TestPushesWhileJobsMove(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newWorld(t)
	q := r.queue("orders", 16)
	ctx, stop := context.WithCancel(t.Context())
	var producers sync.WaitGroup
	defer producers.Wait()
	defer stop()
	push := func(n, k int) {
		var jobs []lowkiq.Push
		for i := range 10 {
			job := lowkiq.Push{ID: fmt.Sprint("id-", rand.IntN(3000)), Payload: fmt.Append(nil, n, k, i)}
			if rand.IntN(4) == 0 {
				job.PerformAt = time.Now().Add(time.Duration(rand.IntN(4000)) * time.Millisecond)
			}
			jobs = append(jobs, job)
		}
		if _, err := q.Push(ctx, jobs...); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}
	for k := range 100 {
		push(9, k)
	}
	for n := range 4 {
		producers.Go(func() {
			for k := 0; sleep.For(ctx, 10*time.Millisecond) == nil; k++ {
				push(n, k)
			}
		})
	}
	producers.Go(func() {
		for sleep.For(ctx, time.Millisecond) == nil {
			now, err := r.client.Queue(ctx, "orders")
			if err != nil {
				continue
			}
			var ids []string
			for range 20 {
				ids = append(ids, fmt.Sprint("id-", rand.IntN(3000)))
			}
			if _, err := browse.Of(now).Delete(ctx, browse.Anywhere, ids...); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	work := func() {
		entry := r.entry("orders")
		if entry.Reshard != nil {
			return
		}
		now, err := r.client.Queue(ctx, "orders")
		if err != nil {
			return
		}
		for _, s := range now.All() {
			owner, err := s.Owner(ctx)
			if err != nil {
				return
			}
			cause := protocol.Fresh
			if owner.Instance != "" {
				cause = protocol.Seize
			}
			claim, err := s.Claim(ctx, fmt.Sprintf("test/%d.1", rand.IntN(1000)), cause, owner)
			if err != nil {
				continue
			}
			for range 3 {
				popped, err := claim.Pop(ctx, protocol.PopRequest{IDs: 5, Bytes: 1 << 20, Slot: true})
				if err != nil || len(popped.Jobs) == 0 {
					break
				}
				if rand.IntN(6) == 0 { // it dies, and its ids get into quarantine
					return
				}
				if _, err = claim.Ack(ctx, protocol.Acks{Flight: popped.Flight, Rest: true}); err != nil {
					break
				}
			}
			claim.Release(ctx)
		}
	}
	producers.Go(func() {
		for sleep.For(ctx, time.Millisecond) == nil {
			work()
		}
	})
	for _, shards := range []int{64, 20, 7} {
		_, err := Begin(t.Context(), r.client, Request{Queue: "orders", Shards: shards})
		r.must(err)
		r.drive(r.driver(r.client), "orders")
		report, err := audit.Run(t.Context(), r.open(), audit.Config{})
		r.must(err)
		for _, fault := range report.Faults {
			if fault.Kind != "claim-unknown" { // these instances have no leases
				t.Errorf("%d shards: %s", shards, fault)
			}
		}
	}
}
