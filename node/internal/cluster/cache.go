package cluster

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// The agent reads Redis once per renewal. An idle node must not load Redis, so what one look has
// read is kept for the other questions of the same turn; see "Who should own a shard" in
// docs/design.md.

// viewCache keeps what one look of the agent has read. But for its atomic fields it belongs to the
// agent's goroutine.
type viewCache struct {
	stale  atomic.Bool                // a process may have come: read the index of instances
	recent atomic.Pointer[recentView] // of the last look at all leases, for others than the agent
	away   atomic.Bool                // the last look was at this process's lease alone
	leases leaseReader

	index     []lease.Instance
	indexRead time.Duration            // Now()
	lost      map[string]time.Duration // when an instance was last found without its lease
	// look is what the agent's turn has read, nil if nothing, or if it may have changed since.
	// Record and mark are given away once each, so that nothing older than the turn is ever taken
	// for the truth.
	look                 *lease.ClusterState
	gaveRecord, gaveMark bool

	renewed time.Duration // Now() before the mark was last renewed; 0 = it was not
}

// leaseReader parses leases that have changed since it saw them last: of a hundred nodes
// that look at a hundred leases every second, few find a new one.
type leaseReader struct {
	mu   sync.Mutex // guards seen
	seen map[string]readLease
}

type readLease struct {
	value []byte
	info  identity.Lease
}

// read returns what the leases of instances say, without those that are gone or make no
// sense.
func (r *leaseReader) read(instances []lease.Instance) (infos []identity.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(map[string]readLease, len(instances))
	for _, other := range instances {
		if other.Lease == nil {
			continue
		}
		known, ok := r.seen[other.Name]
		if !ok || !bytes.Equal(known.value, other.Lease) {
			info, err := identity.ParseLease(other.Lease)
			if err != nil {
				continue
			}
			known = readLease{other.Lease, info}
		}
		seen[other.Name] = known
		infos = append(infos, known.info)
	}
	r.seen = seen
	return infos
}

// recentView are the leases as the agent saw them.
type recentView struct {
	live []identity.Lease
	at   time.Duration // Now()
}

// indexEvery is how often the index is read when gossip has no news: three renewals.
func (c *Cluster) indexEvery() time.Duration { return c.cfg.TTL * 5 / 12 }

// DefaultFewNodes is how many processes may look at all leases each: beyond, what Redis sends for
// that would grow with the square of their number.
const DefaultFewNodes = 16

// readView looks at Redis for the agent. In a large cluster a process that neither leads nor
// votes looks at the record, the mark and its own lease, while these say that all is well;
// then whole is false.
func (c *Cluster) readView(ctx context.Context) (seen []lease.Instance, whole bool, err error) {
	c.cache.forget()
	if name, _ := c.cfg.Instance(); name != "" && c.mayLookAway() {
		state, err := c.cfg.Leases.State(ctx, []lease.Instance{{Name: name}})
		if err != nil || state.Record != nil && state.Mark != nil {
			c.cache.saw(state, err)
			return state.Instances, false, err
		}
	}
	seen, err = c.readAll(ctx)
	return seen, true, err
}

// mayLookAway reports whether others look for this process: it knows a plan, follows a
// leader and has no vote, gossip shows many, and none of its own name.
func (c *Cluster) mayLookAway() bool {
	status := c.agent.Status()
	if c.Agreed() == nil || status.Leader == "" || status.Leading || slices.Contains(status.Voters, status.Server) {
		return false
	}
	alive := 0
	for _, m := range c.gossip.Members() {
		if m.State != membership.Alive {
			continue
		}
		alive++
		if m.Instance.Node == c.cfg.Node && m.Instance.Boot != c.cfg.Boot {
			return false
		}
	}
	return alive > c.cfg.FewNodes
}

// saw keeps what a look has read for the questions of the same turn.
func (s *viewCache) saw(state lease.ClusterState, err error) {
	if err == nil {
		s.look = &lease.ClusterState{Record: state.Record, Mark: state.Mark} // leases may be many
		s.gaveRecord, s.gaveMark = false, false
	}
}

