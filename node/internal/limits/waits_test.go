package limits

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestWaitsNameTheBound checks that calls that wait for a slot of their queue wait for a process only if the queue may
// have as many calls as its handler has processes.
func TestWaitsNameTheBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                   string
		processes, concurrency int
		want                   protocol.Stage
	}{
		{"as many as processes", 2, 2, protocol.ForProcess},
		{"fewer than processes", 8, 2, protocol.ForCall},
		{"no processes", 0, 2, protocol.ForCall},
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
				if got, want := q.Waits(), (protocol.Wait{For: c.want, Of: strconv.Itoa(c.concurrency)}); len(got) != 1 || got[0] != want {
					t.Errorf("got %v, want %v", got, want)
				}
			})
		})
	}
}
