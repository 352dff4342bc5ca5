package runner

import "time"

// patience is the timer of the check whether popped jobs wait behind long calls. It is not set for every call. It is set
// when a pop brings more jobs than the lanes can begin at once, and the check then compares the times when the calls
// began.
type patience struct {
	timer *time.Timer
	set   bool
}

// longWait is how long all lanes must have been in their calls before waiting jobs go back.
const longWait = popAhead

// start sets the timer to d, unless it is set already.
func (p *patience) start(d time.Duration) {
	if !p.set {
		p.set = true
		p.timer.Reset(d)
	}
}

// callClock gives the process's time for time stamps of calls. Reading the process's clock is a system call, which takes
// a quarter of the time of a small batch. So callClock reads it once per maxReadingAge and adds the time since
// by Go's clock. Go's clock stands still while the machine is suspended. A call that was stamped after a suspend
// seems to have begun earlier than it did, by at most the length of the suspend. Nothing about the lease relies
// on these stamps, because MayWork reads the clock itself (I1).
type callClock struct {
	read time.Time     // time of the last reading, by Go's clock
	was  time.Duration // the process's time at that reading
}

// maxReadingAge is how long a reading is used.
const maxReadingAge = 10 * time.Millisecond

// timeAt returns the process's time at now, the current time of Go's clock.
func (s *callClock) timeAt(now time.Time, clock func() time.Duration) time.Duration {
	since := now.Sub(s.read)
	if s.read.IsZero() || since >= maxReadingAge {
		s.read, s.was, since = now, clock(), 0
	}
	return s.was + since
}

// pace holds running means of the time that handlers take. 0 means that the mean is unknown.
type pace struct{ perJob, perCall time.Duration }

// popAhead is how long the work of a pop should last.
const popAhead = 50 * time.Millisecond

// addCall adds a handler call to the means.
func (p *pace) addCall(d time.Duration, jobs int) {
	updateMean(&p.perJob, d/time.Duration(jobs))
	updateMean(&p.perCall, d)
}

func updateMean(mean *time.Duration, sample time.Duration) {
	sample = max(sample, time.Nanosecond)
	if *mean == 0 {
		*mean = sample
		return
	}
	*mean += (sample - *mean) / 4
}

// endsSoon reports whether a call that has run for the given time is about to end, judged by the mean. A call that has
// run for longer than the mean may take long, and does not count.
func (p *pace) endsSoon(runs time.Duration) bool {
	left := p.perCall - runs
	return -popAhead/10 < left && left < popAhead/2
}

// idsToPop returns how many ids to pop for a number of lanes. These lanes should finish them within popAhead. They are at
// least a batch for each lane, and at most prefetch.
func (p *pace) idsToPop(rules *Rules, lanes int) int {
	least := min(rules.BatchSize*lanes, 1000)
	if p.perJob == 0 {
		return least
	}
	n := int(popAhead/max(p.perJob, time.Microsecond)) * lanes
	return min(max(n, least), max(rules.Prefetch, least))
}