// readAll looks at record, mark and all leases.
func (c *Cluster) readAll(ctx context.Context) ([]lease.Instance, error) {
	s := &c.cache
	begun := c.cfg.Now()
	if s.stale.Swap(false) || s.index == nil || begun-s.indexRead >= c.indexEvery() {
		index, err := c.cfg.Leases.Identities(ctx)
		if err != nil {
			s.stale.Store(true)
			return nil, err
		}
		s.index, s.indexRead = index, begun
	}
	state, err := c.cfg.Leases.State(ctx, s.asked(begun, lostTTLs*c.cfg.TTL))
	s.saw(state, err)
	if err == nil {
		s.found(begun, state.Instances)
	}
	return state.Instances, err
}

// lostTTLs is after how many ttls the lease of an instance that had none is asked for again. It
// will not come back: a lease is taken with the entry in the index and never revived. But a
// failover may show what was before.
const lostTTLs = 10

// asked are the instances of the index that a look asks for: the dead are many after a crash loop,
// and stay for long.
func (s *viewCache) asked(now, again time.Duration) []lease.Instance {
	return slices.DeleteFunc(slices.Clone(s.index), func(i lease.Instance) bool {
		at, lost := s.lost[i.Name]
		return lost && now-at < again
	})
}

// found notes which instances have no lease.
func (s *viewCache) found(now time.Duration, seen []lease.Instance) {
	lost := map[string]time.Duration{}
	for _, i := range s.index {
		if at, was := s.lost[i.Name]; was {
			lost[i.Name] = at
		}
	}
	for _, i := range seen {
		if delete(lost, i.Name); i.Lease == nil {
			lost[i.Name] = now
		}
	}
	s.lost = lost
}

// forget drops what was read: it is about to change, or of an earlier turn.
func (s *viewCache) forget() { s.look = nil }

// cachedRecord is the cluster record as the agent's look has read it.
type cachedRecord struct {
	lease.Record
	cache *viewCache
}

// Load returns what the look of this turn read, else reads.
func (r cachedRecord) Load(ctx context.Context) ([]byte, error) {
	if s := r.cache; s.look != nil && !s.gaveRecord {
		s.gaveRecord = true
		return s.look.Record, nil
	}
	return r.Record.Load(ctx)
}

// CompareAndSet drops what was read: it may have changed.
func (r cachedRecord) CompareAndSet(ctx context.Context, old, next []byte) (bool, error) {
	r.cache.forget()
	return r.Record.CompareAndSet(ctx, old, next)
}

// cachedMark is the leader's mark likewise.
type cachedMark struct {
	lease.Mark
	cache *viewCache
	ttl   time.Duration
	now   func() time.Duration
}

// Load returns what the look of this turn read, else reads.
func (m cachedMark) Load(ctx context.Context) ([]byte, error) {
	if s := m.cache; s.look != nil && !s.gaveMark {
		s.gaveMark = true
		return s.look.Mark, nil
	}
	return m.Mark.Load(ctx)
}

// Renew does nothing while the look of this turn found record and mark as they should be
// and the mark still has more than half of its life: every third renewal is enough.
func (m cachedMark) Renew(ctx context.Context, record, mark []byte) (bool, error) {
	s, begun := m.cache, m.now()
	if s.look != nil && s.renewed != 0 && begun-s.renewed < m.ttl*5/12 && mark != nil && record != nil &&
		bytes.Equal(s.look.Record, record) && bytes.Equal(s.look.Mark, mark) {
		return true, nil
	}
	done, err := m.Mark.Renew(ctx, record, mark)
	if err == nil && done {
		s.renewed = begun
	} else {
		s.renewed = 0
	}
	return done, err
}

// LooksAway reports whether the last look was at this process's lease alone.
func (c *Cluster) LooksAway() bool { return c != nil && c.cache.away.Load() }

// Live returns the leases that the last look at all of them saw, and when that was; false if there
// was none yet.
func (c *Cluster) Live() (live []identity.Lease, at time.Duration, known bool) {
	recent := c.cache.recent.Load()
	if recent == nil {
		return nil, 0, false
	}
	return recent.live, recent.at, true
}
