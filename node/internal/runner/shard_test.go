package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// shard is a shard of Redis in memory, by the rules of lua/: pop.lua, finish.lua, nack.lua,
// bury.lua, recover.lua, release.lua and claim.lua. Every call to it may be lost, late, doubled or
// slow. What a runner tells it is judged at once.
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
	taken    map[int64][]string // by flights of the claim: what their pops took
	suspects []string           // ids in quarantine that wait
	crashes  map[string]int     // of ids in quarantine
	frozen   time.Time          // until then it answers nothing
	refuses  bool               // it answers that a right is missing
	calls    atomic.Int64
	header   func(id string, n int) lowkiq.Header // of payload n; nil: none
	expired  []string                             // burials of what has expired
	came     map[int64]time.Time                  // when flights of the claim were popped
}

// record is one id: what waits, or is in flight, and what was pushed meanwhile.
type record struct {
	payloads, parked []int
	flight           int64     // 0: it waits
	at               time.Time // since when it waits
	due              time.Time // it waits for that; zero: it is ready
	held             bool      // it waits to be released
	retry            int
}

// fake is a claim on a shard.
type fake struct {
	*shard
	fence  int64
	number int64 // of the last answered pop
	// refused: a request was; acks among them may be given up
	refused bool
	hasHeld bool // when it was claimed
}

func (s *shard) fault(format string, args ...any) {
	s.h.Fault(s.String()+": "+format, args...)
}

// claim makes a new claim. A seizure puts what is in flight into quarantine.
func (s *shard) claim(seize bool) *fake {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recover(seize)
	s.held, s.popped, s.came = true, 0, map[int64]time.Time{}
	s.fence++
	s.h.Trace("%s is claimed, fence %d, seized %v", s.Shard, s.fence, seize)
	f := &fake{shard: s, fence: s.fence}
	for _, r := range s.ids {
		f.hasHeld = f.hasHeld || r.held
	}
	return f
}

// lose takes the claim away, as a failover does.
func (s *shard) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recover(s.h.IntN(2) == 0)
	s.held = false
	s.h.Trace("%s loses its claim", s.Shard)
}

func (s *shard) recover(seize bool) {
	flown := 0
	for _, ids := range s.flights {
		flown += len(ids)
	}
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(s.flights))) {
		for _, id := range slices.Backward(s.flights[number]) {
			if crashes, suspect := s.crashes[id]; seize && !suspect {
				s.crashes[id] = 0
			} else if seize && flown == 1 {
				s.crashes[id] = crashes + 1
			}
			s.toHead(id)
		}
	}
	clear(s.flights)
	clear(s.taken)
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

// news is what a push publishes.
type news int

const (
	nothing  news = iota
	isDue         // something is due, and nothing was
	isParked      // something was pushed to an id in flight, for the first time
)

// push adds a payload to an id.
func (s *shard) push(id string, n int) (published news) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ids[id]
	switch {
	case r == nil:
		s.ids[id] = &record{payloads: []int{n}, retry: -1, at: time.Now()}
		if s.ready = append(s.ready, id); len(s.ready) == 1 {
			published = isDue
		}
	case r.flight != 0:
		if r.parked = append(r.parked, n); len(r.parked) == 1 {
			published = isParked
		}
	default:
		r.payloads = append(r.payloads, n)
	}
	return published
}

// release makes held ids due, but for those that are held still.
func (s *shard) release(held func(id string) bool) (any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.ids)) {
		if r := s.ids[id]; r.held && !held(id) {
			r.held, any = false, true
			s.ready = append(s.ready, id)
		}
	}
	return any
}

// suspect puts an id that waits into quarantine, as if it had crashed a worker, beside others or
// alone.
func (s *shard) suspect(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.ready, id); i >= 0 {
		s.ready = slices.Delete(s.ready, i, i+1)
		s.suspects, s.crashes[id] = append(s.suspects, id), s.h.IntN(2)
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
	r.payloads, r.parked, r.retry, r.at = r.parked, nil, -1, time.Now()
	if len(r.payloads) == 0 {
		delete(s.ids, id)
		return
	}
	s.ready = append(s.ready, id)
}

