package node

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
)

// TestOverrunOfClaim: Redis gives the shard of a living node to another one. A handler that
// ignores its cancel leads to OnOverrun, although the lease is fine: it may run beside the
// handler of the new owner (I1).
func TestOverrunOfClaim(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	began, release := make(chan struct{}, 10), make(chan struct{})
	cause, overrun := make(chan error, 10), make(chan string, 1)
	run := start(t, Config{Redis: srv.URL(), TTL: 15 * time.Second, OnOverrun: func(stacks []byte) {
		overrun <- string(stacks)
		close(release)
	}}, QueueConfig{Shards: 1, ShardConcurrency: 2}, func(ctx context.Context, b *lowkiq.Batch) error {
		began <- struct{}{}
		<-release
		cause <- context.Cause(ctx)
		return nil
	}).serving()
	if _, err := p.client.TakeLease(t.Context(), "n2/X.1", []byte("{}"), []byte("{}"), time.Hour); err != nil {
		t.Fatal(err)
	}
	p.push(numbered("a", 0, 1)...)
	receive(t, "the handler", began)
	owner, err := p.Shard(0).Owner(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.Shard(0).Claim(t.Context(), "n2/X.1", queue.Seize, owner)
	if err != nil {
		t.Fatal(err)
	}
	run.instance().runner(lowkiq.Shard{Queue: "orders"}).wake() // the other lane asks Redis
	if stacks := receive(t, "the overrun", overrun); !strings.Contains(stacks, "TestOverrunOfClaim") {
		t.Error("the stacks do not show the handler")
	}
	if err := receive(t, "the handler's end", cause); !errors.Is(err, lowkiq.ErrLeaseLost) {
		t.Errorf("the cause is %v", err)
	}
	if now, err := p.Shard(0).Owner(t.Context()); err != nil || now.Instance != "n2/X.1" || now.Fence != other.Fence {
		t.Errorf("got owner %+v, %v; want the other node's claim untouched", now, err)
	}
	if !strings.HasSuffix(run.instance().name, ".1") {
		t.Errorf("works as %s: the lease was to live", run.instance().name)
	}
}

// TestPatienceWithALostClaim: 0.2 ttl after its cancel, as after that by a lost lease.
func TestPatienceWithALostClaim(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		took time.Duration // of the handler, from its cancel on
		want int           // calls of OnOverrun
	}{
		{"no handler runs", 0, 0},
		{"in time", ttl/5 - 1, 0},
		{"too late", ttl/5 + 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				overruns := 0
				n := &Node{metrics: metrics.New(prometheus.NewRegistry()), cfg: Config{OnOverrun: func([]byte) { overruns++ }}}
				in := &instance{node: n, kicked: make(chan struct{}, 1), keeper: newKeeper(ttl, nil, slog.New(slog.DiscardHandler))}
				r := &runner{in: in}
				r.work, r.cancel = context.WithCancelCause(t.Context())
				r.calls.Add(1)
				r.lose("pop", &queue.FencedError{})
				r.lose("ack", &queue.FencedError{})
				time.Sleep(c.took)
				r.calls.Add(-1)
				time.Sleep(time.Hour)
				synctest.Wait()
				if overruns != c.want {
					t.Errorf("OnOverrun was called %d times, want %d", overruns, c.want)
				}
			})
		})
	}
}
