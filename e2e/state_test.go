//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/reshard"
)

// TestStatesAreExact kills the worker again and again while its handler counts payloads in the states of their ids. A
// part of its calls fails. Each payload counts once, and each call gets its payload's count. Meanwhile the queue is
// resharded again and again.
func TestStatesAreExact(t *testing.T) {
	t.Parallel()
	const ids, callers = 5, 8
	kills := tier.Of(0, 6, 20)
	random := randomly(t)
	r := newRig(t, 4)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var group sync.WaitGroup
	var mu sync.Mutex
	results := map[string][]int{}
	enough := make(chan struct{})
	for c := range callers {
		group.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-enough:
					return
				default:
				}
				push := lowkiq.Push{ID: "id" + strconv.Itoa((c+i)%ids), Payload: fmt.Appendf(nil, "%d of %d", i, c)}
				reply, err := r.client.Call(ctx, queueName, push)
				if err != nil || reply.State != lowkiq.ReplyDone {
					t.Errorf("call %s: got %+v, %v, want it done", push.Payload, reply, err)
					return
				}
				n, _ := strconv.Atoi(string(reply.Result))
				mu.Lock()
				results[push.ID] = append(results[push.ID], n)
				mu.Unlock()
			}
		})
	}
	s := settings{TTL: calmTTL, MaxCrashes: -1, Handler: "count", Work: 2 * time.Millisecond}
	for i := range kills {
		w := r.start(s)
		r.works(w)
		_, err := reshard.Begin(ctx, r.client, reshard.Request{Queue: queueName, Shards: 3 + i%3, Patience: patience})
		if err != nil && !errors.Is(err, reshard.ErrUnderWay) && !errors.Is(err, reshard.ErrSame) && !errors.Is(err, reshard.ErrBusy) {
			t.Error(err)
		}
		<-time.After(upTo(random, 150*time.Millisecond)) // the random instant
		r.kill(w)
	}
	close(enough)
	w := r.start(s)
	group.Wait()
	r.drained()
	for id, counts := range results {
		seen := map[int]int{} // payloads by the count they are in
		for _, n := range counts {
			seen[n]++
		}
		for n, k := range seen { // a run that took k payloads brought the count from n - k to n
			for before := n - k + 1; before < n; before++ {
				if seen[before] > 0 {
					t.Errorf("%s: %d payloads are in the count %d, and %d in %d", id, k, n, seen[before], before)
				}
			}
		}
		reply, err := r.client.Call(ctx, queueName, lowkiq.Push{ID: id, Payload: []byte("last")})
		if want := strconv.Itoa(len(counts) + 1); err != nil || string(reply.Result) != want {
			t.Errorf("%s: got %q, %v counted, want %s", id, reply.Result, err, want)
		}
	}
	w.terminate(patience)
}
