package node

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/condition"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

const (
	failureInterval = time.Second // between the first two lines about a failure
	// maxFailures is the number of known failures from which old failures are forgotten. Errors of Redis are told apart
	// by their text, and each text may be new.
	maxFailures    = 1000
	outageInterval = 30 * time.Second // between the first two lines about an outage of Redis
	// outageCalm is the time without a failure that ends an outage. Some operations may fail while others, such as the
	// lease's renewal, succeed.
	outageCalm = 2 * time.Second
)

// failureLog limits how often an instance logs the same failure of a handler or of Redis.
type failureLog struct {
	mu sync.Mutex
	of map[string]*condition.Condition // by the words for the failure; guarded by mu
}

// mayLog reports whether a line about a failure may be logged now, and how many lines were left out since the last line.
func (l *failureLog) mayLog(what string) (left int, ok bool) {
	now := sinceBoot()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]*condition.Condition{}
	}
	if l.of[what] == nil {
		if len(l.of) >= maxFailures {
			maps.DeleteFunc(l.of, func(_ string, c *condition.Condition) bool { return now-c.Seen() > condition.Most })
		}
		l.of[what] = &condition.Condition{}
	}
	return l.of[what].See(now, failureInterval)
}

// outages logs when Redis is out of reach, or refuses all commands. It logs an outage once for the whole process,
// however many operations fail.
type outages struct {
	log *slog.Logger

	mu   sync.Mutex
	last map[string]*condition.Condition // by the state that Redis answers; "" if it does not answer; guarded by mu
}

// reportFailure returns whether the error of an operation means an outage of Redis. If so, it also logs the outage.
func (o *outages) reportFailure(op string, err error) bool {
	state := redisdb.Unserving(err)
	if state == "" && !protocol.Unreachable(err) {
		return false
	}
	o.mu.Lock()
	if o.last == nil {
		o.last = map[string]*condition.Condition{}
	}
	if o.last[state] == nil {
		o.last[state] = &condition.Condition{}
	}
	left, ok := o.last[state].See(sinceBoot(), outageInterval)
	o.mu.Unlock()
	switch {
	case ok && state == "":
		o.log.Warn("redis is out of reach", "op", op, "err", err, "left_out", left)
	case ok:
		o.log.Warn("redis refuses all commands now", "state", state, "op", op, "err", err, "left_out", left)
	}
	return true
}

// reportAnswer records that Redis has answered. It logs the end of outages.
func (o *outages) reportAnswer() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for state, last := range o.last {
		left, ok := last.End(sinceBoot(), outageCalm)
		switch {
		case ok && state == "":
			o.log.Info("redis is in reach again", "left_out", left)
		case ok:
			o.log.Info("redis serves commands again", "state", state, "left_out", left)
		}
	}
}
