package runner

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// listed is a claim that keeps the pops that it is asked for.
type listed struct {
	*noting
	mu   sync.Mutex
	pops []queue.PopRequest
}

func (l *listed) Pop(ctx context.Context, req queue.PopRequest) (queue.Popped, error) {
	l.mu.Lock()
	l.pops = append(l.pops, req)
	l.mu.Unlock()
	return l.noting.Pop(ctx, req)
}

// list has a shard's runner note its pops. The runner rests.
func (p *process) list(s *shard) *listed {
	soon()
	r := p.runners[s.Shard]
	l := &listed{noting: r.claim.(*noting)}
	r.claim = l
	return l
}

// TestGather: lanes that come within companyWait of the first one go on together, and know how many
// they are. No more than companyMost do.
func TestGather(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c company
		var all sync.WaitGroup
		begun := time.Now()
		for _, lane := range []struct {
			comes, goes time.Duration
			lanes       int
		}{{0, 500, 3}, {100, 500, 3}, {499, 500, 3}, {501, 1001, 2}, {600, 1001, 2}, {2000, 2500, 1}} {
			all.Go(func() {
				time.Sleep(lane.comes * time.Microsecond)
				n := c.gather()
				if took := time.Since(begun); n != lane.lanes || took != lane.goes*time.Microsecond {
					t.Errorf("who comes after %d µs goes with %d after %s, want %d after %d µs", lane.comes, n, took, lane.lanes, lane.goes)
				}
			})
		}
		all.Wait()
		begun = time.Now()
		var together, alone atomic.Int64
		for range companyMost + 1 {
			all.Go(func() {
				switch n, took := c.gather(), time.Since(begun); {
				case n == companyMost && took == 0:
					together.Add(1)
				case n == 1 && took == companyWait:
					alone.Add(1)
				}
			})
		}
		all.Wait()
		if together.Load() != companyMost || alone.Load() != 1 {
			t.Errorf("%d go at once, and %d later alone, want %d and 1", together.Load(), alone.Load(), companyMost)
		}
	})
}

// TestPopsOfSlowCalls: lanes whose calls take long pop for each other when these end at about the
// same time. So a round of calls costs one pop, which takes acks along.
func TestPopsOfSlowCalls(t *testing.T) {
	t.Parallel()
	const rounds, lanes = 10, 10
	for name, c := range map[string]struct {
		spread time.Duration // between the ends of two lanes
		round  time.Duration // what it takes at most
		pops   int           // at most
	}{
		"together":            {10 * time.Microsecond, 102 * time.Millisecond, rounds + 1},
		"one after the other": {2 * time.Millisecond, 122 * time.Millisecond, 2 * rounds},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calmly(t, lanes, func(t *testing.T, p *process) {
				s := p.add(Queue{Rules: Rules{ShardConcurrency: lanes}}, func(_ context.Context, b *lowkiq.Batch) error {
					n, err := strconv.Atoi(b.Jobs[0].ID)
					time.Sleep(100*time.Millisecond + time.Duration(n%lanes)*c.spread)
					return err
				})
				list := p.list(s)
				begun := time.Now()
				for n := range rounds * lanes {
					s.push(strconv.Itoa(n), 0)
				}
				p.runners[s.Shard].Wake()
				for s.work() > 0 && time.Since(begun) < time.Minute {
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(begun); took > rounds*c.round+10*time.Millisecond {
					t.Errorf("took %s, want %s for each of %d rounds", took, c.round, rounds)
				}
				company, acks := 0, 0
				for _, req := range list.pops {
					company += min(1, req.Company)
					acks += min(1, len(req.Acks))
				}
				if n := len(list.pops); n > c.pops || company < rounds-1 || acks < rounds-1 {
					t.Errorf("%d pops, %d in company, %d with acks: want one with both for each of %d rounds", n, company, acks, rounds)
				}
			})
		})
	}
}

// TestNoCompany: a pop for a shard that rested waits for nobody, nor does one after fast calls.
func TestNoCompany(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{time.Millisecond, 200 * time.Millisecond} {
		calmly(t, 4, func(t *testing.T, p *process) {
			s := p.add(Queue{Rules: Rules{ShardConcurrency: 2}}, func(context.Context, *lowkiq.Batch) error {
				time.Sleep(takes)
				return nil
			})
			list := p.list(s)
			ids := []string{"a", "b", "c", "d", "e"}
			if takes >= 100*companyWait {
				ids = ids[:1] // more than one round would go on in company
			}
			for range 5 {
				p.give(s, ids...)
				time.Sleep(time.Second)
			}
			s.has(t, 0, "in the end")
			for _, req := range list.pops {
				if req.Company != 0 {
					t.Errorf("calls of %s: a pop with company %d", takes, req.Company)
				}
			}
		})
	}
}

// TestStoppedInCompany: a runner that is stopped while it waits for company pops nothing more.
func TestStoppedInCompany(t *testing.T) {
	t.Parallel()
	calmly(t, 4, func(t *testing.T, p *process) {
		s := p.add(Queue{}, sleepy)
		list := p.list(s)
		p.give(s, "slow0", "slow1", "slow2")
		waits := func() bool {
			p.company.mu.Lock()
			defer p.company.mu.Unlock()
			return p.company.next != nil
		}
		for end := time.Now().Add(time.Second); !waits(); time.Sleep(companyWait / 10) {
			if time.Now().After(end) {
				t.Fatal("it does not wait for company")
			}
		}
		before := len(list.pops)
		<-p.runners[s.Shard].Stop()
		soon()
		list.mu.Lock()
		defer list.mu.Unlock()
		if n := len(list.pops) - before; n != 0 {
			t.Errorf("%d pops after it was stopped", n)
		}
	})
}
