package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
)

// dead claims a shard for an instance of this host whose process is gone. seize says what
// it does to the holder before it.
func dead(t *testing.T, p *producer, s *queue.Shard, number int) *queue.Claim {
	t.Helper()
	who := identity.This()
	who.PID = 1 << 30
	text, err := json.Marshal(identity.Identity{Process: who, TTL: 3000})
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("n0/DEAD%d.%d", s.Index, number)
	if _, err := p.client.TakeLease(t.Context(), name, text, []byte("{}"), time.Minute); err != nil {
		t.Fatal(err)
	}
	owner, err := s.Owner(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cause := queue.Seize
	if owner.Instance == "" {
		cause = queue.Fresh
	}
	claim, err := s.Claim(t.Context(), name, cause, owner)
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// suspects lets ids of a shard crash two workers: all are on probation afterwards, the
// first with a crash of its own.
func suspects(t *testing.T, p *producer, s *queue.Shard) {
	t.Helper()
	for number, want := range []int{3, 1, 0} {
		claim := dead(t, p, s, number)
		if want == 0 {
			return
		}
		got, err := claim.Pop(t.Context(), queue.PopRequest{IDs: 10, Bytes: 1 << 20, Slot: true})
		if err != nil || len(got.Jobs) != want {
			t.Fatalf("the dead worker popped %d jobs, %v; want %d", len(got.Jobs), err, want)
		}
	}
}

// guard checks the rules of probation within handlers. They hold for an id until its first
// answer, which ends its probation: afterwards it may have company.
type guard struct {
	mu       sync.Mutex
	running  map[lowkiq.Shard][]string
	crashers int            // ids with a crash of their own, node-wide, in their first run
	seen     map[string]int // answers, by id
	faults   []string
}

// probes reports whether an id that runs is on probation.
func (g *guard) probes(id string) bool {
	return strings.HasPrefix(id, "suspect") && g.seen[id] == 0
}

func (g *guard) enter(s lowkiq.Shard, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	others := g.running[s]
	for _, other := range others {
		if g.probes(id) || g.probes(other) {
			g.faults = append(g.faults, fmt.Sprintf("%s runs beside %s", id, other))
		}
	}
	g.running[s] = append(others, id)
	if strings.HasPrefix(id, "suspect0") && g.probes(id) {
		if g.crashers++; g.crashers > 1 {
			g.faults = append(g.faults, "two crashers at once: "+id)
		}
	}
}

func (g *guard) leave(s lowkiq.Shard, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[s] = slices.DeleteFunc(g.running[s], func(x string) bool { return x == id })
	if strings.HasPrefix(id, "suspect0") && g.probes(id) {
		g.crashers--
	}
	g.seen[id]++
}

// inShard makes n ids of a shard.
func (p *producer) inShard(s *queue.Shard, prefix string, n int) (jobs []lowkiq.Push) {
	for i := 0; len(jobs) < n; i++ {
		if id := fmt.Sprintf("%s%d-%d", prefix, len(jobs), i); p.Of(id).Index == s.Index {
			jobs = append(jobs, numbered(id, 0, 1)...)
		}
	}
	return jobs
}

// company pushes to a shard while one of its handlers runs, and gives its lanes the time of a
// few round trips to Redis: as much as they need to bring the handler company, if they would.
func (p *producer) company(ctx context.Context, s lowkiq.Shard) error {
	_, err := p.Push(ctx, p.inShard(p.Shard(s.Index), fmt.Sprintf("beside%d-", time.Now().UnixNano()), 1)...)
	for range 10 {
		_, again := p.Stats(ctx)
		err = errors.Join(err, again)
	}
	return err
}

// TestProbation: ids that were in flight at a crash run alone in their shard, those with a
// crash of their own one at a time on the whole node. They hold up nothing for good, while
// others are pushed all the time, and no poll (there is none for an hour) is needed.
func TestProbation(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 4} {
		t.Run(fmt.Sprint(lanes, " lanes"), func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			const shards = 4
			p := open(t, srv.URL(), shards)
			for i := range shards {
				p.push(p.inShard(p.Shard(i), "suspect", 3)...)
				suspects(t, p, p.Shard(i))
				p.push(p.inShard(p.Shard(i), "plain", 20)...)
			}
			g := &guard{running: map[lowkiq.Shard][]string{}, seen: map[string]int{}}
			run := start(t, Config{Redis: srv.URL(), PollInterval: time.Hour, Concurrency: 16}, QueueConfig{
				Shards: shards, ShardConcurrency: lanes, RetryIn: func(int) time.Duration { return 0 },
			}, func(ctx context.Context, b *lowkiq.Batch) error {
				id := b.Jobs[0].ID
				g.enter(b.Shard, id)
				defer g.leave(b.Shard, id)
				if strings.HasPrefix(id, "suspect") && b.Jobs[0].RetryCount < 0 {
					if err := p.company(ctx, b.Shard); err != nil {
						t.Errorf("company for %s: %v", id, err)
					}
					panic("poison, but no crash")
				}
				_, err := p.Stats(ctx) // as long as a pop takes: one that may not come now would be seen
				return err
			})
			run.serving()
			for n := range 10 {
				for i := range shards {
					p.push(p.inShard(p.Shard(i), fmt.Sprintf("more%d-", n), 5)...)
				}
			}
			p.drained()
			g.mu.Lock()
			defer g.mu.Unlock()
			for _, f := range g.faults[:min(5, len(g.faults))] {
				t.Error(f)
			}
			if got := p.stats(); got.Morgue != 0 || got.Failed != 3*shards {
				t.Errorf("%d buried, %d failed; want 0, %d", got.Morgue, got.Failed, 3*shards)
			}
		})
	}
}

// TestGuard shows that the guard objects.
func TestGuard(t *testing.T) {
	t.Parallel()
	g := &guard{running: map[lowkiq.Shard][]string{}, seen: map[string]int{}}
	g.enter(lowkiq.Shard{Index: 1}, "suspect0-1")
	g.enter(lowkiq.Shard{Index: 1}, "plain")
	g.enter(lowkiq.Shard{Index: 2}, "suspect0-2")
	g.enter(lowkiq.Shard{Index: 3}, "plain3")
	g.enter(lowkiq.Shard{Index: 3}, "suspect1-3")
	g.leave(lowkiq.Shard{Index: 3}, "suspect1-3")
	g.enter(lowkiq.Shard{Index: 3}, "suspect1-3") // again, after its answer: it may
	want := []string{"plain runs beside suspect0-1", "two crashers at once: suspect0-2", "suspect1-3 runs beside plain3"}
	if !slices.Equal(g.faults, want) {
		t.Errorf("got %q, want %q", g.faults, want)
	}
}
