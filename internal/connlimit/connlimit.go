// Package connlimit answers one question: which connection ends when there are too many?
//
// A [Set] holds the connections of one port. None waits outside: the newest is let in, and the one
// that has waited longest without being held, of the address with most of those, is closed. So a
// client that opens many and sends nothing loses its own, and a new one that asks at once is
// answered. A connection that may stay is held ([Conn.Hold]) and not closed for others; callers
// bound how many are.
//
// There are no goroutines. Nothing is closed under the lock.
package connlimit

import (
	"net"
	"sync"
)

// Limit says how many connections there may be.
type Limit struct {
	Total      int // at once; required
	PerAddress int // of one IP address; 0: as many as there may be in total
}

// Set is the connections of one port.
type Set struct {
	limit Limit

	mu    sync.Mutex // guards the following and the fields of Conn that say so
	turn  uint64     // of the last one that began to wait
	conns map[*Conn]struct{}
}

// New makes an empty set.
func New(limit Limit) *Set { return &Set{limit: limit, conns: map[*Conn]struct{}{}} }

// Conn is a connection of a set, which it leaves when it is closed.
type Conn struct {
	net.Conn
	set  *Set
	from string

	held int    // guarded by the set's mu
	turn uint64 // when it was last let go; guarded by the set's mu
}

// Add lets a connection in, and closes another one for it if there are too many. If all others are
// held it closes c and returns nil.
func (s *Set) Add(c net.Conn) *Conn {
	added := &Conn{Conn: c, set: s, from: addressOf(c)}
	victim, ok := s.add(added)
	if victim != nil {
		_ = victim.Conn.Close()
	}
	if !ok {
		_ = c.Close()
		return nil
	}
	return added
}

func (s *Set) add(c *Conn) (victim *Conn, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, idle := map[string]int{}, map[string]int{}
	if full := len(s.conns) >= s.limit.Total; full || s.limit.PerAddress > 0 {
		for other := range s.conns {
			all[other.from]++
			if other.held == 0 {
				idle[other.from]++
			}
		}
		crowded := s.limit.PerAddress > 0 && all[c.from] >= s.limit.PerAddress
		if crowded || full {
			if victim = s.longest(idle, crowded, c.from); victim == nil {
				return nil, false
			}
			delete(s.conns, victim)
		}
	}
	s.turn++
	c.turn = s.turn
	s.conns[c] = struct{}{}
	return victim, true
}

// longest is the connection that has waited longest of one address, or of the address with most
// that wait; nil if none waits.
func (s *Set) longest(idle map[string]int, one bool, from string) (found *Conn) {
	for c := range s.conns {
		if c.held > 0 || one && c.from != from {
			continue
		}
		if found == nil || idle[c.from] > idle[found.from] || idle[c.from] == idle[found.from] && c.turn < found.turn {
			found = c
		}
	}
	return found
}

// Of is the connection of a set that c is made of, nil if there is none. It looks through TLS and
// whatever else has a method NetConn.
func Of(c net.Conn) *Conn {
	for {
		switch inner := c.(type) {
		case *Conn:
			return inner
		case interface{ NetConn() net.Conn }:
			c = inner.NetConn()
		default:
			return nil
		}
	}
}

// Len is how many connections there are.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Hold keeps the connection from being closed for others, until as many Releases.
func (c *Conn) Hold() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.held++
}

// Release ends a Hold. The connection begins to wait anew.
func (c *Conn) Release() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.held--
	c.set.turn++
	c.turn = c.set.turn
}

// Close closes the connection and makes room for another one.
func (c *Conn) Close() error {
	c.set.mu.Lock()
	delete(c.set.conns, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}

// addressOf is the IP address of the other end.
func addressOf(c net.Conn) string {
	remote := c.RemoteAddr()
	if remote == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(remote.String())
	if err != nil {
		return remote.String()
	}
	return host
}

// Listener is a listener whose connections are those of a set.
type Listener struct {
	net.Listener
	Set *Set
}

// Accept returns the next connection, a *Conn.
func (l Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if added := l.Set.Add(c); added != nil {
			return added, nil
		}
	}
}
