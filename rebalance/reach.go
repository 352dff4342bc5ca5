package rebalance

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Which addresses of other processes cannot be connected to, for people: Raft tries for ever, and a process that
// nobody reaches just waits.

// Failing is an address to which no connection has succeeded since.
type Failing struct {
	Address string    // host:port
	Since   time.Time // when the first of the attempts that failed began
	Last    time.Time // when the last one ended
	Err     error     // of the last one
}

// failingKept is for how long an address to which nobody tries to connect any more is remembered.
const failingKept = time.Minute

// reach are the addresses that fail.
type reach struct {
	mu      sync.Mutex
	failing map[string]Failing // by address; guarded by mu
}

// note takes in the outcome of an attempt.
func (r *reach) note(address string, began, ended time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.failing, func(_ string, f Failing) bool { return ended.Sub(f.Last) > failingKept })
	if err == nil {
		delete(r.failing, address)
		return
	}
	if r.failing == nil {
		r.failing = map[string]Failing{}
	}
	f, before := r.failing[address]
	if !before {
		f = Failing{Address: address, Since: began}
	}
	f.Last, f.Err = ended, err
	r.failing[address] = f
}

// Failing returns the addresses that cannot be connected to, ascending.
func (l *Listener) Failing() []Failing {
	l.reach.mu.Lock()
	defer l.reach.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.reach.failing), func(a, b Failing) int { return strings.Compare(a.Address, b.Address) })
}

// Probe connects to an address and hangs up, so that Failing knows of it: a process that waits to be called
// never connects to anybody by itself.
func (l *Listener) Probe(ctx context.Context, hostPort string) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.timeout)
	defer cancel()
	began := time.Now()
	conn, err := l.cfg.Dial(ctx, hostPort)
	if context.Cause(ctx) == context.Canceled {
		err = nil // the process ends: that tells nothing
	}
	l.reach.note(hostPort, began, time.Now(), err)
	if conn != nil {
		_ = conn.Close()
	}
}

// Called reports whether another process has a connection to this process's server.
func (l *Listener) Called() bool {
	l.mu.Lock()
	s := l.stream
	l.mu.Unlock()
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > 0
}

// SameGroup reports whether two server ids are of one record's group.
func SameGroup(a, b string) bool { return recordOf(a) != 0 && recordOf(a) == recordOf(b) }
