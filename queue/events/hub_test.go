package events

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Streams of a queue share a subscription and each gets all events. The subscription ends with the
// last stream, and the number of streams is bounded.
func TestHub(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int64
		news := make(chan Event)
		h := NewHub(10, func(ctx context.Context, f Filter) iter.Seq[Event] {
			return func(yield func(Event) bool) {
				open.Add(1)
				defer open.Add(-1)
				for {
					select {
					case <-ctx.Done():
						return
					case e := <-news:
						if e.Queue = f.Queue; !yield(e) {
							return
						}
					}
				}
			}
		})
		var leave []func()
		var first []*Backlog
		for i := range 10 {
			backlog, end, ok := h.Join(fmt.Sprint("q", i%2))
			if !ok {
				t.Fatalf("stream %d is refused", i)
			}
			leave = append(leave, end)
			if i%2 == 0 {
				first = append(first, backlog)
			}
		}
		synctest.Wait()
		if _, _, ok := h.Join("q0"); ok || open.Load() != 2 {
			t.Errorf("%d subscriptions, one stream more: %v; want 2, and no more", open.Load(), ok)
		}
		for i := 1; i < 10; i += 2 {
			leave[i]()
		}
		synctest.Wait()
		if open.Load() != 1 {
			t.Errorf("%d subscriptions, want that of q0", open.Load())
		}
		news <- Event{Kind: Ran}
		synctest.Wait()
		for i, backlog := range first {
			if len(backlog.C()) != 1 {
				t.Fatalf("stream %d heard %d events, want 1", i, len(backlog.C()))
			}
			e := <-backlog.C()
			if text := e.Text(func(*Event) string { return fmt.Sprint("as stream ", i, " says it") }); text != "as stream 0 says it" {
				t.Errorf("stream %d: the event is %q, want that it was put into words once", i, text)
			}
		}
		for i := 0; i < 10; i += 2 {
			leave[i]()
		}
		synctest.Wait()
		if h.streams != 0 || open.Load() != 0 || len(h.feeds) != 0 {
			t.Errorf("%d streams, %d subscriptions are left", h.streams, open.Load())
		}
	})
}
