package runner

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node/internal/limits"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestPermits checks that lanes begin as many calls as were granted while the node asks for more, and none by the answer to a
// request about an old limit. The node reports when calls above the permits have ended. Without a limit no call waits.
func TestPermits(t *testing.T) {
	t.Parallel()
	calmly(t, 10, func(t *testing.T, p *process) {
		var runs atomic.Int64
		end := make(chan struct{})
		limited := Rules{Rules: rules.Rules{ShardConcurrency: 5, Limit: rules.Limit{Concurrency: 3}}}
		s := p.add(Queue{Rules: limited}, func(context.Context, *lowkiq.Batch) error { runs.Add(1); <-end; return nil })
		q := p.runners[s.Shard].queue
		p.give(s, "a", "b", "c", "d", "e")
		want := func(has, busy, waiting, limit int, when string) {
			t.Helper()
			soon()
			if got, want := limitsOf(q).Permits(), (limits.Permits{Has: has, Busy: busy, Waiting: waiting, Limit: limit}); got != want {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		ended := func() bool {
			soon()
			select {
			case <-limitsOf(q).CallsEnded():
				return true
			default:
				return false
			}
		}
		select {
		case <-limitsOf(q).PermitWanted():
			t.Error("somebody wants a permit before there is a lane")
		default:
		}
		want(0, 0, 5, 3, "before anything is granted")
		<-limitsOf(q).PermitWanted()
		limitsOf(q).SetPermits(2, 3)
		want(2, 2, 3, 3, "two are granted")
		end <- struct{}{} // its lane's permit is passed on
		want(2, 2, 2, 3, "one has ended")
		if ended() {
			t.Error("told that calls have ended, and there were not too many")
		}
		limitsOf(q).SetPermits(1, 3) // fewer than run: none begins until fewer do
		want(2, 2, 2, 3, "one of the two is too many")
		end <- struct{}{}
		want(1, 1, 2, 3, "two have ended")
		if !ended() {
			t.Error("not told that there are not too many calls any more")
		}
		end <- struct{}{} // its permit is passed on
		soon()
		changed := *q.rules()
		changed.Limit.Concurrency = 5
		q.Change(changed, 0)
		<-limitsOf(q).PermitWanted()
		limitsOf(q).SetPermits(3, 3) // the answer to what was asked before
		want(1, 1, 1, 5, "after a change")
		changed.Limit = rules.Limit{}
		q.Change(changed, 0)
		close(end)
		soon()
		if runs.Load() != 5 {
			t.Errorf("%d ran, want 5", runs.Load())
		}
	})
}

// TestPermitsAtFirst checks that under a new limit no call begins beside calls from before it until Redis has answered, because
// Redis does not know about those calls.
func TestPermitsAtFirst(t *testing.T) {
	t.Parallel()
	calmly(t, 10, func(t *testing.T, p *process) {
		var runs atomic.Int64
		end := make(chan struct{})
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: 2}}, Concurrency: 2}, func(context.Context, *lowkiq.Batch) error { runs.Add(1); <-end; return nil })
		q := p.runners[s.Shard].queue
		p.give(s, "a", "b", "c", "d")
		soon()
		limited := *q.rules()
		limited.Limit.Concurrency = 3
		q.Change(limited, 2)
		if has := limitsOf(q).Permits(); has.Has != 2 {
			t.Errorf("has %d, want the two that run", has.Has)
		}
		end <- struct{}{} // and the request is lost
		end <- struct{}{}
		soon()
		if runs.Load() != 2 {
			t.Errorf("%d have begun, want 2: nothing was permitted", runs.Load())
		}
		limitsOf(q).SetPermits(1, 3)
		close(end)
		soon()
		s.has(t, 0, "with one permit")
	})
}

// TestAskedForLong checks that a job does not run if it is held or expires while Redis is asked whether its batch may begin.
// The other jobs of the batch run after another question.
func TestAskedForLong(t *testing.T) {
	t.Parallel()
	for _, of := range []Rules{
		{Rules: rules.Rules{Limit: rules.Limit{Rate: rules.Rate{N: 1000, Per: time.Second}, Burst: 1000}}},
		{Rules: rules.Rules{Groups: rules.Groups{By: ":"}}},
	} {
		for what, change := range map[string]func(*Rules){
			"held":    func(r *Rules) { r.Held = rules.NewHeld([]rules.Hold{{ID: "a:1"}}) },
			"expired": nil,
		} {
			calmly(t, 1, func(t *testing.T, p *process) {
				let := map[string]int{}
				asks, letGo := 0, time.Time{}
				long := func() { // the first answer takes long
					if asks++; asks == 1 {
						time.Sleep(50 * time.Millisecond)
					}
					letGo = time.Now()
				}
				rate := func(_ context.Context, batches []int) (protocol.RateGrant, error) {
					long()
					return protocol.RateGrant{Batches: len(batches)}, nil
				}
				groups := newGroupsOfOne(t, func() bool { return false })
				of.BatchSize = 2
				s := p.add(Queue{Rules: of, Limits: p.limits(rate, func(r *protocol.GroupRequest) ([]protocol.GroupGrant, error) {
					long()
					return groups.ask(r)
				})}, func(_ context.Context, b *lowkiq.Batch) error {
					for _, job := range b.Jobs {
						let[job.ID]++
					}
					if of.Limit.Rate.N > 0 && !letGo.Equal(time.Now()) {
						t.Errorf("%s: begins %s after the rate has let it go", what, time.Since(letGo))
					}
					return nil
				})
				expires := time.Now().Add(30 * time.Millisecond).Format(time.RFC3339Nano)
				s.header = func(id string, _ int) lowkiq.Header {
					if id != "a:1" || change != nil {
						return ""
					}
					return lowkiq.Header(`{"expires":"` + expires + `"}`)
				}
				p.give(s, "a:1", "a:2")
				time.Sleep(20 * time.Millisecond)
				if q := p.runners[s.Shard].queue; change != nil {
					now := *q.rules()
					change(&now)
					q.Change(now, 0)
				}
				soon()
				if let["a:1"] != 0 || let["a:2"] != 1 {
					t.Errorf("%s: ran %v, want a:2", what, let)
				}
				if got, want := s.work(), map[string]int{"held": 1}[what]; got != want {
					t.Errorf("%s: %d ids are left, want %d", what, got, want)
				}
			})
		}
	}
}

