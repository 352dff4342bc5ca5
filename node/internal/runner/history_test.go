package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/historytest"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestHistories runs runners against shards whose requests are lost, late and doubled, which
// freeze, refuse, and lose their claims, in processes that freeze, lose their leases, pause and
// stop, at random moments. In each history I1, I2 and I3 hold, all that was pushed is done or in
// the morgue soon after the faults end, Redis is left alone then, and every goroutine ends.
//
//	LOWKIQ_HISTORIES=10000 go test -count=1 -run TestHistories ./node/internal/runner ./node/internal/claims
//
// says how many; see historytest for more.
func TestHistories(t *testing.T) {
	historytest.Run(t, 3000, func(_ *testing.T, run *historytest.History) {
		h := newHistory(run)
		h.called = true
		if run.Seed%2 == 0 {
			h.rules.Journal.Runs = journal.All
		}
		h.run()
	})
}

// TestMutations: in each of these copies of the package some history fails.
func TestMutations(t *testing.T) {
	historytest.Mutations(t, [][4]string{
		{"the lease is not looked at before a call", "watchdog.go", "if !c.process.MayWork() {", "if false {"},
		{"what failed is acknowledged", "complete.go", "r.done(batch.Flight, all.Done, end)", "r.done(batch.Flight, batch.Jobs, end)"},
		{"what was stopped is acknowledged", "complete.go", "		if err == nil {\n			done", "		if err != lowkiq.ErrTimeout {\n			done"},
		{"acks are sent twice", "acks.go", "	a.waiting = nil\n	if taken != nil", "	if taken != nil"},
		{"acks without an answer are forgotten", "complete.go", "		r.acks.putBack(acks)\n", ""},
		{"an ack of the rest overtakes an answer", "complete.go", "rest && !named", "rest && (named || !named)"},
		{"lines of the journal are left out", "acks.go", "	a.waiting[last].Runs.Join(runs)\n", ""},
		{"acks that did not come one after the other are taken for a row", "acks.go", "	return place >= 0 && place == a.next\n", "	return true\n"},
		{"an answer is left out", "acks.go", "append(a.waiting[last].Answers, answers...)", "answers"},
		{"a release overtakes acks", "acks.go", "		<-flushing\n", ""},
		{"a batch is not put back", "flights.go", "	f.waiting = append([]flight{{batch.Flight, t.popped, t.place, batch.Jobs}}, f.waiting...)\n", ""},
		{"a pause gives nothing back", "runner.go", "	sent := r.send(", "	nacks = nil\n	sent := r.send("},
		{"a resume while jobs are returned is forgotten", "runner.go", "				continue // the", "				break // the"},
		{"what was given back is not popped again", "runner.go", "		r.state.change(woken) // a pop", "		// a pop"},
		{"a lane that ends while jobs are given back is not missed", "runner.go", "		if r.state.spare() { // a lane", "		if false { // a lane"},
		{"a batch is taken twice", "flights.go", "	first.jobs, first.place = first.jobs[n:], first.place+n\n", "	if first.jobs, first.place = first.jobs[n:], first.place+n; n%3 == 2 {\n		first.jobs = part.jobs\n	}\n"},
		{"the shard is released beside its handlers", "state.go", "	if len(s.turns) == 0 {\n		s.change(lanesEnd)", "	if true {\n		s.change(lanesEnd)"},
		{"a wake-up during a pop is forgotten", "state.go", "return repopping, false", "return p, false"},
		{"a flight's end is no reason to look", "state.go", "return resting, p == waitsForFlights", "return resting, false"},
		{"what a pop has left is not looked for", "state.go", "	s.due = s.due || s.more || again || p.Quarantine != queue.NotQuarantined\n", ""},
		{"a wake-up is no reason to pop", "state.go", "	s.due = s.due || look || e == quarantineEnds\n", "	s.due = s.due || e == quarantineEnds\n"},
		{"a quarantine never ends", "state.go", "		s.change(quarantineEnds)\n", ""},
		{"the quarantine slot is kept", "state.go", "		s.quarantine.give() // also", "		// also"},
		{"who waits for the quarantine slot is not woken", "quarantine.go", "		go other.wake()", "		_ = other"},
		{"an id that was held while its batch waited runs", "runner.go", "case r.holds(batch):", "case r == nil:"},
		{"held ids of which a release does not know are kept", "held.go", "was == nil || was.held != held || ", "was == nil && "},
		{"a hold takes its neighbours out", "flights.go", "cut(i)\n", "from = i + 1\n"},
		{"a handler slot is kept", "lane.go", "		t.slots.give(&t.queue.share)\n", ""},
	})
}