func (s *shard) finish(fence int64, acks []protocol.Acks) {
	for _, a := range acks {
		ids, flight, n := a.IDs, s.flights[a.Flight], len(a.IDs)
		if a.InRow && !a.Runs.Empty() && !rowOf(s.taken[a.Flight], ids) {
			s.fault("flight %d: acks of %q are said to be of a row of %q", a.Flight, ids, s.taken[a.Flight])
		}
		switch {
		case a.Rest:
			ids = slices.Clone(flight)
		case a.InRow && a.Runs.Lines() == n && n <= len(flight) && flight[0] == ids[0] && flight[n-1] == ids[n-1]:
			ids = slices.Clone(flight[:n]) // as complete.lua does
		}
		for _, id := range ids {
			if !s.out(a.Flight, id) {
				continue
			}
			if fate := s.h.judge.fate(call{s.Shard, fence, a.Flight, id}); !fate.succeeded || !slices.Equal(fate.payloads, s.ids[id].payloads) {
				s.fault("flight %d: %s is acknowledged and not done (I2)", a.Flight, id)
			}
			s.told(a, id)
			delete(s.crashes, id)
			s.rest(id)
		}
	}
}

// rowOf reports whether ids came one after the other.
func rowOf(taken, ids []string) bool {
	first := slices.Index(taken, ids[0])
	return first >= 0 && len(ids) <= len(taken)-first && slices.Equal(taken[first:first+len(ids)], ids)
}

// called says of which ids somebody waits for the end: in random histories, of some.
func (s *shard) called(id string) bool { return s.h.called && id[len(id)-1]%2 == 0 }

// told looks whether the end of an id comes with what its handler has answered.
func (s *shard) told(a protocol.Acks, id string) {
	if s.h.now().ShardJournal.Runs == journal.All {
		if place := slices.Index(a.IDs, id); place < 0 || a.Rest || !strings.Contains(lineAt(a.Runs, place), id) {
			s.fault("flight %d: %s is acknowledged without its line of the journal", a.Flight, id)
		}
	}
	i := slices.IndexFunc(a.Answers, func(one protocol.Answer) bool { return one.ID == id })
	switch {
	case !s.called(id) && i >= 0 && !a.Answers[i].HasNotes:
		s.fault("flight %d: %s has an answer for nobody", a.Flight, id)
	case s.called(id) && i < 0:
		s.fault("flight %d: %s is acknowledged without its answer", a.Flight, id)
	case s.called(id):
		if got, want := string(a.Answers[i].Result), string(resultOf(s.job(id).Payloads)); got != want || a.Answers[i].Callers == 0 {
			s.fault("flight %d: %s has the answer %q, want %q for its callers", a.Flight, id, got, want)
		}
	}
}

func lineAt(runs journal.Block, place int) string {
	_, from := runs.Cut(place)
	line, _ := from.Cut(1)
	return line.Text()
}

