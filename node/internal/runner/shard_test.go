package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// shard is a shard of Redis in memory, by the rules of lua/: pop.lua, finish.lua, nack.lua, bury.lua, recover.lua,
// release.lua and claim.lua. Every call to it may be lost, late, doubled or slow. What a runner tells it is judged at once.
type shard struct {
	lowkiq.Shard
	h *history

	mu       sync.Mutex
	fence    int64 // of the claim; the shard is free if !held
	held     bool
	popped   int64              // number of the last pop under this claim
	ids      map[string]*record // all that is not done
	ready    []string
	flights  map[int64][]string
	suspects []string       // ids in quarantine that wait
	crashes  map[string]int // of ids in quarantine
	frozen   time.Time      // until then it answers nothing
	refuses  bool           // it answers that a right is missing
	calls    int
}

// record is one id: what waits, or is in flight, and what was pushed meanwhile.
type record struct {
	payloads, parked []int
	flight           int64     // 0: it waits
	due              time.Time // it waits for that; zero: it is ready
	retry            int
}

// fake is a claim on a shard.
type fake struct {
	*shard
	fence  int64
	number int64 // of the last answered pop
}

func (s *shard) fault(format string, args ...any) {
	s.h.fault(s.String()+": "+format, args...)
}

// claim makes a new claim. A seizure puts what is in flight into quarantine.
func (s *shard) claim(seize bool) *fake {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recover(seize)
	s.held, s.popped = true, 0
	s.fence++
	s.h.trace("%s is claimed, fence %d, seized %v", s, s.fence, seize)
	return &fake{shard: s, fence: s.fence}
}

// lose takes the claim away, as a failover does.
func (s *shard) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recover(s.h.rnd.IntN(2) == 0)
	s.held = false
	s.h.trace("%s loses its claim", s)
}

