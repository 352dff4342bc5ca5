package runner

import "time"

// alarm wakes the runner when a job is due.
type alarm struct {
	now   func() time.Duration
	timer *time.Timer
	at    time.Duration // now() when it rings; 0 = not set
	over  bool          // it rings no more
}

// set has it ring after d, unless it rings earlier anyway.
func (a *alarm) set(d time.Duration) {
	if a.over {
		return
	}
	// A little later than due, so that rounding cannot make the pop come too early.
	d = delay(d) + time.Millisecond
	if at := a.now() + d; a.at == 0 || at < a.at {
		a.at = at
		a.timer.Reset(d)
	}
}

func (a *alarm) stop() {
	a.over = true
	a.timer.Stop()
}

// polls say when to look at a shard without being woken. One whose wake-ups arrive and that is
// without work for long is looked at less and less, down to once per idlePoll.
type polls struct {
	subscribed bool          // Redis has confirmed the shard's subscription
	lastWork   time.Duration // by the process's clock: of the last job
	next       time.Duration // by the same: of the next poll
	wait       time.Duration // between polls
}

const (
	quietAfter = 10 * time.Second
	idlePoll   = time.Minute
)

// unsubscribed notes that wake-ups may be missed.
func (p *polls) unsubscribed(now, interval time.Duration) {
	p.subscribed, p.wait, p.next = false, interval, now+interval
}

// due says whether to poll now, and plans the next poll.
func (p *polls) due(now, interval time.Duration) bool {
	if now < p.next {
		return false
	}
	if now-p.lastWork < quietAfter || !p.subscribed {
		p.wait = interval
	} else {
		p.wait = min(max(2*p.wait, interval), idlePoll)
	}
	p.next = now + p.wait
	return true
}

// patience has a runner look whether what was popped waits behind calls that all take long. Its timer
// is set when a pop brings more than the lanes can begin at once, not for every call, and goes by
// the calls' time stamps when it rings.
type patience struct {
	timer *time.Timer
	set   bool
}

// longWait is how long all lanes are in their calls before what waits behind them goes back.
const longWait = popAhead

// start has the timer ring after d, unless it rings anyway.
func (p *patience) start(d time.Duration) {
	if !p.set {
		p.set = true
		p.timer.Reset(d)
	}
}

// stamps gives the process's time for time stamps of calls. To read that clock is a system call, a
// quarter of what a small batch costs: so it is read now and then, and Go's clock between. Go's
// clock stands still while the machine is suspended. What was stamped meanwhile seems to have begun
// earlier than it did, by at most that sleep. Never for the lease (I1): that asks MayWork.
type stamps struct {
	read time.Time     // when the process's clock was read last, by Go's
	was  time.Duration // what it said
}

// stampsFor is how long a reading serves.
const stampsFor = 10 * time.Millisecond

// at is the process's time at t, which is now.
func (s *stamps) at(t time.Time, clock func() time.Duration) time.Duration {
	since := t.Sub(s.read)
	if s.read.IsZero() || since >= stampsFor {
		s.read, s.was, since = t, clock(), 0
	}
	return s.was + since
}

// pace is how fast a shard's handlers are: running means, 0 = unknown.
type pace struct{ perJob, perCall time.Duration }

// popAhead: a pop takes what the shard finishes in about this time.
const popAhead = 50 * time.Millisecond

// took counts a handler call in.
func (p *pace) took(d time.Duration, jobs int) {
	mean(&p.perJob, d/time.Duration(jobs))
	mean(&p.perCall, d)
}

func mean(of *time.Duration, sample time.Duration) {
	sample = max(sample, time.Nanosecond)
	if *of == 0 {
		*of = sample
		return
	}
	*of += (sample - *of) / 4
}

// slow reports whether calls take so long that a pop may wait for company.
func (p *pace) slow() bool { return p.perCall >= 100*companyWait }

// endsSoon reports whether a call that has run for so long is about to end, if it takes as long as
// others did. One that should have ended may take long.
func (p *pace) endsSoon(runs time.Duration) bool {
	left := p.perCall - runs
	return -popAhead/10 < left && left < popAhead/2
}

// ids is how many to pop: what so many lanes finish in popAhead, a batch for each at least, prefetch
// at most.
func (p *pace) ids(rules *Rules, lanes int) int {
	least := min(rules.BatchSize*lanes, 1000)
	if p.perJob == 0 {
		return least
	}
	n := int(popAhead/max(p.perJob, time.Microsecond)) * lanes
	return min(max(n, least), max(rules.Prefetch, least))
}
