package node

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/queue"
)

const (
	failureEvery = time.Second
	// failureLines is how many failures are known before those of long ago are forgotten: one may
	// be the text of an error of Redis, and each text new.
	failureLines = 1000
	outageEvery  = 30 * time.Second
	// outageCalm is for how long nothing may have failed when an outage is said to be over: some
	// operations may fail while others, such as the lease's renewal, get through.
	outageCalm = 2 * time.Second
)

// failure is one that may happen often, and must not drown the log: there is one line in a while,
// which says how many were left out.
type failure struct {
	logged time.Duration // sinceBoot of the last line; 0: there was none
	seen   time.Duration // sinceBoot of the last one
	left   int           // not logged since
}

// may reports whether a line may be logged, and how many were left out since the last one.
func (f *failure) may(now, every time.Duration) (left int, ok bool) {
	f.seen = now
	if f.logged != 0 && now-f.logged < every {
		f.left++
		return 0, false
	}
	left = f.left
	f.logged, f.left = now, 0
	return left, true
}

// over forgets one that was not seen for calm. It reports whether there was one, and how many were
// left out since its last line.
func (f *failure) over(now, calm time.Duration) (left int, ok bool) {
	if f.logged == 0 || now-f.seen < calm {
		return 0, false
	}
	left, *f = f.left, failure{}
	return left, true
}

// failureLog are the failures of an instance: of handlers, and of Redis.
type failureLog struct {
	mu sync.Mutex
	of map[string]*failure // by what has failed, in words; guarded by mu
}

// may reports whether a line about this may be logged, and how many were left out since the last
// one.
func (l *failureLog) may(what string) (left int, ok bool) {
	now := sinceBoot()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]*failure{}
	}
	if l.of[what] == nil {
		if len(l.of) >= failureLines {
			maps.DeleteFunc(l.of, func(_ string, f *failure) bool { return now-f.seen > time.Minute })
		}
		l.of[what] = &failure{}
	}
	return l.of[what].may(now, failureEvery)
}

// outages tells the log, once for all who notice, when Redis is out of reach.
type outages struct {
	log *slog.Logger

	mu   sync.Mutex
	last failure // guarded by mu
}

// note reports whether an operation's error says that Redis is out of reach.
func (o *outages) note(op string, err error) bool {
	if !queue.Unreachable(err) {
		return false
	}
	o.mu.Lock()
	left, ok := o.last.may(sinceBoot(), outageEvery)
	o.mu.Unlock()
	if ok {
		o.log.Warn("redis is out of reach", "op", op, "err", err, "left_out", left)
	}
	return true
}

// answered notes that Redis has answered.
func (o *outages) answered() {
	o.mu.Lock()
	left, ok := o.last.over(sinceBoot(), outageCalm)
	o.mu.Unlock()
	if ok {
		o.log.Info("redis is in reach again", "left_out", left)
	}
}
