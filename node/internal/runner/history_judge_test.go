package runner

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

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
	spared            bool  // it costs no retry, whatever the handler answers: it was cancelled, or postponed
	cause             error // why its context ended, as the handler saw it
	acknowledged      bool
	payloads          []int
}

// The ends of a payload.
const (
	isDone  = "done" // a handler has said so: it may come again if Redis has not heard of it
	isGone  = "gone" // it was buried or deleted
	isStale = "expired"
)

// judge knows what handlers were called for, and what they answered. Of tests of parts, which push the same payloads again and cancel
// runs without its knowledge, it judges less: their processes have no gates.
type judge struct {
	h       *history
	process atomic.Pointer[process]

	mu    sync.Mutex
	of    map[call]fate
	busy  map[string]call                   // ids that handlers have
	ended map[string]map[int]string         // how payloads have ended, by id
	asked map[string]map[protocol.Then]bool // what people have asked for when they cancelled runs of an id
	stood map[claimed]time.Time             // since when runners have said that nothing of theirs begins
}

// claimed is a claim on a shard.
type claimed struct {
	shard lowkiq.Shard
	fence int64
}

func newJudge(h *history) *judge {
	return &judge{h: h, of: map[call]fate{}, busy: map[string]call{}, ended: map[string]map[int]string{}, asked: map[string]map[protocol.Then]bool{}, stood: map[claimed]time.Time{}}
}

func (j *judge) enter(p *process, b *lowkiq.Batch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !p.MayWork() {
		j.h.Fault("a handler begins after the lease's deadline (I1)")
	}
	j.h.Trace("%s: a handler has flight %d: %d jobs, the first is %s", b.Shard, b.Flight, len(b.Jobs), b.Jobs[0].ID)
	in := &Rules{}
	if p.queue != nil && !p.changedNow() {
		in = p.queue.rules()
	}
	now := time.Now()
	// A call that had begun by then is here in no time: the clock of a history stands still meanwhile.
	if since, still := j.stood[claimed{b.Shard, b.Fence}]; still && now.After(since) {
		j.h.Fault("a handler begins on %s, where nothing was to begin any more, as the queue is paused", b.Shard)
	}
	for i := range b.Jobs {
		job := &b.Jobs[i]
		c := call{b.Shard, b.Fence, b.Flight, job.ID}
		if in.Held.Holds(job.ID) {
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
			if over(in.Expire.After, job, payload.Header, now) {
				j.h.Fault("a handler gets payload %d of %+v, whose time is over", n, c)
			}
			if how := j.ended[job.ID][n]; p.gates != nil && how != "" && how != isDone {
				j.h.Fault("a handler gets payload %d of %+v, which is %s", n, c, how)
			}
		}
		j.of[c] = fate{payloads: payloads}
		if !j.inOrder(job.ID, payloads) {
			j.h.Fault("%+v has the payloads %v, and those before them have ended as %v (I3)", c, payloads, j.ended[job.ID])
		}
	}
}

// still notes that a runner says that nothing begins until its queue is resumed.
func (j *judge) still(r *Runner) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := claimed{r.Shard, r.Fence}
	if _, before := j.stood[c]; !before {
		j.stood[c] = time.Now()
	}
}

// resumed is called when the queue is about to be resumed.
func (j *judge) resumed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.stood)
}

// over reports whether the time of a payload is, by its header or else by the rule.
func over(after time.Duration, job *lowkiq.Job, header lowkiq.Header, now time.Time) bool {
	at, says := header.Expires()
	if !says && after > 0 {
		at, says = job.WaitingSince.Add(after), true
	}
	return says && !at.After(now)
}

// inOrder reports whether payloads of an id come in order, and none of those before them is left out. What was done before may
// come again. mu is held.
func (j *judge) inOrder(id string, payloads []int) bool {
	next := 0
	for _, n := range payloads {
		if n < next {
			return false // it is later in the order than the one before it, or the same
		}
		for ; next < n; next++ {
			if j.ended[id][next] == "" {
				return false
			}
		}
		next = n + 1
	}
	return true
}

// leave notes the end of a call. broken: it answered nothing. cause: why its context has ended, if it has.
func (j *judge) leave(b *lowkiq.Batch, jobs []lowkiq.Job, answer error, broken bool, cause error) {
	failed, named := answer.(lowkiq.Failed) //nolint:errorlint // the test's own
	spared := errors.Is(cause, lowkiq.ErrCancelled) || errors.As(answer, new(lowkiq.Postpone)) || errors.As(answer, new(lowkiq.Throttle))
	if errors.Is(cause, lowkiq.ErrTimeout) || errors.Is(cause, lowkiq.ErrStuck) {
		spared = false // that is a failure, whatever it answers
	}
	for _, job := range jobs {
		c := call{b.Shard, b.Fence, b.Flight, job.ID}
		f := j.fate(c)
		f.failed = broken || answer != nil && (!named || failed[job.ID] != nil)
		f.succeeded = !f.failed
		f.spared, f.cause = spared && !broken, cause
		if f.succeeded {
			j.end(job.ID, f.payloads, isDone)
		}
		j.mu.Lock()
		delete(j.busy, job.ID)
		j.of[c] = f
		j.mu.Unlock()
	}
}

