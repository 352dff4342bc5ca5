package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
)

// TestHistories runs runners against shards whose requests are lost, late and doubled, which freeze, refuse, and lose
// their claims, in processes that freeze, lose their leases, pause and stop, at random moments. In each history I1, I2
// and I3 hold, all that was pushed is done or in the morgue soon after the faults end, Redis is left alone then, and every
// goroutine ends. LOWKIQ_HISTORIES=10000 says how many; LOWKIQ_HISTORY=7 runs the one of a seed and shows it.
func TestHistories(t *testing.T) {
	if seed, err := strconv.ParseUint(os.Getenv("LOWKIQ_HISTORY"), 10, 64); err == nil {
		for range 20 { // the scheduler has a say, too
			runHistory(t, seed, true)
		}
		return
	}
	count, most := 3000, 15*time.Second
	if testing.Short() {
		count, most = 300, 3*time.Second
	}
	if n, err := strconv.Atoi(os.Getenv("LOWKIQ_HISTORIES")); err == nil {
		count, most = n, time.Hour
	}
	first := rand.Uint64N(1 << 40)
	if count == 0 { // the mutation table's own runs begin at a known seed
		first, count, most = 0, 3000, time.Minute
	}
	began, done := time.Now(), atomic.Int64{}
	var group sync.WaitGroup
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := next.Add(1); i <= int64(count) && time.Since(began) < most && !t.Failed(); i = next.Add(1) {
				runHistory(t, first+uint64(i), false)
				done.Add(1)
			}
		})
	}
	group.Wait()
	t.Logf("%d histories from seed %d in %s", done.Load(), first+1, time.Since(began).Round(time.Millisecond))
}

func runHistory(t *testing.T, seed uint64, show bool) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory(seed, show)
		h.run(t.Context())
		for _, f := range h.faults[:min(3, len(h.faults))] {
			t.Errorf("history %d: %s", seed, f)
		}
		if show {
			t.Log(strings.Join(h.lines, "\n"))
		}
	})
}

// All histories share the metrics: to make them takes longer than most histories do.
var testMetrics = metrics.New(prometheus.NewRegistry()).Queue("orders")

const testTTL = 3 * time.Second

// history is one run of a process and those after it.
type history struct {
	seed   uint64
	rnd    *random
	faulty int // percent of requests with a fault
	start  time.Time
	calm   atomic.Bool // no faults any more
	shards []*shard
	judge  *judge
	group  sync.WaitGroup // all that the history starts
	paused atomic.Bool
	rules  Rules
	scarce bool

	mu     sync.Mutex
	faults []string
	lines  []string
	show   bool
	pushed map[string]int // payloads by id
}

func newHistory(seed uint64, show bool) *history {
	rnd := &random{rnd: rand.New(rand.NewPCG(seed, 1))}
	h := &history{seed: seed, rnd: rnd, start: time.Now(), show: show, faulty: []int{0, 5, 20, 50}[rnd.IntN(4)], scarce: rnd.IntN(2) == 0, pushed: map[string]int{}}
	h.judge = &judge{h: h, of: map[call]*fateOfCall{}, busy: map[string]call{}, runs: map[claimed]int{}, last: map[string]int{}}
	for i := range 1 + rnd.IntN(2) {
		h.shards = append(h.shards, &shard{
			Shard: lowkiq.Shard{Queue: "orders", Index: i}, h: h,
			ids: map[string]*record{}, flights: map[int64][]string{}, crashes: map[string]int{},
		})
	}
	h.rules = Rules{
		BatchSize: 1 + rnd.IntN(3), ShardConcurrency: 1 + rnd.IntN(4), Prefetch: 10, MaxRetryCount: 3 + rnd.IntN(20), Exhausted: queue.Skip,
		RetryIn:     func(int) time.Duration { return time.Duration(rnd.IntN(100)) * time.Millisecond },
		FormatError: error.Error, InTurn: rnd.IntN(2) == 0,
	}
	if rnd.IntN(4) == 0 {
		h.rules.HandlerTimeout = 30 * time.Millisecond
	}
	return h
}

func (h *history) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	h.trace("FAULT %s", text)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, text)
}

func (h *history) trace(format string, args ...any) {
	if !h.show {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, time.Since(h.start).String()+" "+fmt.Sprintf(format, args...))
}

