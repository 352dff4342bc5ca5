package limits

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestWaitsNameTheBound: calls that wait for a slot of their queue wait for a process only if the queue may have as many
// calls as its handler has processes.
func TestWaitsNameTheBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                   string
		processes, concurrency int
		want                   queue.Stage
	}{
		{"as many as processes", 2, 2, queue.ForProcess},
		{"fewer than processes", 8, 2, queue.ForCall},
		{"no processes", 0, 2, queue.ForCall},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := New(Config{Node: NewSlots(16), Processes: c.processes})
				q.Change(rules.Limit{}, rules.Groups{}, c.concurrency)
				for range c.concurrency {
					if err := q.CallSlots().Acquire(t.Context(), time.Time{}); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go q.CallSlots().Acquire(ctx, time.Time{}) //nolint:errcheck // it waits until the test ends
				synctest.Wait()
				if got, want := q.Waits(), (queue.Wait{For: c.want, Of: strconv.Itoa(c.concurrency)}); len(got) != 1 || got[0] != want {
					t.Errorf("got %v, want %v", got, want)
				}
			})
		})
	}
}