func (s *shard) recover(seize bool) {
	flown := 0
	for _, ids := range s.flights {
		flown += len(ids)
	}
	numbers := []int64{}
	for n := range s.flights {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	for _, n := range numbers {
		ids := s.flights[n]
		for i := len(ids) - 1; i >= 0; i-- {
			if _, suspect := s.crashes[ids[i]]; seize && (!suspect || flown == 1) {
				if suspect {
					s.crashes[ids[i]]++
				} else {
					s.crashes[ids[i]] = 0
				}
			}
			s.toHead(ids[i])
		}
	}
	clear(s.flights)
}

func (s *shard) toHead(id string) {
	r := s.ids[id]
	r.flight, r.due = 0, time.Time{}
	r.payloads, r.parked = append(r.payloads, r.parked...), nil
	if _, suspect := s.crashes[id]; suspect {
		s.suspects = slices.Insert(s.suspects, 0, id)
	} else {
		s.ready = slices.Insert(s.ready, 0, id)
	}
}

// push adds a payload to an id.
func (s *shard) push(id string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ids[id]
	switch {
	case r == nil:
		s.ids[id] = &record{payloads: []int{n}, retry: -1}
		s.ready = append(s.ready, id)
	case r.flight != 0:
		r.parked = append(r.parked, n)
	default:
		r.payloads = append(r.payloads, n)
	}
}

// out takes an id out of its flight; false: it is not there, and nothing happens.
func (s *shard) out(number int64, id string) bool {
	i := slices.Index(s.flights[number], id)
	if i < 0 {
		return false
	}
	s.flights[number] = slices.Delete(s.flights[number], i, i+1)
	if len(s.flights[number]) == 0 {
		delete(s.flights, number)
	}
	s.ids[id].flight = 0
	return true
}

// rest is what remains of an id whose payloads are done or buried.
func (s *shard) rest(id string) {
	r := s.ids[id]
	r.payloads, r.parked, r.retry = r.parked, nil, -1
	if len(r.payloads) == 0 {
		delete(s.ids, id)
		return
	}
	s.ready = append(s.ready, id)
}

func (s *shard) finish(fence int64, acks []queue.Acks) {
	for _, a := range acks {
		ids := a.IDs
		if a.Rest {
			ids = slices.Clone(s.flights[a.Flight])
		}
		for _, id := range ids {
			if !s.out(a.Flight, id) {
				continue
			}
			if !s.h.judge.done(call{s.Shard, fence, a.Flight, id}, s.ids[id].payloads) {
				s.fault("flight %d: %s is acknowledged and not done (I2)", a.Flight, id)
			}
			delete(s.crashes, id)
			s.rest(id)
		}
	}
}

// pop is pop.lua.
func (s *shard) pop(fence, number int64, req queue.PopRequest) (p queue.Popped, err error) {
	if number > s.popped+1 {
		return p, errors.New("NUMBER " + strconv.FormatInt(s.popped, 10))
	}
	s.finish(fence, req.Acks)
	now := time.Now()
	p = queue.Popped{Now: now, Flight: number}
	defer func() {
		for n := range s.flights {
			p.Open = append(p.Open, n)
		}
		p.Ready = len(s.ready)
		for _, r := range s.ids {
			if !r.due.IsZero() && (p.Next.IsZero() || r.due.Before(p.Next)) {
				p.Next = r.due
			}
		}
	}()
	if number <= s.popped {
		if number == s.popped {
			if len(s.crashes) > len(s.suspects) {
				p.Probation = queue.ProbationTaken
			}
			for _, id := range s.flights[number] {
				p.Jobs = append(p.Jobs, s.job(id))
			}
		}
		return p, nil
	}
	s.popped = number
	s.promote(now)
	if len(s.crashes) > len(s.suspects) {
		p.Probation = queue.ProbationWait
		return p, nil
	}
	var take []string
	if len(s.suspects) > 0 {
		id := s.suspects[0]
		switch {
		case s.crashes[id] > 0 && !req.Slot:
			p.Probation = queue.ProbationSlot
		case len(s.flights) > 0:
			p.Probation = queue.ProbationWait
			return p, nil
		default:
			p.Probation = queue.ProbationTaken
			take, s.suspects = []string{id}, s.suspects[1:]
		}
	}
	if take == nil {
		n := min(req.IDs, len(s.ready))
		take, s.ready = slices.Clone(s.ready[:n]), s.ready[n:]
	}
	for _, id := range take {
		s.ids[id].flight = number
		p.Jobs = append(p.Jobs, s.job(id))
	}
	if len(take) > 0 {
		s.flights[number] = take
	}
	return p, nil
}

func (s *shard) job(id string) lowkiq.Job {
	r := s.ids[id]
	job := lowkiq.Job{ID: id, RetryCount: r.retry, PerformAt: time.Now()}
	for _, n := range r.payloads {
		job.Payloads = append(job.Payloads, lowkiq.Payload{Score: float64(n), Data: strconv.AppendInt(nil, int64(n), 10)})
	}
	return job
}

func (s *shard) promote(now time.Time) {
	for id, r := range s.ids {
		if !r.due.IsZero() && !r.due.After(now) {
			r.due = time.Time{}
			s.ready = append(s.ready, id)
		}
	}
}

// work is how many ids are not done.
func (s *shard) work() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// peek is what a poll asks.
func (s *shard) peek() (ready bool, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.ids {
		if !r.due.IsZero() && (next.IsZero() || r.due.Before(next)) {
			next = r.due
		}
	}
	return len(s.ready)+len(s.suspects) > 0 || !next.IsZero() && !next.After(time.Now()), next
}

// mostCalls is more than any sound history needs.
const mostCalls = 5000

var errLost = fmt.Errorf("read tcp: %w", io.EOF)

// send carries one request to the shard, and its answer back, or not.
func (f *fake) send(ctx context.Context, op string, execute func() error) error {
	once := func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.refuses {
			return errors.New("NOPERM this user has no permissions")
		}
		if !f.held || f.shard.fence != f.fence {
			owner := queue.Owner{}
			if f.held {
				owner = queue.Owner{Instance: "another", Fence: f.shard.fence}
			}
			return &queue.FencedError{Owner: owner}
		}
		return execute()
	}
	f.mu.Lock()
	if f.calls++; f.calls == mostCalls {
		f.fault("%d requests and no end", f.calls)
		panic(fmt.Sprintf("history %d: %s", f.h.seed, f.h.faults[0]))
	}
	way := f.h.fate()
	wait := way.before + max(0, time.Until(f.frozen))
	f.mu.Unlock()
	f.h.trace("%s: fence %d sends %s, %s", f.shard, f.fence, op, way.name)
	time.Sleep(wait)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch way.name {
	case "request lost":
		return errLost
	case "late":
		f.h.group.Go(func() { time.Sleep(way.after); once() }) //nolint:errcheck // nobody waits for it any more
		return errLost
	case "reply lost":
		once() //nolint:errcheck // lost
		return errLost
	case "twice":
		once() //nolint:errcheck // as go-redis does in a Redis Cluster
	}
	err := once()
	time.Sleep(way.after)
	return err
}

