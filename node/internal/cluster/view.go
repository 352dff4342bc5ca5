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
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// The leader plans from leases in Redis and from processes in gossip. This file joins the two.

// View implements rebalance.Source. Only the agent calls it. Others call ReadView.
func (c *Cluster) View(ctx context.Context) (rebalance.View, error) {
	instances, whole, err := c.readView(ctx)
	if err != nil {
		return rebalance.View{}, err
	}
	entries, err := c.cfg.Registry(ctx, c.cfg.TTL/3) // each renewal of the lease reads it, too
	if err != nil {
		return rebalance.View{}, err
	}
	c.cache.lookedAway.Store(!whole)
	live := c.liveLeases(instances)
	if !whole {
		return c.buildView(live, entries), nil
	}
	c.warnAbout(live)
	c.endDead(ctx, instances)
	was := c.cache.recent.Swap(&recentView{live, c.cfg.Now()})
	if was == nil || len(was.live) != len(live) {
		c.cfg.OnChange(false) // this node may have become alone, or may not be alone any more
	}
	return c.buildView(live, entries), nil
}

// Gossiped implements rebalance.Source. It returns the processes that gossip alone shows.
func (c *Cluster) Gossiped() []rebalance.Peer { return viewOf(nil, c.gossip.Members()).Peers }

// ReadView reads everything from Redis anew.
func (c *Cluster) ReadView(ctx context.Context) (rebalance.View, error) {
	instances, err := c.cfg.Leases.All(ctx)
	if err != nil {
		return rebalance.View{}, err
	}
	entries, err := c.cfg.Registry(ctx, 0)
	if err != nil {
		return rebalance.View{}, err
	}
	return c.buildView(c.liveLeases(instances), entries), nil
}

// endDead ends the leases of instances whose processes are proven to exist no more, with all their children. The permits that
// such an instance held become free at once. Its shards follow the plan, which may wait until the lease would have run out.
func (c *Cluster) endDead(ctx context.Context, instances []lease.Instance) {
	for _, other := range instances {
		id, known := identity.ParseIdentity(other.Identity)
		if other.Lease == nil || !known || !c.cfg.Process.IsGoneWithChildren(id) {
			continue
		}
		if err := c.cfg.Leases.End(ctx, other.Name); err != nil {
			c.cfg.Log.Debug("lease of a dead process not ended; it will expire", "instance", other.Name, "err", err)
		}
	}
}

// buildView makes a view from leases, gossip and the registry.
func (c *Cluster) buildView(live []identity.Lease, entries map[string]protocol.RegistryEntry) rebalance.View {
	view := viewOf(live, c.warnings.withoutDisputed(c.gossip.Members()))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		view.Queues = append(view.Queues, lowkiq.Queue{Name: name, Shards: entries[name].Shards})
	}
	_, view.Leased = c.cfg.Instance()
	c.applyOwnPeer(&view)
	return view
}

// applyOwnPeer corrects this process's entry in a view, because its RaftInfo is newer here than in
// its lease. If a newer process has this node's name, this process must stop its work.
func (c *Cluster) applyOwnPeer(view *rebalance.View) {
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
		c.cfg.OnChange(false)
	}
}

// liveLeases returns the leases of processes that are not proven dead.
func (c *Cluster) liveLeases(instances []lease.Instance) []identity.Lease {
	var live []identity.Lease
	for _, info := range c.cache.leases.parseLeases(instances) {
		if !c.cfg.Process.IsGone(info.Process) {
			live = append(live, info)
		}
	}
	return newestLeases(live)
}

// newestLeases keeps the newest lease of each process. A process that has lost its lease and goes on
// under another has two leases until the first runs out.
func newestLeases(leases []identity.Lease) (kept []identity.Lease) {
	at := map[string]int{} // index in kept, by boot
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

// viewOf joins leases and gossip to a set of processes, with a process for each boot.
//
// A lease says more than gossip, and a process with a lease is taken from there. Gossip adds two things. It may be faster to
// say that a process drains. And it shows processes that live without a lease, which may vote in Raft but own no shards. If two
// processes with leases have the same name, the older is superseded. Static processes are left out, because they follow no plan.
func viewOf(leases []identity.Lease, members []membership.Member) rebalance.View {
	peers := map[string]rebalance.Peer{}  // by boot
	newest := map[string]identity.Lease{} // by name
	for _, info := range leases {
		if info.Static != nil {
			continue
		}
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
		if peer, ok := peerOfMember(m); ok {
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

// peerOfMember returns a process that is alive in gossip and has no lease. It returns false if the
// process has no Raft address, or an unreadable RaftInfo.
func peerOfMember(m membership.Member) (rebalance.Peer, bool) {
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

// gossipAddresses returns the gossip addresses of the other processes from their leases. Gossip alone
// never heals a partition. Nodes without --join find their peers this way.
func (c *Cluster) gossipAddresses(ctx context.Context) ([]string, error) {
	recent := c.cache.recent.Load()
	old := recent != nil && c.cfg.Now()-recent.at > c.cfg.TTL
	if recent == nil || old && !c.cache.lookedAway.Load() { // a process that looks away leaves this to others
		instances, err := c.cfg.Leases.All(ctx)
		if err != nil {
			return nil, err
		}
		recent = &recentView{live: c.liveLeases(instances)}
	}
	var list []string
	for _, info := range recent.live {
		if info.Boot != c.cfg.Boot && info.Gossip != "" {
			list = append(list, info.Gossip)
		}
	}
	return list, nil
}

// The leader of a new group reads all claims for the first plan. Without a plan nobody works, so the
// reading must end, however many shards there are and however slow Redis is. A turn of the agent
// may be too short. So claims that were read stay for the next turns, for keptClaimsTTLs. A shard
// that has moved in the meantime is planned for its old owner, and moves once more at worst.
const (
	claimsPageSize = 2000 // claims in one round trip
	keptClaimsTTLs = 10
)

// claimsRead holds the node names of the owners that were read so far. Only the agent's goroutine uses it.
type claimsRead struct {
	of map[*protocol.Queue][]string // by shard index
	at time.Duration                // Now() of the last page
}

// Claims implements rebalance.Source. It returns the claims of all queues as an assignment. If ctx
// ends first, the next call goes on where this call has stopped.
func (c *Cluster) Claims(ctx context.Context) (*plan.Assignment, error) {
	entries, err := c.cfg.Redis.Registry().Entries(ctx)
	if err != nil {
		return nil, err
	}
	if c.claims.of == nil || c.cfg.Now()-c.claims.at > keptClaimsTTLs*c.cfg.TTL {
		c.claims.of = map[*protocol.Queue][]string{}
	}
	owners := map[string][]string{} // node names by queue and shard index
	for name := range entries {
		q, err := c.cfg.Redis.Queue(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := c.readQueueClaims(ctx, q); err != nil {
			return nil, err
		}
		owners[name] = c.claims.of[q]
	}
	c.claims.of = nil
	return assignmentOf(owners), nil
}

// readQueueClaims reads the claims of a queue that were not read yet.
func (c *Cluster) readQueueClaims(ctx context.Context, q *protocol.Queue) error {
	for page := range slices.Chunk(q.All()[len(c.claims.of[q]):], claimsPageSize) {
		held, err := c.cfg.Redis.Owners(ctx, page)
		if err != nil {
			return err
		}
		for _, owner := range held {
			c.claims.of[q] = append(c.claims.of[q], identity.NodeOf(owner.Instance))
		}
		c.claims.at = c.cfg.Now()
	}
	return nil
}

// assignmentOf turns node names into an assignment. The name "" means that a shard has no owner.
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
