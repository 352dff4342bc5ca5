package runner

import "time"

// maxAlarm keeps times until jobs are due within the range of timers.
const maxAlarm = 365 * 24 * time.Hour

// alarm wakes the runner when a job is due.
type alarm struct {
	now   func() time.Duration
	timer *time.Timer
	at    time.Duration // time of the next alarm, by now; 0 if none is set
	over  bool          // stop was called
}

// set sets the alarm to d from now, unless it is set to an earlier time.
func (a *alarm) set(d time.Duration) {
	if a.over {
		return
	}
	// A little later than due, so that rounding cannot make the pop come too early.
	d = min(max(d, 0), maxAlarm) + time.Millisecond
	if at := a.now() + d; a.at == 0 || at < a.at {
		a.at = at
		a.timer.Reset(d)
	}
}

// stop ends the alarm for good.
func (a *alarm) stop() {
	a.over = true
	a.timer.Stop()
}

// polls decides when to poll a shard that was not woken. The pauses between polls grow up to maxPollPause if wake-ups
// arrive and the shard had no job for quietAfter.
type polls struct {
	subscribed bool          // Redis has confirmed the subscription to the shard's wake-ups
	lastWork   time.Duration // time of the last job, by the process's clock
	next       time.Duration // time of the next poll, by the process's clock
	wait       time.Duration // pause between polls
}

const (
	quietAfter   = 10 * time.Second
	maxPollPause = time.Minute
)

// markUnsubscribed records that wake-ups may be missed.
func (p *polls) markUnsubscribed(now, interval time.Duration) {
	p.subscribed, p.wait, p.next = false, interval, now+interval
}

// isDue reports whether to poll now, and then schedules the next poll.
func (p *polls) isDue(now, interval time.Duration) bool {
	if now < p.next {
		return false
	}
	if now-p.lastWork < quietAfter || !p.subscribed {
		p.wait = interval
	} else {
		p.wait = min(max(2*p.wait, interval), maxPollPause)
	}
	p.next = now + p.wait
	return true
}