// All histories share the metrics: to make them takes longer than most histories do.
var testMetrics = metrics.New(prometheus.NewRegistry()).Queue("orders")

const testTTL = 3 * time.Second

// history is one run of a process and those after it.
type history struct {
	*historytest.History
	faulty int         // percent of requests with a fault
	calm   atomic.Bool // no faults any more
	shards []*shard
	judge  *judge
	group  sync.WaitGroup // all that the history starts
	paused atomic.Bool
	rules  Rules
	scarce bool
	called bool         // somebody waits for the ends of some ids
	slow   bool         // most calls take long
	lazy   bool         // some answers are late even without faults
	held   atomic.Int64 // when holds were changed last, ns since the start

	mu     sync.Mutex
	pushed map[string]int // payloads by id
}

func newHistory(run *historytest.History) *history {
	h := &history{History: run, faulty: []int{0, 5, 20, 50}[run.IntN(4)], scarce: run.IntN(2) == 0, slow: run.Seed%8 == 7, pushed: map[string]int{}}
	h.judge = &judge{h: h, of: map[call]fate{}, busy: map[string]call{}, last: map[string]int{}}
	for i := range 1 + h.IntN(2) {
		h.shards = append(h.shards, &shard{
			Shard: lowkiq.Shard{Queue: "orders", Index: i}, h: h,
			ids: map[string]*record{}, flights: map[int64][]string{}, taken: map[int64][]string{}, crashes: map[string]int{},
		})
	}
	h.rules = Rules{
		BatchSize: 1 + h.IntN(3), ShardConcurrency: 1 + h.IntN(4), Prefetch: 10, MaxRetryCount: 3 + h.IntN(20), Exhausted: queue.Skip,
		RetryIn:     func(int) time.Duration { return h.Below(100 * time.Millisecond) },
		FormatError: error.Error, InTurn: h.IntN(2) == 0,
	}
	if h.IntN(4) == 0 {
		h.rules.HandlerTimeout = 30 * time.Millisecond
	}
	return h
}