// end notes how payloads have ended.
func (j *judge) end(id string, payloads []int, how string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended[id] == nil {
		j.ended[id] = map[int]string{}
	}
	for _, n := range payloads {
		if was := j.ended[id][n]; j.process.Load().gates != nil && was != "" && was != isDone {
			j.h.Fault("payload %d of %s is %s, and was %s before", n, id, how, was)
		}
		j.ended[id][n] = how
	}
}

// cancels notes that a person is about to end runs of an id.
func (j *judge) cancels(id string, then protocol.Then) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.asked[id] == nil {
		j.asked[id] = map[protocol.Then]bool{}
	}
	j.asked[id][then] = true
}

// wasAsked looks whether a person has asked for what becomes of a call.
func (j *judge) wasAsked(c call, then protocol.Then) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.asked[c.id][then] {
		j.h.Fault("%+v was cancelled, and nobody has asked to %s it", c, then)
	}
}

// back looks at an id that goes back, with the retry count that it had.
func (j *judge) back(c call, n protocol.Nack, retry int) {
	f, then := j.fate(c), protocol.ThenRetry
	had := f.payloads != nil // a handler had it
	if n.Kind == protocol.Hold {
		then = protocol.ThenHold
	}
	switch {
	case n.Cancelled:
		j.wasAsked(c, then)
	case n.Kind == protocol.Return && had, n.Kind == protocol.Hold && had, n.Limited && had:
		j.h.Fault("%+v goes back as %s, and a handler had it", c, n.Kind)
	case errors.Is(f.cause, lowkiq.ErrCancelled) && n.Delay > 0:
		j.h.Fault("%+v was beside one that was cancelled, and waits for %s", c, n.Delay)
	}
	switch {
	case n.Kind == protocol.Retry && (!had || f.spared):
		j.h.Fault("%+v costs a retry, and has not failed", c)
	case n.Kind == protocol.Retry && n.RetryCount != retry+1, n.Kind == protocol.Postpone && n.RetryCount != retry:
		j.h.Fault("%+v goes back as %s with retry count %d, and had %d", c, n.Kind, n.RetryCount, retry)
	}
	if had && !f.failed && !j.h.timed() {
		j.h.Fault("%+v is done, and put back", c)
	}
}

// buried looks at payloads of a job that do not come again.
func (j *judge) buried(c call, b protocol.Burial, job lowkiq.Job, gone []int) {
	how := isGone
	switch f, then := j.fate(c), protocol.ThenBury; {
	case b.Expired > 0:
		how = isStale
		j.late(c, b, &job, gone)
	case b.Cancelled:
		if b.Policy == protocol.Drop {
			then = protocol.ThenDelete
		}
		j.wasAsked(c, then)
	case f.payloads == nil || f.spared:
		j.h.Fault("%+v is buried, and has not failed", c)
	}
	j.end(c.id, gone, how)
}

// late looks at payloads that are said to have expired.
func (j *judge) late(c call, b protocol.Burial, job *lowkiq.Job, gone []int) {
	if j.fate(c).payloads != nil {
		j.h.Fault("%+v has expired, and a handler had it", c)
	}
	if b.Expired != len(gone) || b.RetryCount != job.RetryCount {
		j.h.Fault("%+v: %d payloads have expired at retry count %d, want %d and %d", c, b.Expired, b.RetryCount, len(gone), job.RetryCount)
	}
	to := j.h.now().Expire.To
	if (to == rules.ExpireDrop) != (b.Policy == protocol.Drop) {
		j.h.Fault("%+v has expired and goes by %s, want to %s", c, b.Policy, to)
	}
	now := time.Now()
	for i := range job.Payloads {
		n, _ := strconv.Atoi(string(job.Payloads[i].Data))
		if slices.Contains(gone, n) && j.h.after > 0 && !over(j.h.after, job, job.Payloads[i].Header, now) {
			j.h.Fault("payload %d of %+v has expired, and its time is not over", n, c)
		}
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
		if len(j.ended[id]) != n {
			j.h.Fault("%d of %d payloads of %s have ended (I2)", len(j.ended[id]), n, id)
		}
	}
}
