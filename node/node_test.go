package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

func TestFirst(t *testing.T) {
	srv := redistest.Start(t)
	n, err := New(Config{Name: "n1", Redis: srv.URL(), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		t.Fatal(err)
	}
	var count atomic.Int64
	done := make(chan struct{})
	err = n.Handle(QueueConfig{Name: "orders", Shards: 5}, lowkiq.HandlerFunc(func(ctx context.Context, b *lowkiq.Batch) error {
		if count.Add(int64(len(b.Jobs))) == 100000 {
			close(done)
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()
	for n.current.Load() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	q, err := n.Client().Queue(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	jobs := make([]lowkiq.Push, 100000)
	for i := range jobs {
		jobs[i] = lowkiq.Push{ID: fmt.Sprint("id", i), Payload: []byte("0123456789abcdef")}
	}
	t0 := time.Now()
	if _, err := q.Push(ctx, jobs...); err != nil {
		t.Fatal(err)
	}
	t.Log("pushed", time.Since(t0))
	<-done
	t.Log("drained", time.Since(t0))
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