// run lets processes follow one another until the faults end, waits until the last one has done
// all, and stops it.
func (h *history) run() {
	faults := h.Below(4 * time.Second)
	h.lazy = true
	h.group.Go(func() { h.produce(faults) })
	h.group.Go(func() { h.disturb(faults) })
	var p *process
	for seize := false; ; seize = h.IntN(2) == 0 {
		p = h.startProcess(seize)
		if time.Since(h.Start) >= faults {
			break
		}
		time.Sleep(min(h.Below(2*time.Second), faults-time.Since(h.Start)+time.Millisecond))
		if h.IntN(2) == 0 { // told to stop: its successor comes after it
			p.stop()
			continue
		}
		p.end() // its lease is lost: its successor comes when that may be, whatever this one does
	}
	time.Sleep(time.Second)
	h.calm.Store(true)
	h.paused.Store(false)
	h.hold(p, nil)
	for _, s := range h.shards {
		s.mu.Lock()
		s.refuses, s.frozen = false, time.Time{}
		s.mu.Unlock()
	}
	time.Sleep(time.Second) // what is late has come
	p.lookAtAll()
	// From here on no poll finds what a wake-up, an alarm or a flight's end misses.
	push := func(s *shard, id string) {
		h.mu.Lock() // the producer may still be at work
		n := h.pushed[id]
		h.pushed[id]++
		h.mu.Unlock()
		p.hear(s, s.push(id, n))
	}
	for n := range 10 { // wake-ups that meet a pop
		push(h.shards[0], fmt.Sprint("last", n%3))
		switch n {
		case 2:
			if h.IntN(2) == 0 {
				h.hold(p, []rules.Hold{{ID: "last1"}})
				h.shards[0].suspect("last2")
			}
		case 7:
			h.hold(p, nil)
		case 5:
			h.pause(p, h.Below(20*time.Millisecond))
		case 8:
			for i, s := range h.shards {
				push(s, fmt.Sprint("crashed", i))
				s.suspect(fmt.Sprint("crashed", i))
			}
			p.lookAtAll()
		}
		time.Sleep(h.Below(1500 * time.Microsecond))
	}
	for end := time.Now().Add(10 * time.Minute); h.work() > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			for _, s := range h.shards {
				s.fault("something waits for ever: ready %v, suspects %v, flights %v, held %v", s.ready, s.suspects, s.flights, s.held)
			}
			break
		}
	}
	time.Sleep(time.Second)
	for _, s := range h.shards {
		calls := s.calls.Load()
		time.Sleep(time.Minute)
		if n := s.calls.Load() - calls; n > 0 {
			s.fault("%d requests in a minute in which there is nothing to do", n)
		}
	}
	p.stop()
	h.group.Wait()
	for _, s := range h.shards {
		if s.held {
			s.fault("the claim is held at the end")
		}
	}
	h.judge.all(h.pushed)
}

// work is how many ids are not done.
func (h *history) work() (n int) {
	for _, s := range h.shards {
		n += s.work()
	}
	return n
}

// produce pushes, and sends wake-ups of which some are lost.
func (h *history) produce(during time.Duration) {
	ids := 1 + h.IntN(6)
	for range 1 + h.IntN(25) {
		id := fmt.Sprint("id", h.IntN(ids))
		s := h.shards[int(id[2]-'0')%len(h.shards)]
		h.mu.Lock()
		n := h.pushed[id]
		h.pushed[id]++
		h.mu.Unlock()
		published := s.push(id, n)
		if h.IntN(8) == 0 {
			s.suspect(id)
		}
		if p := h.judge.process.Load(); p != nil && (h.calm.Load() || h.IntN(10) > 0) {
			p.hear(s, published)
		}
		time.Sleep(min(h.Below(200*time.Millisecond), during/10))
	}
}

// disturb freezes shards, takes claims away, has requests refused, pauses the queue, and changes its rules.
func (h *history) disturb(during time.Duration) {
	for range h.IntN(6) {
		time.Sleep(h.Below(during / 3))
		if h.calm.Load() {
			return
		}
		s, p := h.shards[h.IntN(len(h.shards))], h.judge.process.Load()
		switch h.IntN(7) {
		case 0:
			s.mu.Lock()
			s.frozen = time.Now().Add(h.Below(time.Second))
			s.mu.Unlock()
		case 1:
			s.lose()
		case 2:
			s.mu.Lock()
			s.refuses = true
			s.mu.Unlock()
			time.Sleep(h.Below(300 * time.Millisecond))
			s.mu.Lock()
			s.refuses = false
			s.mu.Unlock()
		case 3:
			h.pause(p, h.Below(300*time.Millisecond))
		case 4:
			h.change(p)
		case 6:
			for range 20 {
				time.Sleep(h.Below(10 * time.Millisecond))
				h.cancel(h.judge.process.Load())
			}
		case 5:
			h.hold(p, [][]rules.Hold{nil, {{Prefix: "id"}}, {{ID: "id0"}}, {{ID: "id1"}, {ID: "id2"}}}[h.IntN(4)])
		}
	}
}

