package node

import (
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/queue"
)

// What the log says of handlers that fail, and of a Redis that is out of reach. Neither may drown it: of
// each queue and kind there is one line in a while, which says how many were left out.

const (
	failureEvery = time.Second
	outageEvery  = 30 * time.Second
	// outageCalm is for how long nothing may have failed when an outage is said to be over: some
	// operations may fail while others, such as the lease's renewal, get through.
	outageCalm = 2 * time.Second
)

type failureKind string

const (
	redisAway failureKind = "redis is out of reach" // of no queue; the others are a runner's
)

// every is how long there is one line at most.
func (k failureKind) every() time.Duration {
	if k == redisAway {
		return outageEvery
	}
	return failureEvery
}

type failureLog struct {
	mu   sync.Mutex
	last map[failureKey]failureLine // guarded by mu
}

type failureKey struct {
	queue string
	kind  failureKind
}

type failureLine struct {
	at   time.Duration // sinceBoot of the last line
	seen time.Duration // sinceBoot of the last failure
	left int           // not logged since
}

// may reports whether a line may be logged, and how many were left out since the last one.
func (l *failureLog) may(queueName string, kind failureKind, now time.Duration) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		l.last = map[failureKey]failureLine{}
	}
	key := failureKey{queueName, kind}
	line, before := l.last[key]
	if before && now-line.at < kind.every() {
		line.left++
		line.seen = now
		l.last[key] = line
		return 0, false
	}
	l.last[key] = failureLine{at: now, seen: now}
	return line.left, true
}

// over forgets a failure that was not seen for calm. It reports whether there was one, and how many were
// left out since its last line.
func (l *failureLog) over(queueName string, kind failureKind, now, calm time.Duration) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := failureKey{queueName, kind}
	line, before := l.last[key]
	if !before || now-line.seen < calm {
		return 0, false
	}
	delete(l.last, key)
	return line.left, true
}

// outOfReach reports whether err says that Redis is out of reach. That is logged once for all who notice.
func (n *Node) outOfReach(op string, err error) bool {
	if !queue.Unreachable(err) {
		return false
	}
	if left, ok := n.outages.may("", redisAway, sinceBoot()); ok {
		n.log.Warn(string(redisAway), "op", op, "err", err, "left_out", left)
	}
	return true
}

// inReach notes that Redis has answered.
func (n *Node) inReach() {
	if left, ok := n.outages.over("", redisAway, sinceBoot(), outageCalm); ok {
		n.log.Info("redis is in reach again", "left_out", left)
	}
}