// pop is pop.lua.
func (s *shard) pop(fence, number int64, req protocol.PopRequest) (p protocol.Popped, err error) {
	if number > s.popped+1 {
		return p, errors.New("NUMBER " + strconv.FormatInt(s.popped, 10))
	}
	if req.IDs < 1 {
		s.fault("a pop of %d ids", req.IDs)
	}
	s.finish(fence, req.Acks)
	now := time.Now()
	p = protocol.Popped{Now: now, Flight: number}
	defer func() {
		p.Open = slices.Collect(maps.Keys(s.flights))
		p.Ready, p.Next = len(s.ready), s.next()
	}()
	if number <= s.popped {
		if number == s.popped {
			if len(s.crashes) > len(s.suspects) {
				p.Quarantine = protocol.QuarantineTaken
			}
			for _, id := range s.flights[number] {
				p.Jobs = append(p.Jobs, s.job(id))
			}
		}
		return p, nil
	}
	s.popped, s.came[number] = number, now
	s.promote(now)
	if len(s.crashes) > len(s.suspects) {
		p.Quarantine = protocol.QuarantineWait
		return p, nil
	}
	var take []string
	if len(s.suspects) > 0 && !req.NoSuspect {
		id := s.suspects[0]
		switch {
		case s.crashes[id] > 0 && !req.Slot:
			p.Quarantine = protocol.QuarantineSlot
		case len(s.flights) > 0:
			p.Quarantine = protocol.QuarantineWait
			return p, nil
		default:
			p.Quarantine = protocol.QuarantineTaken
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
		s.taken[number] = slices.Clone(take)
	}
	return p, nil
}

func (s *shard) job(id string) lowkiq.Job {
	r := s.ids[id]
	job := lowkiq.Job{ID: id, RetryCount: r.retry, PerformAt: r.at, WaitingSince: r.at}
	if s.called(id) {
		job.Callers = len(r.payloads)
	}
	for _, n := range r.payloads {
		p := lowkiq.Payload{Score: float64(n), Data: strconv.AppendInt(nil, int64(n), 10)}
		if s.header != nil {
			p.Header = s.header(id, n)
		}
		job.Payloads = append(job.Payloads, p)
	}
	return job
}

// cameAt is when a flight was popped, zero if the claim with that fence is gone.
func (s *shard) cameAt(fence, flight int64) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence != fence {
		return time.Time{}
	}
	return s.came[flight]
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

// next is when the next job is due, zero for none.
func (s *shard) next() (next time.Time) {
	for _, r := range s.ids {
		if !r.due.IsZero() && (next.IsZero() || r.due.Before(next)) {
			next = r.due
		}
	}
	return next
}

// peek is what a poll asks.
func (s *shard) peek() (ready bool, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = s.next()
	return len(s.ready)+len(s.suspects) > 0 || !next.IsZero() && !next.After(time.Now()), next
}

// mostCalls is more than any sound history needs.
const mostCalls = 50_000

var errLost = fmt.Errorf("read tcp: %w", io.EOF)

// send carries one request to the shard, and its answer back, or not.
func (f *fake) send(ctx context.Context, op string, what any, execute func() error) error {
	once := func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.refuses {
			f.refused = true
			return errors.New("NOPERM this user has no permissions")
		}
		if !f.held || f.shard.fence != f.fence {
			owner := protocol.Owner{}
			if f.held {
				owner = protocol.Owner{Instance: "another", Fence: f.shard.fence}
			}
			return &protocol.FencedError{Owner: owner}
		}
		return execute()
	}
	f.mu.Lock()
	if f.calls.Add(1) == mostCalls {
		f.fault("%d requests and no end", mostCalls)
		panic(fmt.Sprintf("history %d, at its end:\n%s", f.h.Seed, f.h.Text(100)))
	}
	way := f.h.fate()
	wait := way.before + max(0, time.Until(f.frozen))
	f.mu.Unlock()
	f.h.Trace("%s: fence %d sends %s %v, %s", f.Shard, f.fence, op, what, way.name)
	time.Sleep(wait)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return f.h.carry(way, once)
}

// confirmed notes what Redis has said that it did.
func (f *fake) confirmed(err error, acks []protocol.Acks) error {
	for _, a := range acks {
		for _, id := range a.IDs {
			f.h.judge.acknowledged(call{f.Shard, f.fence, a.Flight, id}, err == nil)
		}
	}
	return err
}

func (f *fake) Pop(ctx context.Context, req protocol.PopRequest) (protocol.Popped, error) {
	number := f.number + 1
	var p protocol.Popped // of a request that comes late nobody reads it
	err := f.send(ctx, "a pop with acks", req.Acks, func() (err error) {
		p, err = f.pop(f.fence, number, req)
		return err
	})
	if f.confirmed(err, req.Acks) != nil {
		return protocol.Popped{}, err
	}
	f.number = number
	if len(p.Jobs) > 0 {
		f.h.Trace("%s: pop %d brings %d jobs, %q", f.Shard, number, len(p.Jobs), p.Quarantine)
	}
	return p, nil
}

func (f *fake) Ack(ctx context.Context, acks ...protocol.Acks) (int, error) {
	err := f.send(ctx, "acks", acks, func() error {
		ready := len(f.ready)
		f.finish(f.fence, acks)
		if p := f.h.judge.process.Load(); len(f.ready) > ready { // what was pushed meanwhile: ack.lua publishes
			f.h.group.Go(func() { p.wake(f.shard) })
		}
		return nil
	})
	return 0, f.confirmed(err, acks)
}

func (f *fake) SetJournal(journal.Rule) {}

func (f *fake) HasHeld() bool { return f.hasHeld }

func (f *fake) GroupRule() string { return "" }