// cancel ends the run of some id, if one runs.
func (h *history) cancel(p *process) {
	id, why := fmt.Sprint("id", h.IntN(6)), queue.Cancellation{Then: queue.Thens()[h.IntN(4)], By: "ann"}
	for _, r := range p.all() {
		if r.Cancel(id, why) {
			h.Trace("cancelled: %s, then %s", id, why.Then) // nobody holds it: it comes back by itself
		}
	}
}

// hold has people hold these ids, and no others.
func (h *history) hold(p *process, holds []rules.Hold) {
	h.Trace("held: %v", holds)
	h.mu.Lock()
	h.rules.Held = rules.NewHeld(holds)
	now := h.rules
	h.mu.Unlock()
	h.held.Store(int64(time.Since(h.Start)))
	p.queue.Change(now, h.IntN(3))
	for _, r := range p.all() {
		r.Changed()
	}
	if h.IntN(2) == 0 { // else with the next tick: there may be other holds by then
		p.release()
	}
}

// change puts other rules in force.
func (h *history) change(p *process) {
	h.mu.Lock()
	now := h.rules
	h.mu.Unlock()
	now.BatchSize, now.ShardConcurrency = 1+h.IntN(4), 1+h.IntN(4)
	concurrency := h.IntN(3)
	h.Trace("batches of", now.BatchSize, "lanes", now.ShardConcurrency, "calls", concurrency)
	p.queue.Change(now, concurrency)
	for _, r := range p.all() {
		r.Changed()
	}
}

// pause pauses the queue for a time.
func (h *history) pause(p *process, d time.Duration) {
	h.Trace("paused")
	h.paused.Store(true)
	for _, r := range p.all() {
		r.Pause()
	}
	time.Sleep(d)
	h.paused.Store(false)
	h.Trace("resumed")
	h.judge.process.Load().lookAtAll()
}

// process is one instance of a node: what claims, supervises and leases are for runners.
type process struct {
	*Process
	h        *history
	queue    *Queue
	kicked   chan struct{}
	stopping chan struct{}
	ended    chan struct{}
	cancel   context.CancelCauseFunc
	lease    atomic.Int64 // until when it may work, since the history's start
	lanes    sync.WaitGroup

	mu      sync.Mutex
	runners map[lowkiq.Shard]*Runner
}

// newProcess makes a process with this many slots, whose runners are none yet.
func (h *history) newProcess(slots int) *process {
	p := &process{h: h, kicked: make(chan struct{}, 1), stopping: make(chan struct{}), ended: make(chan struct{}), runners: map[lowkiq.Shard]*Runner{}}
	p.lease.Store(int64(100 * time.Hour))
	work, cancel := context.WithCancelCause(context.Background())
	p.cancel = cancel
	p.Process = &Process{
		Work: work, IO: context.Background(), Log: slog.New(slog.DiscardHandler), Lanes: &p.lanes, Slots: NewSlots(slots), Quarantine: &QuarantineSlot{},
		Now: func() time.Duration { return time.Since(h.Start) }, RedisTime: func(d time.Duration) time.Time { return h.Start.Add(d) },
		SawRedisTime: func(time.Time) {}, MayWork: func() bool { return time.Since(h.Start) < time.Duration(p.lease.Load()) },
		Kick: func() {
			select {
			case p.kicked <- struct{}{}:
			default:
			}
		},
		OpFailed: func(_ string, _ lowkiq.Shard, err error) bool { return Refused(err) }, OpDone: func(string, lowkiq.Shard) {},
		Fenced: func(string, func() int64) {}, MayLog: func(string, string) (int, bool) { return 0, false },
	}
	h.judge.process.Store(p)
	return p
}

