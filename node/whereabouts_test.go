package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// scarce is a handler whose calls need one of a few processes.
type scarce struct {
	lowkiq.HandlerFunc
	free chan struct{}
}

func (s scarce) Processes() int { return cap(s.free) }

func (s scarce) Reserve(ctx context.Context) (with func(context.Context) context.Context, leave func(), err error) {
	select {
	case s.free <- struct{}{}:
		return func(ctx context.Context) context.Context { return ctx }, func() { <-s.free }, nil
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

// TestWhereabouts checks that any node can tell of ids in flight which id is in a call, which ids wait for a process, for the
// queue's concurrency or the node's, and which ids wait behind such an id. Ids behind an id in a call go back.
func TestWhereabouts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules QueueConfig
		slots int
		want  string // of the id that is next in its shard, and no handler has
	}{
		"processes":           {want: "it waits for a process of n1/"},
		"queue's concurrency": {rules: QueueConfig{Rules: rules.Rules{Concurrency: 1}}, want: "it waits for a handler of n1/"},
		"node's concurrency":  {slots: 1, want: "the node is at its concurrency"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			p := open(t, srv.URL(), 2)
			const ids, quick = 60, 6 // the first ones are done at once, so that much is popped then
			p.ids("a", ids)
			var calls atomic.Int64
			begun, release := make(chan string, ids), make(chan struct{})
			block := lowkiq.HandlerFunc(func(_ context.Context, b *lowkiq.Batch) error {
				if calls.Add(1) > quick {
					begun <- b.Jobs[0].ID
					<-release
				}
				return nil
			})
			handler := lowkiq.Handler(block)
			if name == "processes" {
				handler = scarce{block, make(chan struct{}, 1)}
			}
			c.rules.Shards = 2
			n1 := startHandler(t, Config{Name: "n1", Redis: srv.URL(), Concurrency: c.slots}, c.rules, handler).serving()
			other := start(t, Config{Name: "n2", Redis: srv.URL()}, QueueConfig{Name: "mail", Shards: 1}, nothing).serving()
			handled := receive(t, "a handler call", begun)
			t.Cleanup(func() { close(release); p.drained() })
			for _, n := range []*running{n1, other} {
				await(t, "each id is where it is", func() bool {
					got := map[string]int{}
					for i := range ids {
						id := fmt.Sprint("a", i)
						reason, err := n.Cluster().Why(t.Context(), p.Queue, id)
						if err != nil {
							t.Fatal(err)
						}
						switch {
						case strings.Contains(reason.Reason, "a handler of n1/") && id == handled:
							got["handled"]++
						case strings.Contains(reason.Reason, c.want):
							got["next"]++
						case strings.Contains(reason.Reason, "it waits for others of its shard that were popped before it"):
							got["behind"]++
						case reason.State == string(browse.StateReady) || reason.State == "absent":
							got["not popped, or done"]++
						}
					}
					return got["handled"] == 1 && got["next"] == 1 && got["behind"]+got["not popped, or done"] == ids-2
				})
			}
		})
	}
}

// TestWhereaboutsWhileItWorks checks that questions during work find no contradiction.
func TestWhereaboutsWhileItWorks(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	n := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 2, Rules: rules.Rules{ShardConcurrency: 4, BatchSize: 3}}, func(_ context.Context, b *lowkiq.Batch) error {
		for i := range b.Jobs {
			b.Jobs[i] = lowkiq.Job{} // a handler may do that
		}
		b.Jobs = nil
		return nil
	}).serving()
	p := open(t, srv.URL(), 2)
	seen := map[protocol.Stage]bool{}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline) && !(seen[protocol.Handled] && seen[protocol.Behind]); {
		p.ids("a", 200)
		for p.stats().Jobs.Total() > 0 {
			for i := range 200 {
				id := fmt.Sprint("a", i)
				seen[n.instance().wakeups.locateOrCancel(p.Of(id).Shard, id, nil).Stage] = true
			}
		}
	}
}

// TestWhereaboutsUnanswered checks that a question to a node that does not answer ends in time, without an error.
func TestWhereaboutsUnanswered(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	if got, err := p.client.Whereabouts(t.Context(), "n9/X.1", p.Shard(0), "a", time.Minute); err != nil || got != (protocol.Whereabouts{}) {
		t.Errorf("nobody listens: got %+v, %v; want nothing", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	wakes := p.client.NewWakes(ctx, "n9/X.1")
	heard, ended := make(chan protocol.Wake, 10), make(chan error, 1)
	go func() { ended <- wakes.Run(ctx, func(w protocol.Wake) { heard <- w }) }()
	var w protocol.Wake
	await(t, "a question is heard, and its answer waited for in vain", func() bool {
		began := time.Now()
		got, err := p.client.Whereabouts(t.Context(), "n9/X.1", p.Shard(0), `a "b"`+"\n c", 200*time.Millisecond)
		if err != nil || got != (protocol.Whereabouts{}) {
			t.Fatalf("got %+v, %v; want nothing", got, err)
		}
		select {
		case w = <-heard:
			return time.Since(began) >= 200*time.Millisecond
		default:
			return false
		}
	})
	if w.Asked == nil || w.Asked.ID != `a "b"`+"\n c" || w.Asked.Shard != p.Shard(0).Shard {
		t.Errorf("got %+v, want the question for that id", w)
	}
	srv.Stop()
	if _, err := p.client.Whereabouts(t.Context(), "n9/X.1", p.Shard(0), "a", time.Minute); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("redis is away: got %v, want an error that says so", err)
	}
	cancel()
	if err := receive(t, "the end", ended); err != nil {
		t.Error(err)
	}
}
