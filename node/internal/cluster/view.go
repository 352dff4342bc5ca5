package cluster

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// What the leader plans from: leases in Redis, processes in gossip.

// View implements rebalance.Source. It is the agent's; others call Look.
func (c *Cluster) View(ctx context.Context) (rebalance.View, error) {
	instances, whole, err := c.readView(ctx)
	if err != nil {
		return rebalance.View{}, err
	}
	entries, err := c.cfg.Registry(ctx, c.cfg.TTL/3) // the lease's renewal reads it too
	if err != nil {
		return rebalance.View{}, err
	}
	c.cache.away.Store(!whole)
	live := c.leased(instances)
	if !whole {
		return c.view(live, entries), nil
	}
	c.warnOf(live)
	c.endDead(ctx, instances)
	was := c.cache.recent.Swap(&recentView{live, c.cfg.Now()})
	if was == nil || len(was.live) != len(live) {
		c.cfg.Changed(false) // it may be alone, or not any more
	}
	return c.view(live, entries), nil
}

// Gossiped implements rebalance.Source.
func (c *Cluster) Gossiped() []rebalance.Peer { return viewOf(nil, c.gossip.Members()).Peers }

// Look reads everything anew.
func (c *Cluster) Look(ctx context.Context) (rebalance.View, error) {
	instances, err := c.cfg.Leases.All(ctx)
	if err != nil {
		return rebalance.View{}, err
	}
	entries, err := c.cfg.Registry(ctx, 0)
	if err != nil {
		return rebalance.View{}, err
	}
	return c.view(c.leased(instances), entries), nil
}

// endDead ends the leases of instances whose processes, with all their children, are proven to exist no more: permits of limits
// that they held are free at once. Their shards go by the plan, and may be planned for others after the lease would have run out.
func (c *Cluster) endDead(ctx context.Context, instances []lease.Instance) {
	for _, other := range instances {
		id, known := identity.Parse(other.Identity)
		if other.Lease == nil || !known || !c.cfg.Process.Ended(id) {
			continue
		}
		if err := c.cfg.Leases.End(ctx, other.Name); err != nil {
			c.cfg.Log.Debug("lease of a dead process not ended; it will expire", "instance", other.Name, "err", err)
		}
	}
}

func (c *Cluster) view(live []identity.Lease, entries map[string]queue.Entry) rebalance.View {
	view := viewOf(live, c.warnings.believed(c.gossip.Members()))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		view.Queues = append(view.Queues, lowkiq.Queue{Name: name, Shards: entries[name].Shards})
	}
	_, view.Leased = c.cfg.Instance()
	c.recognise(&view)
	return view
}

// recognise finds this process in a view: its seat is fresher here than in any lease, and a newer
// process under its name ends its work.
func (c *Cluster) recognise(view *rebalance.View) {
	superseded := false
	for i := range view.Peers {
		peer := &view.Peers[i]
		if peer.Boot == c.cfg.Boot {
			peer.RaftInfo = c.agent.RaftInfo()
			superseded = superseded || peer.Superseded
		}
	}
	if c.superseded.Swap(superseded) != superseded {
		c.cfg.Log.Warn("another process with this node's name", "newer", superseded)
		c.cfg.Changed(false)
	}
}

// leased are the processes that have a lease and are not proven dead.
func (c *Cluster) leased(instances []lease.Instance) []identity.Lease {
	var live []identity.Lease
	for _, info := range c.cache.leases.read(instances) {
		if !c.cfg.Process.Gone(info.Process) {
			live = append(live, info)
		}
	}
	return latest(live)
}

// latest keeps the newest lease of each process: one that has lost its lease and goes on
// under another has two until the first runs out.
func latest(leases []identity.Lease) (kept []identity.Lease) {
	at := map[string]int{} // by boot: its place in kept
	for _, info := range leases {
		i, seen := at[info.Boot]
		switch {
		case !seen:
			at[info.Boot] = len(kept)
			kept = append(kept, info)
		case info.Start.After(kept[i].Start):
			kept[i] = info
		}
	}
	return kept
}

// viewOf joins leases and gossip to one set of processes.
func viewOf(leases []identity.Lease, members []membership.Member) rebalance.View {
	peers := map[string]rebalance.Peer{}  // by boot
	newest := map[string]identity.Lease{} // by name
	for _, info := range leases {
		peers[info.Boot] = peerOf(info)
		if best, ok := newest[info.Node]; !ok || info.Start.After(best.Start) {
			newest[info.Node] = info
		}
	}
	for boot, peer := range peers {
		peer.Superseded = newest[peer.Name].Boot != boot
		peers[boot] = peer
	}
	for _, m := range members {
		peer, leased := peers[m.Instance.Boot]
		if leased && m.Meta.Draining {
			peer.Draining = true // gossip may be faster than the lease
			peers[m.Instance.Boot] = peer
		}
		if leased || m.State != membership.Alive {
			continue
		}
		if peer, ok := gossiped(m); ok {
			peers[peer.Boot] = peer
		}
	}
	view := rebalance.View{}
	for _, boot := range slices.Sorted(maps.Keys(peers)) {
		view.Peers = append(view.Peers, peers[boot])
	}
	return view
}