// startProcess starts a process that claims all shards.
func (h *history) startProcess(seize bool) *process {
	p := h.newProcess(1 + h.IntN(3))
	h.mu.Lock()
	now := h.rules
	h.mu.Unlock()
	q := Queue{Rules: now, Paused: &h.paused, Metrics: testMetrics, Concurrency: h.IntN(3)}
	if h.scarce {
		q.Reserve, q.ProcessWait = p.reserve, testMetrics.Wait
	}
	q.Handler = lowkiq.HandlerFunc(p.handle)
	p.queue = NewQueue(q)
	for _, s := range h.shards {
		p.start(s, seize)
	}
	h.group.Go(p.supervise)
	return p
}

func (p *process) start(s *shard, seize bool) {
	claim := s.claim(seize)
	r := New(p.Process, p.queue, s.Shard, claim.fence, claim)
	r.Subscribed()
	p.mu.Lock()
	p.runners[s.Shard] = r
	p.mu.Unlock()
	r.Wake()
}

func (p *process) all() (list []*Runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.h.shards {
		if r := p.runners[s.Shard]; r != nil {
			list = append(list, r)
		}
	}
	return list
}

// supervise claims anew what was lost, polls while there are faults, and hands everything back in
// the end.
func (p *process) supervise() {
	defer close(p.ended)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-p.stopping:
			p.handBack()
			return
		case <-p.kicked:
		case <-ticker.C:
			if !p.h.calm.Load() {
				p.poll()
			}
			p.release()
		}
		for _, s := range p.h.shards {
			p.mu.Lock()
			r := p.runners[s.Shard]
			p.mu.Unlock()
			fenced, _ := r.Fenced()
			if !fenced && !r.OutOfSync() {
				continue
			}
			<-r.Stop()
			if fenced, _ = r.Fenced(); !fenced {
				r.Release(p.IO) //nolint:errcheck // the next claim tells
			}
			r.Close()
			if p.MayWork() {
				p.start(s, false)
			}
		}
	}
}

func (p *process) handBack() {
	for _, r := range p.all() {
		r.Stop()
	}
	p.lanes.Wait()
	for _, r := range p.all() {
		r.Release(p.IO) //nolint:errcheck // its successor claims it anyhow
		r.Close()
	}
}

func (p *process) poll() {
	for i, r := range p.all() {
		if !r.PollDue(p.Now(), time.Second) {
			continue
		}
		if ready, next := p.h.shards[i].peek(); ready {
			r.Wake()
		} else if !next.IsZero() {
			r.WakeAt(next)
		}
	}
}

// release lets ids go on that nobody holds any more.
func (p *process) release() {
	for _, s := range p.h.shards {
		p.mu.Lock()
		r := p.runners[s.Shard]
		p.mu.Unlock()
		if r == nil {
			continue
		}
		if keep, now := r.ToRelease(); now && s.release(keep) {
			r.Wake()
		}
	}
}

func (p *process) wake(s *shard) {
	p.mu.Lock()
	r := p.runners[s.Shard]
	p.mu.Unlock()
	if r != nil {
		r.Wake()
	}
}

// hear tells the runner of a shard what a push has published.
func (p *process) hear(s *shard, published news) {
	switch published {
	case isDue:
		p.wake(s)
	case isParked:
		p.mu.Lock()
		r := p.runners[s.Shard]
		p.mu.Unlock()
		if r != nil {
			r.Parked()
		}
	}
}

func (p *process) lookAtAll() {
	for _, r := range p.all() {
		r.Wake()
	}
}

// stop drains the process and waits for it.
func (p *process) stop() {
	p.h.Trace("the process stops")
	close(p.stopping)
	<-p.ended
	p.leftovers()
	p.cancel(lowkiq.ErrShutdown)
}

// end lets the lease run out. The process notices some time after it must not work any more; its
// successor seizes the shards 0.3 ttl after that moment.
func (p *process) end() {
	p.h.Trace("the lease ends")
	p.lease.Store(int64(p.Now()))
	notice := p.h.Below(testTTL / 20)
	p.h.group.Go(func() {
		time.Sleep(notice)
		p.cancel(lowkiq.ErrLeaseLost)
		close(p.stopping)
		<-p.ended
		p.leftovers()
	})
	time.Sleep(testTTL * 3 / 10)
}