// oneRate is a rate as Redis keeps it.
type oneRate struct {
	t     *testing.T
	step  time.Duration // of an id
	burst int
	takes time.Duration // to answer

	mu       sync.Mutex
	asking   bool      // guarded by mu
	off      time.Time // when all that was let go is worked off; guarded by mu
	large    int       // ids of the last batch, if they are more than a rest allows; guarded by mu
	requests int       // guarded by mu
}

func (o *oneRate) ask(_ context.Context, batches []int) (grant protocol.RateGrant, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asking {
		o.t.Error("two requests are on their way at once")
	}
	o.asking = true
	o.requests++
	o.mu.Unlock()
	time.Sleep(o.takes)
	o.mu.Lock()
	o.asking = false
	return o.take(batches), nil
}

// take is rate.lua. mu is held.
func (o *oneRate) take(batches []int) (grant protocol.RateGrant) {
	now := time.Now()
	after := func(ids int) time.Time { return now.Add(time.Duration(ids) * o.step) }
	if most := after(max(o.burst, o.large)); o.off.After(most) {
		o.off = most
	}
	if o.off.Before(now) {
		o.off = now
	}
	n := 1
	for _, n = range batches {
		if o.off.Add(time.Duration(n-max(n, o.burst)) * o.step).After(now) {
			break
		}
		o.off = o.off.Add(time.Duration(n) * o.step)
		o.large = 0
		if n > o.burst {
			o.large = n
		}
		grant.Batches++
		n = 1
	}
	grant.Left = max(0, int(after(o.burst).Sub(o.off)/o.step))
	grant.Wait = max(0, o.off.Add(time.Duration(n-max(n, o.burst))*o.step).Sub(now))
	return grant
}

// TestPaced checks that no call begins before the rate allows it, that one request is under way at a time, and that waiting
// lanes hold nothing.
func TestPaced(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var mu sync.Mutex
		var at []time.Duration // guarded by mu
		began := time.Now()
		rate := &oneRate{t: t, step: time.Second, burst: 2, takes: time.Millisecond}
		of := Rules{Rules: rules.Rules{BatchSize: 2, ShardConcurrency: 3, Limit: rules.Limit{Rate: rules.Rate{N: 1, Per: time.Second}, Burst: 2}}}
		s := p.add(Queue{Rules: of, Limits: p.limits(rate.ask, nil)}, func(context.Context, *lowkiq.Batch) error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(began))
			return nil
		})
		p.give(s, "a", "b", "c", "d", "e", "f")
		time.Sleep(time.Second)
		synctest.Wait()
		if use := p.slots.Use(); use.Busy != 0 {
			t.Errorf("%d slots are taken by lanes that wait for the rate, want none", use.Busy)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(at) != 3 {
			t.Fatalf("calls at %s, want three", at)
		}
		for i, d := range at {
			if least := time.Duration(i) * 2 * time.Second; d < least || d > least+50*time.Millisecond {
				t.Errorf("call %d after %s, want %s", i, d, least)
			}
		}
		if rate.requests > 6 {
			t.Errorf("%d requests for three batches, want about one each", rate.requests)
		}
		// Another rate counts at once, whatever the old one has lanes wait for.
		p.give(s, "g", "h", "i", "j")
		time.Sleep(100 * time.Millisecond)
		rate.mu.Lock()
		rate.step, rate.off = time.Microsecond, time.Time{}
		rate.mu.Unlock()
		of.Limit.Rate.N = 1_000_000
		p.runners[s.Shard].queue.Change(of, 0)
		soon()
		synctest.Wait()
		if len(at) != 5 {
			t.Errorf("%d calls after the rate was raised, want 5", len(at))
		}
	})
}

