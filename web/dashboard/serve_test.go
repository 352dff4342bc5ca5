package dashboard

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/web"
)

// A browser that watches a page does not keep its node from ending.
func TestPagesEndWithTheNode(t *testing.T) {
	t.Parallel()
	n, err := node.New(node.Config{Name: "n1", Redis: redistest.Start(t).URL()})
	must(t, err)
	listening := make(chan struct{})
	must(t, n.Handle(node.QueueConfig{Name: "orders", Shards: 2}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
		close(listening)
		return nil
	})))
	must(t, web.Serve(n, web.Config{Pages: New}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	_, err = n.Client().Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: 2})
	must(t, err)
	_, err = n.Client().Push(t.Context(), "orders", lowkiq.Push{ID: "a"})
	must(t, err)
	select {
	case <-listening:
	case err := <-ended:
		t.Fatalf("the node ended: %v", err)
	}
	answer, err := http.Get(n.URL() + "/events?of=/queues/orders")
	must(t, err)
	defer answer.Body.Close()
	head := make([]byte, 14)
	if _, err := io.ReadFull(answer.Body, head); err != nil || !strings.HasPrefix(string(head), "event: figures") {
		t.Fatalf("got %q, %v, want the figures", head, err)
	}
	cancel()
	must(t, <-ended)
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Errorf("got %v, want the end of the stream", err)
	}
}
