package runner

import (
	"context"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestHeldBack checks that a held id goes back without a call, while other ids of its pop run. A pop that is under way, and may
// not have seen the end of its flight, is repeated.
func TestHeldBack(t *testing.T) {
	t.Parallel()
	calmly(t, 10, func(t *testing.T, p *process) {
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{BatchSize: 2}, Held: rules.NewHeld([]rules.Hold{{ID: "b"}, {Prefix: "d"}})}}, func(_ context.Context, b *lowkiq.Batch) error {
			for _, job := range b.Jobs {
				if job.ID == "b" || job.ID == "d1" {
					t.Errorf("%s runs, and is held", job.ID)
				}
			}
			return nil
		})
		p.give(s, "a", "b", "c", "d1", "e")
		soon()
		s.has(t, 2, "with two of five held")
		r := p.runners[s.Shard]
		if _, now := r.ShouldReleaseHeld(p.Now()); now {
			t.Error("what is held is looked through, and nothing has changed since it was put back")
		}
		later := New(p.Process, r.queue, s.Shard, 2, &fake{shard: s, fence: 2, hasHeld: true})
		asked := p.Now()
		time.Sleep(time.Second)
		if _, now := later.ShouldReleaseHeld(asked); now {
			t.Error("what another owner has put back is looked through by holds that were read before the claim")
		}
		if _, now := later.ShouldReleaseHeld(p.Now()); !now {
			t.Error("what is held is not looked through after a claim that found some")
		}
		if _, again := later.ShouldReleaseHeld(p.Now()); again {
			t.Error("it is looked through again, and nothing has changed")
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.state.phase = popping
		r.state.flights.add(protocol.Popped{Flight: 99, Jobs: []lowkiq.Job{{ID: "b"}}})
		if !r.returnHeld() || r.state.phase != repopping || len(r.state.flights.waiting) > 0 || r.state.flights.open[99] != 0 {
			t.Errorf("phase %d, waiting %v, open %v: want that the pop is done again, and nothing of the flight", r.state.phase, r.state.flights.waiting, r.state.flights.open)
		}
		r.state.phase = resting
		s.release(func(string) bool { return false })
		r.queue.Change(Rules{Rules: rules.Rules{BatchSize: 2, ShardConcurrency: 1, Prefetch: 100, MaxRetryCount: 1}, FormatError: error.Error}, 0)
		if _, now := r.ShouldReleaseHeld(p.Now()); !now {
			t.Error("what is held is not looked through after a change")
		}
	})
}

// TestHeldWhileItWaits checks that an id goes back at once if it is held while its batch waits for a call. Other ids of the
// batch run.
func TestHeldWhileItWaits(t *testing.T) {
	t.Parallel()
	calmly(t, 10, func(t *testing.T, p *process) {
		busy := make(chan struct{})
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{BatchSize: 1, ShardConcurrency: 3}}, Concurrency: 1}, func(_ context.Context, b *lowkiq.Batch) error {
			if b.Jobs[0].ID == "b" {
				t.Error("b runs, and is held")
			}
			<-busy
			return nil
		})
		p.give(s, "a")
		soon()
		p.give(s, "b", "c")
		soon()
		r := p.runners[s.Shard]
		another := *r.queue.rules()
		another.Held = rules.NewHeld([]rules.Hold{{ID: "b"}})
		r.queue.Change(another, 1)
		r.ApplyRules()
		soon()
		s.mu.Lock()
		if held := s.ids["b"].held; !held {
			t.Error("b waits for a call still, and is held")
		}
		s.mu.Unlock()
		close(busy)
		soon()
		s.has(t, 1, "but the held one")
	})
}

// TestHeldBehindALaneThatWaits checks that a held id goes back at once from behind a batch that waits for a call, also if the
// hold comes while a lane is about to wait.
func TestHeldBehindALaneThatWaits(t *testing.T) {
	t.Parallel()
	for _, early := range []bool{false, true} {
		calmly(t, 1, func(t *testing.T, p *process) {
			busy := make(chan struct{})
			other := p.add(Queue{}, func(context.Context, *lowkiq.Batch) error { <-busy; return nil })
			s := p.add(Queue{}, func(_ context.Context, b *lowkiq.Batch) error {
				if b.Jobs[0].ID == "b" {
					t.Error("b runs, and is held")
				}
				return nil
			})
			r := p.runners[s.Shard]
			hold := func() {
				another := *r.queue.rules()
				another.Held = rules.NewHeld([]rules.Hold{{ID: "b"}})
				r.queue.Change(another, 1)
			}
			for range 3 { // so that the next pop takes several ids
				p.give(s, "quick")
				soon()
			}
			p.give(other, "busy")
			soon()
			p.give(s, "a", "b", "c")
			if !early {
				soon()
				if where := r.Whereabouts("b"); where.Stage != protocol.Behind {
					t.Errorf("b is at stage %v, want it behind a", where.Stage)
				}
			}
			hold()
			r.ApplyRules()
			soon()
			s.mu.Lock()
			if !s.ids["b"].held {
				t.Error("b waits behind a batch that waits for a call, and is held")
			}
			s.mu.Unlock()
			close(busy)
			soon()
			s.has(t, 1, "but the held one")
		})
	}
}
