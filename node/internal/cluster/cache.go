package cluster

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// The agent takes a turn with each renewal of the lease. An idle node must not load Redis, so all
// steps of a turn share what one request has read; see "Who should own a shard" in docs/design.md.

// viewCache keeps the results of the agent's last read. Only the agent's goroutine uses it, except for its atomic fields.
type viewCache struct {
	stale      atomic.Bool                // a process may have come, so the index of instances must be read
	recent     atomic.Pointer[recentView] // the last read of all leases, for other goroutines
	lookedAway atomic.Bool                // the last read was of this process's lease alone
	leases     leaseReader

	index        []lease.Instance
	indexRead    time.Duration            // Now() when index was read
	withoutLease map[string]time.Duration // when an instance was last found without its lease
	// state has the record and the mark of this turn. It is nil if they were not read, or may have changed since. Each is used
	// once. A second question must not get an answer that is older than the question.
	state                *lease.ClusterState
	gaveRecord, gaveMark bool

	renewed time.Duration // Now() before the mark was last renewed, 0 if it was not
}

// leaseReader parses only those leases that have changed since it saw them last. In a cluster of a
// hundred nodes each node reads a hundred leases every second, and few of them are new.
type leaseReader struct {
	mu   sync.Mutex // guards seen
	seen map[string]readLease
}

type readLease struct {
	value []byte
	info  identity.Lease
}

// parseLeases returns the leases of instances. It leaves out instances without a lease, and leases that it cannot read.
func (r *leaseReader) parseLeases(instances []lease.Instance) (infos []identity.Lease) {
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

// recentView has the leases of a read.
type recentView struct {
	live []identity.Lease
	at   time.Duration // Now() of the read
}

// indexEvery returns the time between two reads of the index while gossip reports no change. It is less than three renewals.
func (c *Cluster) indexEvery() time.Duration { return c.cfg.TTL * 5 / 12 }

// DefaultMaxNodesReadingAll is the maximum number of processes that all read all leases. If more of
// them did, the bytes that Redis sends for that would grow with the square of their number.
const DefaultMaxNodesReadingAll = 16

// readView reads Redis for the agent. Usually it reads the record, the mark and all leases, and
// whole is true. In a large cluster a process that neither leads nor votes reads the record, the
// mark and its own lease. If record and mark are there, all is well, and whole is false.
func (c *Cluster) readView(ctx context.Context) (seen []lease.Instance, whole bool, err error) {
	c.cache.dropState()
	if name, _ := c.cfg.Instance(); name != "" && c.mayLookAway() {
		state, err := c.cfg.Leases.State(ctx, []lease.Instance{{Name: name}})
		if err != nil || state.Record != nil && state.Mark != nil {
			c.cache.keepState(state, err)
			return state.Instances, false, err
		}
	}
	seen, err = c.readAll(ctx)
	return seen, true, err
}

// mayLookAway reports whether others look at the leases for this process. It must know a plan, follow
// a leader and have no vote. Gossip must show many processes, and no other with its own name.
func (c *Cluster) mayLookAway() bool {
	status := c.agent.Status()
	if c.AgreedPlan() == nil || status.Leader == "" || status.Leading || slices.Contains(status.Voters, status.Server) {
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
	return alive > c.cfg.MaxNodesReadingAll
}

// keepState keeps record and mark for the rest of the turn.
func (s *viewCache) keepState(state lease.ClusterState, err error) {
	if err == nil {
		s.state = &lease.ClusterState{Record: state.Record, Mark: state.Mark} // without leases, which may be many
		s.gaveRecord, s.gaveMark = false, false
	}
}

// readAll reads record, mark and all leases.
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
	state, err := c.cfg.Leases.State(ctx, s.instancesToRead(begun, retryLostTTLs*c.cfg.TTL))
	s.keepState(state, err)
	if err == nil {
		s.noteLost(begun, state.Instances)
	}
	return state.Instances, err
}

// retryLostTTLs is the number of ttls before an instance without a lease is read again. Its lease will hardly come back,
// because a lease is never revived. But a failover of Redis may show an older state.
const retryLostTTLs = 10

// instancesToRead returns the instances of the index whose leases a turn must read. It leaves out
// instances that had no lease a short while ago. After a crash loop these are many.
func (s *viewCache) instancesToRead(now, again time.Duration) []lease.Instance {
	return slices.DeleteFunc(slices.Clone(s.index), func(i lease.Instance) bool {
		at, lost := s.withoutLease[i.Name]
		return lost && now-at < again
	})
}

// noteLost records which instances have no lease.
func (s *viewCache) noteLost(now time.Duration, seen []lease.Instance) {
	lost := map[string]time.Duration{}
	for _, i := range s.index {
		if at, was := s.withoutLease[i.Name]; was {
			lost[i.Name] = at
		}
	}
	for _, i := range seen {
		if delete(lost, i.Name); i.Lease == nil {
			lost[i.Name] = now
		}
	}
	s.withoutLease = lost
}

// dropState drops record and mark, because they are about to change, or belong to an earlier turn.
func (s *viewCache) dropState() { s.state = nil }

// cachedRecord is the cluster's record, as this turn has read it.
type cachedRecord struct {
	lease.Record
	cache *viewCache
}

// Load returns the record that this turn has read, or reads it.
func (r cachedRecord) Load(ctx context.Context) ([]byte, error) {
	if s := r.cache; s.state != nil && !s.gaveRecord {
		s.gaveRecord = true
		return s.state.Record, nil
	}
	return r.Record.Load(ctx)
}

// CompareAndSet drops the record that was read, because it may change.
func (r cachedRecord) CompareAndSet(ctx context.Context, old, next []byte) (bool, error) {
	r.cache.dropState()
	return r.Record.CompareAndSet(ctx, old, next)
}

// cachedMark is the leader's mark, as this turn has read it.
type cachedMark struct {
	lease.Mark
	cache *viewCache
	ttl   time.Duration
	now   func() time.Duration
}

// Load returns the mark that this turn has read, or reads it.
func (m cachedMark) Load(ctx context.Context) ([]byte, error) {
	if s := m.cache; s.state != nil && !s.gaveMark {
		s.gaveMark = true
		return s.state.Mark, nil
	}
	return m.Mark.Load(ctx)
}

// Renew skips the renewal if this turn has found record and mark as they should be and the mark lives
// for more than half a ttl. Every third renewal is enough.
func (m cachedMark) Renew(ctx context.Context, record, mark []byte) (bool, error) {
	s, begun := m.cache, m.now()
	if s.state != nil && s.renewed != 0 && begun-s.renewed < m.ttl*5/12 && mark != nil && record != nil &&
		bytes.Equal(s.state.Record, record) && bytes.Equal(s.state.Mark, mark) {
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

// LooksAway reports whether the last turn read this process's lease alone.
func (c *Cluster) LooksAway() bool { return c != nil && c.cache.lookedAway.Load() }

// RecentLeases returns the leases of the last read of all leases, and the time of that read. It
// returns false if there was none yet.
func (c *Cluster) RecentLeases() (live []identity.Lease, at time.Duration, known bool) {
	recent := c.cache.recent.Load()
	if recent == nil {
		return nil, 0, false
	}
	return recent.live, recent.at, true
}
