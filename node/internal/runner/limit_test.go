package runner

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestPermits: lanes begin no call while the node asks, as many as it is granted then, and none by the answer to a request
// about a limit that holds no more; without the limit nothing keeps them.
func TestPermits(t *testing.T) {
	t.Parallel()
	calmly(t, 10, func(t *testing.T, p *process) {
		var runs atomic.Int64
		end := make(chan struct{})
		limited := Rules{ShardConcurrency: 5, Limit: rules.Limit{Concurrency: 3}}
		s := p.add(Queue{Rules: limited}, func(context.Context, *lowkiq.Batch) error { runs.Add(1); <-end; return nil })
		q := p.runners[s.Shard].queue
		p.give(s, "a", "b", "c", "d", "e")
		want := func(busy, waiting, limit int, when string) {
			t.Helper()
			soon()
			if b, w, l := q.Permits(); b != busy || w != waiting || l != limit {
				t.Errorf("%s: %d busy, %d wait, limit %d, want %d, %d, %d", when, b, w, l, busy, waiting, limit)
			}
		}
		select {
		case <-q.Wanting():
			t.Error("somebody wants a permit before there is a lane")
		default:
		}
		want(0, 5, 3, "before anything is granted")
		<-q.Wanting()
		q.Permitted(2, 3)
		want(2, 3, 3, "two are granted")
		end <- struct{}{} // while it asks: one ends, and its lane's permit is passed on, but no more
		want(2, 2, 3, "one has ended")
		q.Permitted(1, 3) // fewer than run: none begins until fewer do
		end <- struct{}{}
		want(1, 2, 3, "two have ended")
		end <- struct{}{} // its permit is passed on
		soon()
		changed := *q.rules()
		changed.Limit.Concurrency = 5
		q.Change(changed, 0)
		<-q.Wanting()
		q.Permitted(3, 3) // the answer to what was asked before
		want(1, 1, 5, "after a change")
		changed.Limit = rules.Limit{}
		q.Change(changed, 0)
		close(end)
		soon()
		if runs.Load() != 5 {
			t.Errorf("%d ran, want 5", runs.Load())
		}
	})
}

// TestPaced: no call begins before the rate allows it, one lane asks at a time, and who waits holds nothing.
func TestPaced(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var mu sync.Mutex
		var at []time.Duration // guarded by mu
		began, asking := time.Now(), false
		free := began // when the next id may be handed out
		rate := func(_ context.Context, n int) (time.Duration, error) {
			if asking {
				t.Error("two lanes ask at once")
			}
			asking = true
			time.Sleep(time.Millisecond)
			asking = false
			if wait := time.Until(free); wait > 0 {
				return wait, nil
			}
			free = time.Now().Add(time.Duration(n) * time.Second)
			return 0, nil
		}
		s := p.add(Queue{Rules: Rules{BatchSize: 2, ShardConcurrency: 3, Limit: rules.Limit{Rate: rules.Rate{N: 1, Per: time.Second}, Burst: 2}}, Rate: rate},
			func(context.Context, *lowkiq.Batch) error {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(began))
				return nil
			})
		p.give(s, "a", "b", "c", "d", "e", "f")
		time.Sleep(time.Second)
		synctest.Wait()
		if use := p.Slots.Use(); use.Busy != 0 {
			t.Errorf("%d slots are taken by lanes that wait for the rate, want none", use.Busy)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(at) != 3 {
			t.Fatalf("calls at %s, want three", at)
		}
		for i, d := range at {
			if least := time.Duration(i) * 2 * time.Second; d < least || d > least+50*time.Millisecond {
				t.Errorf("call %d after %s, want %s", i, d, least)
			}
		}
	})
}

// TestPriority: where queues wait for the node's slots, a level is a head start of ten seconds, no less and no more.
func TestPriority(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]string{29 * time.Second: "high low", 31 * time.Second: "low high"} {
		calmly(t, 1, func(t *testing.T, p *process) {
			var mu sync.Mutex
			var ran []string
			end := make(chan struct{})
			blocker := p.add(Queue{}, func(context.Context, *lowkiq.Batch) error { <-end; return nil })
			tell := func(_ context.Context, b *lowkiq.Batch) error {
				mu.Lock()
				defer mu.Unlock()
				ran = append(ran, b.Jobs[0].ID)
				return nil
			}
			low := p.add(Queue{}, tell)
			high := p.add(Queue{Rules: Rules{HeadStart: 3 * rules.HeadStart}}, tell)
			p.give(blocker, "a")
			soon()
			p.give(low, "low")
			time.Sleep(after)
			p.give(high, "high")
			soon()
			close(end)
			soon()
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(ran, " "); got != want {
				t.Errorf("%s apart: ran %s, want %s", after, got, want)
			}
		})
	}
}
