package rebalance

import (
	"maps"
	"slices"
	"time"
)

// A handler that comes and goes must not have its shards carried to and fro, and an endpoint
// that all nodes share fails, and comes back, for all of them within moments. So who is ready
// is believed once it has been the same for a while.

// marks knows which handlers are believed to be not ready. Every process watches, so that a
// new leader believes what its predecessor did.
type marks struct {
	ttl    time.Duration
	queues map[string]*marked // nil before the first look
}

// marked are the processes whose handler of a queue is not ready, by boot.
type marked struct {
	believed map[string]bool
	seen     map[string]bool // as the last look saw it
	first    time.Time       // when seen began to differ from believed; zero: it does not
	last     time.Time       // when seen last changed
}

// For how many ttls the marks of a queue must be the same before they count, and at most since
// the first of them was news.
const (
	calmMarkTTLs   = 1
	latestMarkTTLs = 2
)

// observe takes the processes as they are now, and leaves in them the marks that are believed.
func (m *marks) observe(now time.Time, peers []Peer) {
	atFirst := m.queues == nil
	seen := map[string]map[string]bool{}
	for _, p := range peers {
		for _, q := range p.Unready {
			if seen[q] == nil {
				seen[q] = map[string]bool{}
			}
			seen[q][p.Boot] = true
		}
	}
	if atFirst {
		m.queues = map[string]*marked{}
	}
	for q := range seen {
		if m.queues[q] == nil {
			m.queues[q] = &marked{}
		}
	}
	for q, of := range m.queues {
		of.observe(now, seen[q], atFirst, m.ttl)
		if len(of.believed)+len(of.seen) == 0 {
			delete(m.queues, q)
		}
	}
	for i := range peers {
		peers[i].Unready = m.of(peers[i])
	}
}

func (m *marked) observe(now time.Time, seen map[string]bool, atFirst bool, ttl time.Duration) {
	if !maps.Equal(seen, m.seen) {
		m.seen, m.last = seen, now
	}
	switch {
	case maps.Equal(seen, m.believed):
		m.first = time.Time{}
		return
	case m.first.IsZero():
		m.first = now
	}
	if atFirst || now.Sub(m.last) >= calmMarkTTLs*ttl || now.Sub(m.first) >= latestMarkTTLs*ttl {
		m.believed, m.first = seen, time.Time{}
	}
}

// of returns the queues that a process handles and is believed not to be ready for.
func (m *marks) of(p Peer) (list []string) {
	if len(m.queues) == 0 {
		return nil
	}
	for _, q := range p.Queues {
		if of := m.queues[q]; of != nil && of.believed[p.Boot] {
			list = append(list, q)
		}
	}
	slices.Sort(list)
	return list
}