func peerOf(info identity.Lease) rebalance.Peer {
	return rebalance.Peer{
		Node: plan.Node{
			Name: info.Node, Weight: info.Weight, Draining: info.Draining,
			Queues: slices.Sorted(maps.Keys(info.Queues)), Unready: slices.Sorted(maps.Keys(info.Unready)),
		},
		Boot: info.Boot, Address: info.Raft, RaftInfo: info.RaftInfo, Leased: true,
	}
}

// gossiped is a process that has no lease but is alive: it may vote, it owns nothing.
func gossiped(m membership.Member) (rebalance.Peer, bool) {
	host, _, err := net.SplitHostPort(m.Address)
	if err != nil || m.Meta.Raft == 0 {
		return rebalance.Peer{}, false
	}
	peer := rebalance.Peer{
		Node: plan.Node{Name: m.Instance.Node, Draining: m.Meta.Draining},
		Boot: m.Instance.Boot, Address: net.JoinHostPort(host, strconv.Itoa(m.Meta.Raft)),
	}
	return peer, json.Unmarshal([]byte(m.Meta.RaftInfo), &peer.RaftInfo) == nil
}

// addresses lists where other processes gossip, by their leases: gossip alone never
// heals a partition, and a node without --join finds its peers this way.
func (c *Cluster) addresses(ctx context.Context) ([]string, error) {
	recent := c.cache.recent.Load()
	old := recent != nil && c.cfg.Now()-recent.at > c.cfg.TTL
	if recent == nil || old && !c.cache.away.Load() { // away: others look at all leases for this process
		instances, err := c.cfg.Leases.All(ctx)
		if err != nil {
			return nil, err
		}
		recent = &recentView{live: c.leased(instances)}
	}
	var list []string
	for _, info := range recent.live {
		if info.Boot != c.cfg.Boot && info.Gossip != "" {
			list = append(list, info.Gossip)
		}
	}
	return list, nil
}

// Claims are read for the first plan of a group, by its leader, and without a plan nobody works: so
// it must come to an end however many shards there are and however slow Redis is. A turn of the
// agent may be too short for all of them. What was read stays for the next turn, for
// keptClaimsTTLs; a shard that has moved meanwhile moves once more at worst.
const (
	claimsOfSeed   = 2000 // a round trip
	keptClaimsTTLs = 10
)

// readClaims are the node names behind claims, read so far. They belong to the agent's goroutine.
type readClaims struct {
	of map[*queue.Queue][]string // by shard index
	at time.Duration             // Now() of the last ones
}

// Claims implements rebalance.Source.
func (c *Cluster) Claims(ctx context.Context) (*plan.Assignment, error) {
	entries, err := c.cfg.Redis.Registry().Entries(ctx)
	if err != nil {
		return nil, err
	}
	if c.read.of == nil || c.cfg.Now()-c.read.at > keptClaimsTTLs*c.cfg.TTL {
		c.read.of = map[*queue.Queue][]string{}
	}
	owners := map[string][]string{} // node names by queue and shard index
	for name := range entries {
		q, err := c.cfg.Redis.Queue(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := c.readClaimsOf(ctx, q); err != nil {
			return nil, err
		}
		owners[name] = c.read.of[q]
	}
	c.read.of = nil
	return assignmentOf(owners), nil
}

// readClaimsOf reads those of a queue that were not read yet.
func (c *Cluster) readClaimsOf(ctx context.Context, q *queue.Queue) error {
	for page := range slices.Chunk(q.All()[len(c.read.of[q]):], claimsOfSeed) {
		held, err := c.cfg.Redis.Owners(ctx, page)
		if err != nil {
			return err
		}
		for _, owner := range held {
			c.read.of[q] = append(c.read.of[q], identity.NodeOf(owner.Instance))
		}
		c.read.at = c.cfg.Now()
	}
	return nil
}

// assignmentOf turns node names into an assignment; "" is no owner.
func assignmentOf(owners map[string][]string) *plan.Assignment {
	names := map[string]int32{}
	for _, list := range owners {
		for _, name := range list {
			if name != "" {
				names[name] = 0
			}
		}
	}
	a := &plan.Assignment{Nodes: slices.Sorted(maps.Keys(names))}
	for i, name := range a.Nodes {
		names[name] = int32(i)
	}
	for _, queueName := range slices.Sorted(maps.Keys(owners)) {
		p := plan.Placement{Queue: queueName}
		for _, name := range owners[queueName] {
			owner := plan.None
			if name != "" {
				owner = names[name]
			}
			p.Owners = append(p.Owners, owner)
		}
		a.Queues = append(a.Queues, p)
	}
	return a
}