// TestWaitsForTheRateWithNothing checks that lanes that wait for the rate hold neither a slot of the queue nor a slot of the
// node. That is so even if they had slots for the call before, and if their next batch was popped before there was a rate.
func TestWaitsForTheRateWithNothing(t *testing.T) {
	t.Parallel()
	calmly(t, 8, func(t *testing.T, p *process) {
		begun := time.Now()
		rate := func(_ context.Context, batches []int) (protocol.RateGrant, error) {
			if wait := time.Minute - time.Since(begun); wait > 0 {
				return protocol.RateGrant{Wait: wait}, nil
			}
			return protocol.RateGrant{Batches: len(batches), Left: protocol.RatesAtOnce}, nil
		}
		of := Rules{Rules: rules.Rules{ShardConcurrency: 8}}
		s := p.add(Queue{Rules: of, Concurrency: 8, Limits: p.limits(rate, nil)}, func(_ context.Context, b *lowkiq.Batch) error {
			if time.Sleep(time.Microsecond); b.Jobs[0].ID != "quick" {
				time.Sleep(20 * time.Millisecond)
			}
			return nil
		})
		p.give(s, "quick") // so more is popped than there are lanes
		soon()
		q := p.runners[s.Shard].queue
		var ids []string
		for i := range 30 {
			ids = append(ids, fmt.Sprint("job", i))
		}
		p.give(s, ids...)
		time.Sleep(10 * time.Millisecond)
		limited := *q.rules()
		limited.Limit = rules.Limit{Rate: rules.Rate{N: 8, Per: time.Minute}, Burst: 8}
		q.Change(limited, 8)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		s.has(t, 30-8, "while the rate lets none begin")
		if use := p.slots.Use(); use.Busy != 0 {
			t.Errorf("lanes that wait for the rate have %d slots of the node", use.Busy)
		}
		if left := limitsOf(q).Leftovers(); !strings.Contains(left, "calls: 0,") {
			t.Errorf("lanes that wait for the rate have %s; want no call of the queue", left)
		}
		time.Sleep(time.Minute)
		s.has(t, 0, "when it lets all begin")
	})
}

// TestPacedTogether checks that ready lanes share a request if the rate has room.
func TestPacedTogether(t *testing.T) {
	t.Parallel()
	calmly(t, 100, func(t *testing.T, p *process) {
		var runs atomic.Int64
		rate := &oneRate{t: t, step: time.Millisecond, burst: 1000, takes: time.Millisecond}
		limited := rules.Limit{Rate: rules.Rate{N: 1000, Per: time.Second}, Burst: 1000}
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: 50, Limit: limited}}, Limits: p.limits(rate.ask, nil)},
			func(context.Context, *lowkiq.Batch) error { runs.Add(1); return nil })
		ids := make([]string, 500)
		for i := range ids {
			ids[i] = strconv.Itoa(i)
		}
		p.give(s, ids...)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if runs.Load() != 500 {
			t.Fatalf("%d ran, want all 500", runs.Load())
		}
		if rate.requests > 300 {
			t.Errorf("%d requests for 500 batches of two at once, want that lanes ask together", rate.requests)
		}
	})
}

// TestPriority checks that a level of priority is a head start of exactly ten seconds where queues wait for slots of the node.
func TestPriority(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]string{29 * time.Second: "high low", 31 * time.Second: "low high"} {
		calmly(t, 1, func(t *testing.T, p *process) {
			var mu sync.Mutex
			var ran []string
			end := make(chan struct{})
			blocker := p.add(Queue{}, func(context.Context, *lowkiq.Batch) error { <-end; return nil })
			tell := func(_ context.Context, b *lowkiq.Batch) error {
				mu.Lock()
				defer mu.Unlock()
				ran = append(ran, b.Jobs[0].ID)
				return nil
			}
			low := p.add(Queue{}, tell)
			high := p.add(Queue{Rules: Rules{Rules: rules.Rules{Priority: 3}}}, tell)
			p.give(blocker, "a")
			soon()
			p.give(low, "low")
			time.Sleep(after)
			p.give(high, "high")
			soon()
			close(end)
			soon()
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(ran, " "); got != want {
				t.Errorf("%s apart: ran %s, want %s", after, got, want)
			}
		})
	}
}

// TestPriorityStarvesNobody checks that a queue of the lowest priority gets a slot within a hundred seconds, beside a queue of
// the highest priority that always waits.
func TestPriorityStarvesNobody(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var ran atomic.Int64 // when low ran, since the beginning
		began, calls := time.Now(), 0
		var high *shard
		high = p.add(Queue{Rules: Rules{Rules: rules.Rules{Priority: 9, ShardConcurrency: 3}}}, func(_ context.Context, b *lowkiq.Batch) error {
			if ran.Load() == 0 {
				calls++
				p.give(high, fmt.Sprint("next", calls))
			}
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		low := p.add(Queue{}, func(context.Context, *lowkiq.Batch) error { ran.Store(int64(time.Since(began))); return nil })
		p.give(high, "a", "b", "c")
		soon()
		p.give(low, "low")
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if at := time.Duration(ran.Load()); at < 80*time.Second || at > 100*time.Second {
			t.Errorf("low ran after %s and %d calls of high, want a bit more than 90 s: its jobs have a head start of so much", at, calls)
		}
	})
}
