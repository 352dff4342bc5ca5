package runner

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node/internal/limits"
)

// process is one instance of a node: what claims, supervises and leases are for runners.
type process struct {
	*Process
	h        *history
	queue    *Queue
	slots    *limits.Slots // of the node
	gates    *gates        // of the queue's limits; nil in tests of parts
	asked    int64         // requests for permits
	kicked   chan struct{}
	stopping chan struct{}
	ended    chan struct{}
	cancel   context.CancelCauseFunc
	lease    atomic.Int64 // until when it may work, since the history's start
	lanes    sync.WaitGroup

	// loses reports whether the follow-ups of a done job cannot be stored, so that it does not end. nil stands for none.
	loses func(id string) bool

	mu      sync.Mutex
	runners map[lowkiq.Shard]*Runner
}

// newProcess makes a process with this many slots, whose runners are none yet.
func (h *history) newProcess(slots int) *process {
	p := &process{h: h, kicked: make(chan struct{}, 1), stopping: make(chan struct{}), ended: make(chan struct{}), runners: map[lowkiq.Shard]*Runner{}}
	p.lease.Store(int64(100 * time.Hour))
	work, cancel := context.WithCancelCause(context.Background())
	p.cancel = cancel
	p.slots = limits.NewSlots(slots)
	p.Process = &Process{
		Work: work, IO: context.Background(), Log: slog.New(slog.DiscardHandler), Lanes: &p.lanes, Quarantine: &QuarantineSlot{},
		Now: func() time.Duration { return time.Since(h.Start) }, RedisTime: func(d time.Duration) time.Time { return h.Start.Add(d) },
		SetRedisTime: func(time.Time) {}, MayWork: func() bool { return time.Since(h.Start) < time.Duration(p.lease.Load()) },
		Kick: func() {
			select {
			case p.kicked <- struct{}{}:
			default:
			}
		},
		OpFailed: func(_ string, _ lowkiq.Shard, err error) bool { return IsRefusal(err) }, OpDone: func(string, lowkiq.Shard) {},
		Fenced: func(string) {}, EndCalls: func(func() int64) {}, MayLog: func(string, string) (int, bool) { return 0, false },
	}
	h.judge.process.Store(p)
	return p
}

// startProcess starts a process that claims all shards.
func (h *history) startProcess(seize bool) *process {
	p := h.newProcess(1 + h.IntN(3))
	q := Queue{Rules: h.now(), Paused: &h.paused, Metrics: testMetrics, Concurrency: h.IntN(3)}
	l := p.limits(p.askRate, p.askGroups)
	q.Limits, q.Slots, q.Calls = l, l.NodeSlots(), l.CallSlots()
	if h.scarce {
		q.Reserve, q.ProcessWait = p.reserve, testMetrics.Wait
	}
	q.Handler = lowkiq.HandlerFunc(p.handle)
	p.queue, p.gates = NewQueue(q), newGates(p)
	for _, s := range h.shards {
		p.start(s, seize)
	}
	h.group.Go(p.supervise)
	h.group.Go(p.sharePermits)
	h.group.Go(p.tend)
	return p
}

// changedNow reports whether other rules came into force at this very instant: a call that begins may go by the old ones.
func (p *process) changedNow() bool {
	if p.gates == nil {
		return false
	}
	p.gates.mu.Lock()
	defer p.gates.mu.Unlock()
	return p.gates.changed.Equal(time.Now())
}

func (p *process) start(s *shard, seize bool) {
	claim := s.claim(seize)
	r := New(p.Process, p.queue, s.Shard, claim.fence, claim)
	r.MarkSubscribed()
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
		keep, now := r.ShouldReleaseHeld(p.Now())
		if !now {
			continue
		}
		err := p.h.carry(p.h.fate(), func() error {
			if s.release(keep) {
				r.Wake()
			}
			return nil
		})
		if err != nil {
			r.RetryReleaseHeld()
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
			r.WakeParked()
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
	kind := h.IntN(44)
	if h.calm.Load() { // it fails now and then, and does nothing worse
		kind = []int{39, 5, 42}[kind%40/20+kind/42*2]
	}
	broken, cause := false, error(nil)
	defer func() { h.judge.leave(b, jobs, answer, broken, cause) }()
	defer p.gates.begins(b)()
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
	if !p.work(ctx, b, took) {
		cause = context.Cause(ctx)
		time.Sleep(h.Below(testTTL / 10)) // it may take 0.2 ttl to return
		if h.IntN(2) == 0 {
			return cause
		}
		return lowkiq.Failed{jobs[0].ID: cause}
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
	case kind >= 42:
		return p.limit(jobs[0].ID)
	}
	return nil
}

// work takes time, and says something now and then. It reports whether that was all, or else the context has ended.
func (p *process) work(ctx context.Context, b *lowkiq.Batch, took time.Duration) bool {
	h, said, stuck, id := p.h, time.Now(), p.queue.rules().StuckAfter, b.Jobs[0].ID
	if p.changedNow() {
		stuck = 0
	}
	for {
		part := took
		if h.IntN(3) == 0 {
			part = h.Below(took)
		}
		select {
		case <-time.After(part):
		case <-ctx.Done():
			if silent := time.Since(said); errors.Is(context.Cause(ctx), lowkiq.ErrStuck) && 0 < silent && silent < stuck {
				h.Fault("%s: a call is ended as stuck, and has said something %s ago", b.Shard, silent)
			}
			return false
		}
		if took -= part; took > 0 && h.IntN(2) == 0 || took == 0 && h.IntN(4) == 0 {
			said = time.Now()
			b.Note(ctx, id, lowkiq.Note{Progress: 0.5}) //nolint:errcheck // whatever becomes of it
		}
		if silent := time.Since(said); stuck > 0 && silent > stuck && ctx.Err() == nil {
			h.Fault("%s: a call has said nothing for %s, and goes on", b.Shard, silent)
		}
		if took == 0 {
			return true
		}
	}
}

// limit is the answer of a handler that may not call whom it calls.
func (p *process) limit(id string) error {
	h, l := p.h, lowkiq.Throttle{For: time.Millisecond + p.h.Below(50*time.Millisecond)}
	if h.calm.Load() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if group := h.rules.Groups.Of(id); group != "" {
			h.stops[group] = time.Now().Add(l.For)
		}
	}
	return l
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
	if use := p.slots.Use(); use.Busy != 0 {
		p.h.Fault("%d slots are taken at the end", use.Busy)
	}
	if p.Quarantine.taken || len(p.Quarantine.waiting) > 0 {
		p.h.Fault("the quarantine slot: taken %v, %d wait", p.Quarantine.taken, len(p.Quarantine.waiting))
	}
	if left := limitsOf(p.queue).Leftovers(); left != "" {
		p.h.Fault("lanes have left, at the end, %s", left)
	}
}
