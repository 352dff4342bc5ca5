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
			in := run.instance()
			await(t, "the probation slot is free", func() bool {
				in.probation.mu.Lock()
				defer in.probation.mu.Unlock()
				return !in.probation.taken
			})
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

// TestProbationSlot: whoever waits gets the slot, also when another who waited before has
// stopped meanwhile; a runner that ends gives it back.
func TestProbationSlot(t *testing.T) {
	t.Parallel()
	in := &instance{probation: &probation{}}
	on := &handled{rules: QueueConfig{ShardConcurrency: 1}}
	// lanes: as if one ran already, so that a wake-up starts none
	worker := func() *runner { return &runner{in: in, on: on, idle: make(chan struct{}), lanes: 1} }
	woken := func(r *runner) bool { r.mu.Lock(); defer r.mu.Unlock(); return r.woken }
	holder, stopped, waiting := worker(), worker(), worker()
	holder.slot = in.probation.take(holder)
	if !holder.slot || in.probation.take(stopped) || in.probation.take(waiting) || in.probation.take(waiting) {
		t.Fatal("the slot is not one")
	}
	if n := len(in.probation.waiting); n != 2 {
		t.Errorf("%d runners wait, want 2", n)
	}
	stopped.stopping = true
	holder.mu.Lock()
	holder.stopping = true
	holder.endLane(nil)
	holder.mu.Unlock()
	await(t, "the waiting runner is woken", func() bool { return woken(waiting) })
	if holder.slot || !in.probation.take(waiting) {
		t.Error("the slot was not given back")
	}
}

// TestProbated: what a pop's answer does to the slot, and whether to pop again at once.
func TestProbated(t *testing.T) {
	t.Parallel()
	acks := []queue.Acks{{Flight: 1}}
	for _, c := range []struct {
		name        string
		slot, alone bool // before; alone: the answer brought an id on probation
		taken       bool // another runner has the slot
		acks        []queue.Acks
		answer      queue.Popped
		wantSlot    bool
		wantAgain   bool
	}{
		{name: "nothing"},
		{name: "slot, no more suspects", slot: true},
		{name: "slot, suspect taken", slot: true, alone: true, answer: queue.Popped{Probation: queue.ProbationTaken}, wantSlot: true},
		{name: "slot kept while flights end, or the suspect would starve", slot: true, answer: queue.Popped{Probation: queue.ProbationWait}, wantSlot: true},
		{name: "acks may be what it waits for", acks: acks, answer: queue.Popped{Probation: queue.ProbationWait}, wantAgain: true},
		{name: "waits for others", answer: queue.Popped{Probation: queue.ProbationWait}},
		{name: "slot free", answer: queue.Popped{Probation: queue.ProbationSlot}, wantSlot: true, wantAgain: true},
		{name: "slot free, other jobs first", answer: queue.Popped{Probation: queue.ProbationSlot, Jobs: make([]lowkiq.Job, 1)}, wantSlot: true},
		{name: "slot taken", taken: true, answer: queue.Popped{Probation: queue.ProbationSlot}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &runner{in: &instance{probation: &probation{taken: c.slot || c.taken}}, slot: c.slot, alone: c.alone, acks: c.acks}
			again := r.probated(c.answer)
			if r.slot != c.wantSlot || again != c.wantAgain {
				t.Errorf("slot %v, again %v; want %v, %v", r.slot, again, c.wantSlot, c.wantAgain)
			}
			if got, want := r.in.probation.taken, c.wantSlot || c.taken; got != want {
				t.Errorf("the node's slot is taken: %v, want %v", got, want)
			}
		})
	}
}