// reserve is short of processes, and now and then the node freezes in it for longer than its lease
// has.
func (p *process) reserve(ctx context.Context) (func(context.Context) context.Context, func(), error) {
	h := p.h
	switch n := h.IntN(40); {
	case h.calm.Load():
	case n == 0:
		return nil, nil, lowkiq.Postpone{After: 20 * time.Millisecond}
	case n < 4:
		time.Sleep(h.Below(testTTL / 2))
	default:
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-time.After(h.Below(3000 * time.Microsecond)):
		}
	}
	return func(ctx context.Context) context.Context { return ctx }, func() {}, nil
}

var errBoom = errors.New("boom")

// handle is the handler of all jobs: it takes some time, ends with its context, and answers what it
// likes.
func (p *process) handle(ctx context.Context, b *lowkiq.Batch) (answer error) {
	h := p.h
	jobs := slices.Clone(b.Jobs)
	h.judge.enter(p, b)
	for i := range jobs {
		if jobs[i].Callers > 0 { // it counts if the job is done
			b.Answer(jobs[i].ID).Result(resultOf(jobs[i].Payloads))
		}
	}
	kind := h.IntN(40)
	if h.calm.Load() { // it fails now and then, and does nothing worse
		kind = []int{39, 5}[kind/20]
	}
	broken := false
	defer func() { h.judge.leave(b, jobs, answer, broken) }()
	took := time.Duration(0)
	if h.slow {
		took = 2 * longWait
	}
	if h.IntN(2) == 0 {
		took = h.Below(40 * time.Millisecond)
		if h.IntN(6) == 0 { // what waits behind it goes back
			took += longWait
		}
	}
	if h.IntN(4) == 0 && took == 0 {
		b.Note(ctx, jobs[0].ID, lowkiq.Note{Progress: 0.5}) //nolint:errcheck // whatever becomes of it
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		time.Sleep(h.Below(testTTL / 10)) // it may take 0.2 ttl to return
		if h.IntN(2) == 0 {
			return context.Cause(ctx)
		}
		return lowkiq.Failed{jobs[0].ID: context.Cause(ctx)}
	}
	switch {
	case kind == 0:
		return lowkiq.Bury{Reason: "of no use"}
	case kind == 1:
		broken = true
		panic("poison")
	case kind == 2:
		broken = true
		runtime.Goexit()
	case kind < 5:
		return lowkiq.Postpone{After: h.Below(50 * time.Millisecond)}
	case kind < 9:
		return errBoom
	case kind < 13:
		b.Jobs = nil // it may do that
		return lowkiq.Failed{jobs[h.IntN(len(jobs))].ID: errBoom}
	}
	return nil
}

// resultOf is the answer about a job.
func resultOf(payloads []lowkiq.Payload) (result []byte) {
	for i := range payloads {
		result = append(append(result, payloads[i].Data...), ' ')
	}
	return result
}

// leftovers looks at what a process has at its end.
func (p *process) leftovers() {
	if use := p.Slots.Use(); use.Busy != 0 {
		p.h.Fault("%d slots are taken at the end", use.Busy)
	}
	if p.Quarantine.taken || len(p.Quarantine.waiting) > 0 {
		p.h.Fault("the quarantine slot: taken %v, %d wait", p.Quarantine.taken, len(p.Quarantine.waiting))
	}
	p.queue.live.mu.Lock()
	defer p.queue.live.mu.Unlock()
	if bound := p.queue.live.bound; bound != nil && bound.Use().Busy != 0 {
		p.h.Fault("%d calls of the queue are taken at the end", bound.Use().Busy)
	}
	if p.queue.share != (share{}) || p.queue.all != (share{}) {
		p.h.Fault("the queue's shares: %+v, %+v", p.queue.share, p.queue.all)
	}
}