// run lets processes follow one another until the faults end, waits until the last one has done all, and stops it.
func (h *history) run(ctx context.Context) {
	faults := time.Duration(h.rnd.IntN(4000)) * time.Millisecond
	h.group.Go(func() { h.produce(faults) })
	h.group.Go(func() { h.disturb(faults) })
	var p *process
	for seize := false; ; seize = h.rnd.IntN(2) == 0 {
		p = h.startProcess(ctx, seize)
		if time.Since(h.start) >= faults {
			break
		}
		time.Sleep(min(time.Duration(h.rnd.IntN(2000))*time.Millisecond, faults-time.Since(h.start)+time.Millisecond))
		if h.rnd.IntN(2) == 0 { // told to stop: its successor comes after it
			p.stop(lowkiq.ErrShutdown)
			continue
		}
		p.end() // its lease is lost: its successor comes when that may be, whatever this one does
	}
	time.Sleep(time.Second)
	h.calm.Store(true)
	h.paused.Store(false)
	for _, s := range h.shards {
		s.mu.Lock()
		s.refuses, s.frozen = false, time.Time{}
		s.mu.Unlock()
	}
	time.Sleep(time.Second) // what is late has come
	p.lookAtAll()
	for n := range 10 { // wake-ups that meet a pop, and no poll that finds what they leave
		id := fmt.Sprint("last", n%3)
		h.shards[0].push(id, h.pushed[id])
		h.pushed[id]++
		p.wake(h.shards[0])
		time.Sleep(time.Duration(h.rnd.IntN(1500)) * time.Microsecond)
	}
	if !h.within(10*time.Minute, func() bool {
		for _, s := range h.shards {
			if s.work() > 0 {
				return false
			}
		}
		return true
	}) {
		for _, s := range h.shards {
			s.mu.Lock()
			s.fault("something waits for ever: ready %v, suspects %v, flights %v, held %v", s.ready, s.suspects, s.flights, s.held)
			s.mu.Unlock()
		}
	}
	time.Sleep(time.Second)
	for _, s := range h.shards {
		s.mu.Lock()
		calls := s.calls
		s.mu.Unlock()
		time.Sleep(time.Minute)
		s.mu.Lock()
		if s.calls > calls {
			s.fault("%d requests in a minute in which there is nothing to do", s.calls-calls)
		}
		s.mu.Unlock()
	}
	p.stop(lowkiq.ErrShutdown)
	h.group.Wait()
	p.leftovers()
	h.judge.all(h.pushed)
}

func (h *history) within(d time.Duration, done func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done() {
			return true
		}
	}
	return done()
}

// produce pushes, and sends wake-ups of which some are lost.
func (h *history) produce(during time.Duration) {
	ids := 1 + h.rnd.IntN(6)
	for range 1 + h.rnd.IntN(25) {
		id := fmt.Sprint("id", h.rnd.IntN(ids))
		s := h.shards[int(id[2]-'0')%len(h.shards)]
		h.mu.Lock()
		n := h.pushed[id]
		h.pushed[id]++
		h.mu.Unlock()
		s.push(id, n)
		if p := h.judge.process.Load(); p != nil && (h.calm.Load() || h.rnd.IntN(10) > 0) {
			p.wake(s)
		}
		time.Sleep(min(time.Duration(h.rnd.IntN(200))*time.Millisecond, during/10))
	}
}