// confirmed notes what Redis has said that it did: to be told once more is a fault.
func (f *fake) confirmed(err error, acks []queue.Acks) error {
	for _, a := range acks {
		for _, id := range a.IDs {
			if !f.h.judge.confirmed(call{f.Shard, f.fence, a.Flight, id}, err == nil) {
				f.fault("flight %d: %s is acknowledged again after Redis has confirmed it", a.Flight, id)
			}
		}
	}
	return err
}

func (f *fake) Pop(ctx context.Context, req queue.PopRequest) (queue.Popped, error) {
	number := f.number + 1
	var p queue.Popped // of a request that comes late nobody reads it
	err := f.send(ctx, fmt.Sprintf("pop %d, acks %v", number, req.Acks), func() (err error) {
		p, err = f.pop(f.fence, number, req)
		return err
	})
	if f.confirmed(err, req.Acks) != nil {
		return queue.Popped{}, err
	}
	f.number = number
	if len(p.Jobs) > 0 {
		f.h.trace("%s: pop %d brings %d jobs, %q", f.shard, number, len(p.Jobs), p.Probation)
	}
	return p, nil
}

func (f *fake) Ack(ctx context.Context, acks ...queue.Acks) (int, error) {
	err := f.send(ctx, fmt.Sprint("ack ", acks), func() error {
		ready := len(f.ready)
		f.finish(f.fence, acks)
		if p := f.h.judge.process.Load(); len(f.ready) > ready { // what was pushed meanwhile: ack.lua publishes
			f.h.group.Go(func() { p.wake(f.shard) })
		}
		return nil
	})
	return 0, f.confirmed(err, acks)
}

func (f *fake) Nack(ctx context.Context, nacks ...queue.Nack) (int, error) {
	return 0, f.send(ctx, fmt.Sprint("nack ", nacks), func() error {
		for _, n := range nacks {
			if !f.out(n.Flight, n.ID) {
				continue
			}
			called, failed := f.h.judge.failed(call{f.Shard, f.fence, n.Flight, n.ID})
			r := f.ids[n.ID]
			if n.Kind == queue.Return {
				if called {
					f.fault("flight %d: %s is returned as new, and a handler had it", n.Flight, n.ID)
				}
				f.toHead(n.ID)
				continue
			}
			if called && !failed {
				f.fault("flight %d: %s is done, and put back", n.Flight, n.ID)
			}
			delete(f.crashes, n.ID)
			r.payloads, r.parked = append(r.payloads, r.parked...), nil
			r.due = time.Now().Add(n.Delay)
			if n.Kind == queue.Retry {
				r.retry = n.RetryCount
			}
		}
		return nil
	})
}

func (f *fake) Bury(ctx context.Context, burials ...queue.Burial) (int, error) {
	return 0, f.send(ctx, fmt.Sprint("bury ", burials), func() error {
		for _, b := range burials {
			if !f.out(b.Flight, b.ID) {
				continue
			}
			f.h.judge.buried(b.ID, f.ids[b.ID].payloads)
			delete(f.crashes, b.ID)
			f.rest(b.ID)
		}
		return nil
	})
}

func (f *fake) Release(ctx context.Context) (int, error) {
	return 0, f.send(ctx, "release", func() error {
		if n := f.h.judge.running(f.Shard, f.fence); n > 0 {
			f.fault("released while %d handlers run (I1)", n)
		}
		f.recover(false)
		f.held = false
		return nil
	})
}

// way is what happens to a request.
type way struct {
	name          string
	before, after time.Duration
}

// fate draws what happens to the next request.
func (h *history) fate() way {
	short := func(most int) time.Duration { return time.Duration(h.rnd.IntN(most)) * time.Microsecond }
	w := way{"in time", short(500), short(500)}
	if h.calm.Load() || h.rnd.IntN(100) >= h.faulty {
		return w
	}
	w.name = []string{"request lost", "reply lost", "twice", "late", "slow"}[h.rnd.IntN(5)]
	if w.name == "slow" || w.name == "late" {
		w.after = short(200_000)
	}
	return w
}

// random is a source of random numbers for several goroutines.
type random struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func (r *random) IntN(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rnd.IntN(n)
}