// call is one id in one flight.
type call struct {
	shard  lowkiq.Shard
	fence  int64
	flight int64
	id     string
}

// fate is what became of a call.
type fate struct {
	succeeded, failed bool
	acknowledged      bool
	payloads          []int
}

// judge knows what handlers were called for, and what they answered.
type judge struct {
	h       *history
	process atomic.Pointer[process]

	mu   sync.Mutex
	of   map[call]fate
	busy map[string]call // ids that handlers have
	last map[string]int  // payloads done or buried, by id: all below this number
}

func (j *judge) enter(p *process, b *lowkiq.Batch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !p.MayWork() {
		j.h.Fault("a handler begins after the lease's deadline (I1)")
	}
	j.h.Trace("%s: a handler has flight %d: %d jobs, the first is %s", b.Shard, b.Flight, len(b.Jobs), b.Jobs[0].ID)
	var held *rules.Held
	if p.queue != nil {
		held = p.queue.rules().Held
	}
	for _, job := range b.Jobs {
		c := call{b.Shard, b.Fence, b.Flight, job.ID}
		if held.Holds(job.ID) && int64(time.Since(j.h.Start)) > j.h.held.Load() {
			j.h.Fault("a handler gets %+v, which is held", c)
		}
		if other, both := j.busy[job.ID]; both {
			j.h.Fault("two handlers have an id at once: %+v, %+v (I1)", other, c)
		}
		j.busy[job.ID] = c
		if _, before := j.of[c]; before {
			j.h.Fault("a handler gets %+v once more", c)
		}
		var payloads []int
		for _, payload := range job.Payloads {
			n, _ := strconv.Atoi(string(payload.Data))
			payloads = append(payloads, n)
		}
		j.of[c] = fate{payloads: payloads}
		// What was done before may come again; what comes anew follows it.
		if !slices.IsSorted(payloads) || payloads[0] > j.last[job.ID] {
			j.h.Fault("%+v has the payloads %v, and all below %d are done (I3)", c, payloads, j.last[job.ID])
		}
	}
}

// leave notes the end of a call. broken: it answered nothing.
func (j *judge) leave(b *lowkiq.Batch, jobs []lowkiq.Job, answer error, broken bool) {
	failed, named := answer.(lowkiq.Failed) //nolint:errorlint // the test's own
	for _, job := range jobs {
		c := call{b.Shard, b.Fence, b.Flight, job.ID}
		f := j.fate(c)
		f.failed = broken || answer != nil && (!named || failed[job.ID] != nil)
		f.succeeded = !f.failed
		if f.succeeded {
			j.advance(job.ID, f.payloads)
		}
		j.mu.Lock()
		delete(j.busy, job.ID)
		j.of[c] = f
		j.mu.Unlock()
	}
}

// advance notes payloads that are done or buried.
func (j *judge) advance(id string, payloads []int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, n := range payloads {
		j.last[id] = max(j.last[id], n+1)
	}
}

// fate returns what became of a call; payloads is nil if no handler had it.
func (j *judge) fate(c call) fate {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.of[c]
}

// acknowledged looks at an ack that was sent, and notes whether Redis has confirmed it: to be told
// once more is a fault.
func (j *judge) acknowledged(c call, confirmed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := j.of[c]
	if f.payloads == nil || f.acknowledged {
		j.h.Fault("%+v is acknowledged again after Redis has confirmed it", c)
	}
	f.acknowledged = confirmed
	j.of[c] = f
}

// running is how many jobs of a claim are with handlers.
func (j *judge) running(s lowkiq.Shard, fence int64) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range j.busy {
		if c.shard == s && c.fence == fence {
			n++
		}
	}
	return n
}

// all looks at what became of what was pushed.
func (j *judge) all(pushed map[string]int) {
	for id, n := range pushed {
		if j.last[id] != n {
			j.h.Fault("%d of %d payloads of %s are done (I2)", j.last[id], n, id)
		}
	}
}