// disturb freezes shards, takes claims away, has requests refused, and pauses the queue.
func (h *history) disturb(during time.Duration) {
	for range h.rnd.IntN(6) {
		time.Sleep(time.Duration(h.rnd.IntN(int(during/3) + 1)))
		if h.calm.Load() {
			return
		}
		s, p := h.shards[h.rnd.IntN(len(h.shards))], h.judge.process.Load()
		switch h.rnd.IntN(4) {
		case 0:
			s.mu.Lock()
			s.frozen = time.Now().Add(time.Duration(h.rnd.IntN(1000)) * time.Millisecond)
			s.mu.Unlock()
		case 1:
			s.lose()
		case 2:
			s.mu.Lock()
			s.refuses = true
			s.mu.Unlock()
			time.Sleep(time.Duration(h.rnd.IntN(300)) * time.Millisecond)
			s.mu.Lock()
			s.refuses = false
			s.mu.Unlock()
		case 3:
			h.trace("paused")
			h.paused.Store(true)
			p.pause()
			time.Sleep(time.Duration(h.rnd.IntN(300)) * time.Millisecond)
			h.paused.Store(false)
			h.trace("resumed")
			h.judge.process.Load().lookAtAll()
		}
	}
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

func (h *history) startProcess(ctx context.Context, seize bool) *process {
	p := &process{h: h, kicked: make(chan struct{}, 1), stopping: make(chan struct{}), ended: make(chan struct{}), runners: map[lowkiq.Shard]*Runner{}}
	p.lease.Store(int64(time.Hour))
	work, cancel := context.WithCancelCause(ctx)
	p.cancel = cancel
	p.Process = &Process{
		Work: work, IO: context.WithoutCancel(ctx), Log: slog.New(slog.DiscardHandler), Lanes: &p.lanes, Slots: NewSlots(1 + h.rnd.IntN(3)), Quarantine: &QuarantineSlot{},
		Now: func() time.Duration { return time.Since(h.start) }, RedisTime: func(d time.Duration) time.Time { return h.start.Add(d) }, SawRedisTime: func(time.Time) {},
		MayWork: func() bool { return time.Since(h.start) < time.Duration(p.lease.Load()) },
		Kick: func() {
			select {
			case p.kicked <- struct{}{}:
			default:
			}
		},
		Trouble: func(_ string, _ lowkiq.Shard, err error) bool { return Refused(err) }, Worked: func(string, lowkiq.Shard) {},
		Fenced: func(string, func() int64) {}, MayLog: func(string, string) (int, bool) { return 0, false },
	}
	q := Queue{Rules: h.rules, Paused: &h.paused, Metrics: testMetrics, Concurrency: h.rnd.IntN(3)}
	if h.scarce {
		q.Reserve, q.ProcessWait = p.reserve, testMetrics.Wait
	}
	q.Handler = lowkiq.HandlerFunc(p.handle)
	p.queue = NewQueue(q)
	h.judge.process.Store(p)
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

// supervise claims anew what was lost, polls while there are faults, and hands everything back in the end.
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
		}
		for _, s := range p.h.shards {
			p.mu.Lock()
			r := p.runners[s.Shard]
			p.mu.Unlock()
			if !r.Over() {
				continue
			}
			<-r.Stop()
			if fenced, _ := r.Fenced(); !fenced {
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

func (p *process) wake(s *shard) {
	p.mu.Lock()
	r := p.runners[s.Shard]
	p.mu.Unlock()
	if r != nil {
		r.Wake()
	}
}

func (p *process) lookAtAll() {
	for _, r := range p.all() {
		r.Wake()
	}
}

func (p *process) pause() {
	for _, r := range p.all() {
		r.Pause()
	}
}

// stop drains the process and waits for it.
func (p *process) stop(error) {
	p.h.trace("the process stops")
	close(p.stopping)
	<-p.ended
	p.cancel(lowkiq.ErrShutdown)
}

// end lets the lease run out. The process notices some time after it must not work any more; its successor seizes the
// shards 0.3 ttl after that moment.
func (p *process) end() {
	p.h.trace("the lease ends")
	p.lease.Store(int64(p.Now()))
	notice := time.Duration(p.h.rnd.IntN(int(testTTL / 20)))
	p.h.group.Go(func() {
		time.Sleep(notice)
		p.cancel(lowkiq.ErrLeaseLost)
		close(p.stopping)
		<-p.ended
	})
	time.Sleep(testTTL * 3 / 10)
}

// reserve is short of processes, and now and then the node freezes in it for longer than its lease has.
func (p *process) reserve(ctx context.Context) (func(context.Context) context.Context, func(), error) {
	h := p.h
	switch n := h.rnd.IntN(40); {
	case h.calm.Load():
	case n == 0:
		return nil, nil, lowkiq.Postpone{After: 20 * time.Millisecond}
	case n < 4:
		time.Sleep(time.Duration(h.rnd.IntN(int(testTTL / 2))))
	default:
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-time.After(time.Duration(h.rnd.IntN(3000)) * time.Microsecond):
		}
	}
	return func(ctx context.Context) context.Context { return ctx }, func() {}, nil
}

var errBoom = errors.New("boom")

// handle is the handler of all jobs: it takes some time, ends with its context, and answers what it likes.
func (p *process) handle(ctx context.Context, b *lowkiq.Batch) (answer error) {
	h := p.h
	jobs := slices.Clone(b.Jobs)
	h.judge.enter(p, b)
	kind := h.rnd.IntN(40)
	if h.calm.Load() {
		kind = 39
	}
	broken := false
	defer func() { h.judge.leave(b, jobs, answer, broken) }()
	took := time.Duration(0)
	if h.rnd.IntN(2) == 0 {
		took = time.Duration(h.rnd.IntN(40)) * time.Millisecond
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		time.Sleep(time.Duration(h.rnd.IntN(int(testTTL / 10)))) // it may take 0.2 ttl to return
		if h.rnd.IntN(2) == 0 {
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
		return lowkiq.Postpone{After: time.Duration(h.rnd.IntN(50)) * time.Millisecond}
	case kind < 9:
		return errBoom
	case kind < 13:
		b.Jobs = nil // it may do that
		return lowkiq.Failed{jobs[h.rnd.IntN(len(jobs))].ID: errBoom}
	}
	return nil
}

// leftovers looks at what a process has at its end.
func (p *process) leftovers() {
	if use := p.Slots.Use(); use.Busy != 0 {
		p.h.fault("%d slots are taken at the end", use.Busy)
	}
	if p.Quarantine.taken || len(p.Quarantine.waiting) > 0 {
		p.h.fault("the quarantine slot: taken %v, %d wait", p.Quarantine.taken, len(p.Quarantine.waiting))
	}
	if p.queue.share != (share{}) || p.queue.all != (share{}) {
		p.h.fault("the queue's shares: %+v, %+v", p.queue.share, p.queue.all)
	}
	for _, s := range p.h.shards {
		if s.held {
			s.fault("the claim is held at the end")
		}
	}
}

// call is one id in one flight.
type call struct {
	shard  lowkiq.Shard
	fence  int64
	flight int64
	id     string
}

type claimed struct {
	shard lowkiq.Shard
	fence int64
}

type fateOfCall struct {
	calls             int
	succeeded, failed bool
	acknowledged      bool
	payloads          []int
}

// judge knows what handlers were called for, and what they answered.
type judge struct {
	h       *history
	process atomic.Pointer[process]

	mu   sync.Mutex
	of   map[call]*fateOfCall
	busy map[string]call
	runs map[claimed]int
	last map[string]int // payloads done or buried, by id: all below this number
}

func (j *judge) enter(p *process, b *lowkiq.Batch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !p.MayWork() {
		j.h.fault("a handler begins after the lease's deadline (I1)")
	}
	j.h.trace("%s: a handler has flight %d: %d jobs, the first is %s", b.Shard, b.Flight, len(b.Jobs), b.Jobs[0].ID)
	j.runs[claimed{b.Shard, b.Fence}]++
	for _, job := range b.Jobs {
		c := call{b.Shard, b.Fence, b.Flight, job.ID}
		if other, both := j.busy[job.ID]; both {
			j.h.fault("%s: two handlers have %s at once: flight %d of fence %d, flight %d of fence %d (I1)", b.Shard, job.ID, other.flight, other.fence, c.flight, c.fence)
		}
		j.busy[job.ID] = c
		f := j.of[c]
		if f == nil {
			f = &fateOfCall{}
			j.of[c] = f
		}
		if f.calls++; f.calls > 1 {
			j.h.fault("%s: flight %d: a handler gets %s once more", b.Shard, b.Flight, job.ID)
		}
		f.payloads = nil
		for _, payload := range job.Payloads {
			n, _ := strconv.Atoi(string(payload.Data))
			f.payloads = append(f.payloads, n)
		}
		if !slices.IsSorted(f.payloads) {
			j.h.fault("%s: the payloads of %s come as %v (I3)", b.Shard, job.ID, f.payloads)
		}
		// What was done before may come again; what comes anew follows it.
		if first := f.payloads[0]; first > j.last[job.ID] {
			j.h.fault("%s: payload %d of %s comes before %d (I3)", b.Shard, first, job.ID, j.last[job.ID])
		}
	}
}

// leave notes the end of a call. broken: it answered nothing.
func (j *judge) leave(b *lowkiq.Batch, jobs []lowkiq.Job, answer error, broken bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.runs[claimed{b.Shard, b.Fence}]--
	failed, named := answer.(lowkiq.Failed) //nolint:errorlint // the test's own
	for _, job := range jobs {
		delete(j.busy, job.ID)
		f := j.of[call{b.Shard, b.Fence, b.Flight, job.ID}]
		f.failed = broken || answer != nil && (!named || failed[job.ID] != nil)
		f.succeeded = !f.failed
		if f.succeeded {
			j.advance(job.ID, f.payloads)
		}
	}
}

func (j *judge) advance(id string, payloads []int) {
	for _, n := range payloads {
		j.last[id] = max(j.last[id], n+1)
	}
}

// done reports whether a handler has said that what Redis deletes is done.
func (j *judge) done(c call, payloads []int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := j.of[c]
	return f != nil && f.succeeded && slices.Equal(f.payloads, payloads)
}

// confirmed reports whether an ack is news, and notes whether Redis has confirmed it.
func (j *judge) confirmed(c call, confirmed bool) (news bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := j.of[c]
	if f == nil || f.acknowledged {
		return false
	}
	f.acknowledged = confirmed
	return true
}

func (j *judge) failed(c call) (called, failed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := j.of[c]
	return f != nil, f != nil && (f.failed || j.h.rules.HandlerTimeout > 0)
}

func (j *judge) buried(id string, payloads []int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.advance(id, payloads)
}

// running is how many handlers of a claim run.
func (j *judge) running(s lowkiq.Shard, fence int64) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.runs[claimed{s, fence}]
}

// all looks at what became of what was pushed.
func (j *judge) all(pushed map[string]int) {
	for id, n := range pushed {
		if j.last[id] != n {
			j.h.fault("%d of %d payloads of %s are done (I2)", j.last[id], n, id)
		}
	}
}
