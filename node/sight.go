package node

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// What the agent sees of Redis, and how it costs little: an idle node must not load Redis
// (design, section 8), and the agent looks once per renewal.

// sight keeps what one look of the agent has read for the questions of the same turn.
// But for stale, recent, strays and away it belongs to the agent's goroutine.
type sight struct {
	stale  atomic.Bool                // somebody may have come: read the index of instances
	recent atomic.Pointer[recentView] // for others than the agent
	strays atomic.Pointer[[]string]   // of the last look; see warnOfStrays
	away   atomic.Bool                // the last look was at this process's lease alone
	leases leaseReader

	index     []queue.Instance
	indexRead time.Duration            // sinceBoot
	lost      map[string]time.Duration // of the index: when an instance was last found without its lease, sinceBoot
	// Of the last look; each is given away once, so that nothing older than the agent's
	// turn is ever taken for the truth.
	record, mark       []byte
	hasRecord, hasMark bool

	// What was true when the mark was last renewed or found; see sightedMark.Renew.
	seenRecord, seenMark []byte
	renewed              time.Duration // sinceBoot before the last renewal; 0 = none
}

// leaseReader parses leases that have changed since it saw them last: of a hundred nodes
// that look at a hundred leases every second, few find a new one.
type leaseReader struct {
	mu   sync.Mutex // guards seen
	seen map[string]readLease
}

type readLease struct {
	value []byte
	info  LeaseInfo
}

// read returns what the leases of instances say, without those that are gone or make no
// sense.
func (r *leaseReader) read(instances []queue.Instance) (infos []LeaseInfo) {
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
	live []LeaseInfo
	at   time.Duration // sinceBoot
}

// indexEvery is how often the index is read when gossip has no news: three renewals.
func (c *cluster) indexEvery() time.Duration { return c.node.cfg.TTL * 5 / 12 }

// fewNodes is how many processes may look at all leases each: beyond, what Redis sends
// for that would grow with the square of their number.
const fewNodes = 16

// glance looks at Redis for the agent. In a large cluster a process that neither leads nor
// votes looks at the record, the mark and its own lease, while these say that all is well;
// then whole is false.
func (c *cluster) glance(ctx context.Context) (seen []queue.Instance, whole bool, err error) {
	c.sight.forget()
	if in := c.node.current.Load(); in != nil && c.mayLookAway() {
		g, err := c.node.leases.Glance(ctx, []queue.Instance{{Name: in.name}})
		if err != nil || g.Record != nil && g.Mark != nil {
			c.sight.saw(g, err)
			return g.Instances, false, err
		}
	}
	seen, err = c.glanceAtAll(ctx)
	return seen, true, err
}

// mayLookAway reports whether others look for this process: it knows a plan, follows a
// leader that it can hear and has no vote, gossip shows many, and none of its own name.
func (c *cluster) mayLookAway() bool {
	status := c.agent.Status()
	if c.agent.Assignment().Generation == (plan.Generation{}) || status.Leader == "" || status.Leading || slices.Contains(status.Voters, status.Server) {
		return false
	}
	alive := 0
	for _, m := range c.gossip.Members() {
		if m.State != membership.Alive {
			continue
		}
		alive++
		if m.Instance.Node == c.node.cfg.Name && m.Instance.Boot != c.node.boot {
			return false
		}
	}
	return alive > c.node.cfg.fewNodes
}

// saw keeps what a look has read for the questions of the same turn.
func (s *sight) saw(g queue.Glance, err error) {
	if err == nil {
		s.record, s.mark, s.hasRecord, s.hasMark = g.Record, g.Mark, true, true
		s.seenRecord, s.seenMark = g.Record, g.Mark
	}
}

// glanceAtAll looks at record, mark and all leases.
func (c *cluster) glanceAtAll(ctx context.Context) ([]queue.Instance, error) {
	s := &c.sight
	begun := sinceBoot()
	if s.stale.Swap(false) || s.index == nil || begun-s.indexRead >= c.indexEvery() {
		index, err := c.node.leases.Index(ctx)
		if err != nil {
			s.stale.Store(true)
			return nil, err
		}
		s.index, s.indexRead = index, begun
	}
	g, err := c.node.leases.Glance(ctx, s.asked(begun, lostTTLs*c.node.cfg.TTL))
	s.saw(g, err)
	if err == nil {
		s.found(begun, g.Instances)
	}
	return g.Instances, err
}

// lostTTLs is after how many ttls the lease of an instance that had none is asked for again. It will not come back: a
// lease is taken with the entry in the index and never revived. But a failover may show what was before.
const lostTTLs = 10

// asked are the instances of the index that a look asks for: the dead are many after a crash loop, and stay for long.
func (s *sight) asked(now, again time.Duration) []queue.Instance {
	return slices.DeleteFunc(slices.Clone(s.index), func(i queue.Instance) bool {
		at, lost := s.lost[i.Name]
		return lost && now-at < again
	})
}

// found notes who has no lease.
func (s *sight) found(now time.Duration, seen []queue.Instance) {
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
func (s *sight) forget() {
	s.hasRecord, s.hasMark, s.seenRecord, s.seenMark = false, false, nil, nil
}

// sightedRecord is the cluster record as the agent's look has read it.
type sightedRecord struct {
	queue.ClusterRecord
	sight *sight
}

// Load returns what the look of this turn read, else reads.
func (r sightedRecord) Load(ctx context.Context) ([]byte, error) {
	if r.sight.hasRecord {
		r.sight.hasRecord = false
		return r.sight.record, nil
	}
	return r.ClusterRecord.Load(ctx)
}

// CompareAndSet makes all that was read doubtful.
func (r sightedRecord) CompareAndSet(ctx context.Context, old, next []byte) (bool, error) {
	r.sight.forget()
	return r.ClusterRecord.CompareAndSet(ctx, old, next)
}

// sightedMark is the leader's mark likewise.
type sightedMark struct {
	queue.LeaderMark
	sight *sight
	ttl   time.Duration
}

// Load returns what the look of this turn read, else reads.
func (m sightedMark) Load(ctx context.Context) ([]byte, error) {
	if m.sight.hasMark {
		m.sight.hasMark = false
		return m.sight.mark, nil
	}
	return m.LeaderMark.Load(ctx)
}

// Renew does nothing while the look of this turn found record and mark as they should be
// and the mark still has more than half of its life: every third renewal is enough.
func (m sightedMark) Renew(ctx context.Context, record, mark []byte) (bool, error) {
	s, begun := m.sight, sinceBoot()
	if s.renewed != 0 && begun-s.renewed < m.ttl*5/12 && mark != nil && record != nil &&
		bytes.Equal(s.seenRecord, record) && bytes.Equal(s.seenMark, mark) {
		return true, nil
	}
	done, err := m.LeaderMark.Renew(ctx, record, mark)
	if err == nil && done {
		s.renewed = begun
	} else {
		s.renewed = 0
	}
	return done, err
}