// Note is note.lua. Nothing waits for a note, and what is late finds the flight ended.
func (f *fake) LastNote(context.Context, ...string) (time.Time, error) { return time.Time{}, nil }

func (f *fake) Note(ctx context.Context, note protocol.Note) error {
	return f.send(ctx, "a note", note.ID, func() error {
		if !slices.Contains(f.flights[note.Flight], note.ID) {
			return lowkiq.ErrEnded
		}
		return nil
	})
}

func (f *fake) Nack(ctx context.Context, nacks ...protocol.Nack) (int, error) {
	return 0, f.send(ctx, "nacks", nacks, func() error {
		for _, n := range nacks {
			if !f.out(n.Flight, n.ID) {
				continue
			}
			r := f.ids[n.ID]
			f.h.judge.back(call{f.Shard, f.fence, n.Flight, n.ID}, n, r.retry)
			if n.Kind == protocol.Return {
				f.toHead(n.ID)
				continue
			}
			if _, suspect := f.crashes[n.ID]; suspect && n.Kind == protocol.Postpone && n.Limited {
				f.suspects = append(f.suspects, n.ID)
				r.payloads, r.parked = append(r.payloads, r.parked...), nil
				continue
			}
			delete(f.crashes, n.ID)
			r.payloads, r.parked = append(r.payloads, r.parked...), nil
			if n.Kind == protocol.Hold {
				r.held = true
				continue
			}
			r.due = time.Now().Add(n.Delay)
			if n.Kind == protocol.Retry {
				r.retry, r.at = n.RetryCount, r.due
			}
		}
		return nil
	})
}

func (f *fake) Bury(ctx context.Context, burials ...protocol.Burial) (int, error) {
	return 0, f.send(ctx, "burials", burials, func() error {
		for _, b := range burials {
			if !f.out(b.Flight, b.ID) {
				continue
			}
			r := f.ids[b.ID]
			gone, left := r.payloads, []int(nil)
			if b.Places != nil {
				gone = nil
				for i, n := range r.payloads {
					if slices.Contains(b.Places, i) {
						gone = append(gone, n)
					} else {
						left = append(left, n)
					}
				}
			}
			if b.Expired > 0 {
				f.expired = append(f.expired, fmt.Sprint(b.ID, b.Places, b.Policy))
			}
			f.h.judge.buried(call{f.Shard, f.fence, b.Flight, b.ID}, b, f.job(b.ID), gone)
			if r.payloads = left; len(left) > 0 {
				f.toHead(b.ID)
				continue
			}
			delete(f.crashes, b.ID)
			f.rest(b.ID)
		}
		return nil
	})
}

func (f *fake) Release(ctx context.Context) (int, error) {
	return 0, f.send(ctx, "a release", "", func() error {
		if n := f.h.judge.running(f.Shard, f.fence); n > 0 {
			f.fault("released while %d handlers run (I1)", n)
		}
		for number, ids := range f.flights {
			for _, id := range ids {
				fate := f.h.judge.fate(call{f.Shard, f.fence, number, id})
				if fate.succeeded && !f.refused && !f.h.timed() {
					f.fault("flight %d: %s is done, and released before its ack", number, id)
				}
			}
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
	w := way{"in time", h.Below(500 * time.Microsecond), h.Below(500 * time.Microsecond)}
	switch {
	case h.calm.Load() && h.lazy && h.IntN(3) == 0:
		w.name, w.after = "slow", h.Below(30*time.Millisecond)
	case !h.calm.Load() && h.IntN(100) < h.faulty:
		w.name = []string{"request lost", "reply lost", "twice", "late", "slow"}[h.IntN(5)]
		if w.name == "slow" || w.name == "late" {
			w.after = h.Below(200 * time.Millisecond)
		}
	}
	return w
}

// carry has a request done as late, and as often, as its way says.
func (h *history) carry(w way, once func() error) error {
	switch w.name {
	case "request lost":
		return errLost
	case "late":
		h.group.Go(func() { time.Sleep(w.after); once() }) //nolint:errcheck // nobody waits for it any more
		return errLost
	case "reply lost":
		once() //nolint:errcheck // lost
		return errLost
	case "twice":
		once() //nolint:errcheck // as go-redis does in a Redis Cluster
	}
	err := once()
	time.Sleep(w.after)
	return err
}
