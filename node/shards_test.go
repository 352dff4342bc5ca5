package node

import (
	"context"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// answeredLate is a context that ended after the last answer.
type answeredLate struct{ context.Context }

func (answeredLate) Err() error { return context.Canceled }

// TestAnswerBeforeTheEnd checks that a queue is found if Redis answers and the context ends after the last answer.
func TestAnswerBeforeTheEnd(t *testing.T) {
	n, err := New(Config{Redis: redistest.Start(t).URL(), Name: "n1", TTL: calmTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	handle := lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil })
	if err := n.Handle(QueueConfig{Name: "orders"}, handle); err != nil {
		t.Fatal(err)
	}
	in := newInstance(t.Context(), n, 1)
	found, err := in.findAnew(answeredLate{t.Context()}, n.queues.handled["orders"])
	if err != nil || found == nil || found.Name != "orders" {
		t.Fatalf("findAnew: got %v, %v, want queue orders", found, err)
	}
}
