// Package connlimit answers one question: which connection is closed when there are too many?
//
// A [Set] holds the connections of a port. A new connection is always let in. If there are too many, the
// longest idle connection is closed for it, of the address that has most idle connections. So a client
// that opens many connections and sends nothing loses its own connections, and a new connection that sends
// a request at once is answered. A connection that is held ([Conn.Hold]) is not closed for others. Callers
// must bound how many they hold.
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
	PerAddress int // from one IP address; 0 for the same as Total
}

// Set holds the connections of a port.
type Set struct {
	limit Limit

	mu    sync.Mutex // guards the fields below, and the fields of Conn that say so
	turn  uint64     // the turn of the connection that became idle last
	conns map[*Conn]struct{}
}

// New returns an empty set.
func New(limit Limit) *Set { return &Set{limit: limit, conns: map[*Conn]struct{}{}} }

// Conn is a connection of a set. It leaves the set when it is closed.
type Conn struct {
	net.Conn
	set  *Set
	from string

	held int    // number of holds; guarded by the set's mu
	turn uint64 // orders connections by the time when they became idle; guarded by the set's mu
}

// Add lets a connection in. If there are too many, it closes another connection. If all others are
// held, it closes c and returns nil.
func (s *Set) Add(c net.Conn) *Conn {
	added := &Conn{Conn: c, set: s, from: addressOf(c)}
	victim, ok := s.insert(added)
	if victim != nil {
		_ = victim.Conn.Close()
	}
	if !ok {
		_ = c.Close()
		return nil
	}
	return added
}

// insert adds a connection. victim is the connection that must be closed for it, nil if there is room.
// ok is false if there is no room.
func (s *Set) insert(c *Conn) (victim *Conn, ok bool) {
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
			if victim = s.longestIdle(idle, crowded, c.from); victim == nil {
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

// longestIdle returns the longest idle connection of the address from if one is true, and otherwise of the
// address with most idle connections. It returns nil if no connection is idle.
func (s *Set) longestIdle(idle map[string]int, one bool, from string) (found *Conn) {
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

// ConnOf returns the connection of a set below c, nil if there is none. It looks through TLS and all other
// types with a method NetConn.
func ConnOf(c net.Conn) *Conn {
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

// Len returns how many connections there are.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Hold keeps the connection from being closed for others. It ends with as many calls of Release.
func (c *Conn) Hold() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.held++
}

// Release ends a Hold. The connection becomes idle now.
func (c *Conn) Release() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.held--
	c.set.turn++
	c.turn = c.set.turn
}

// Close closes the connection and makes room in the set.
func (c *Conn) Close() error {
	c.set.mu.Lock()
	delete(c.set.conns, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}

// addressOf returns the IP address of the other end.
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

// Listener puts the connections that it accepts into a set.
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
