package node

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
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// What the leader plans from: leases in Redis, processes in gossip.

// View implements rebalance.Source. It is the agent's; others call look.
func (c *cluster) View(ctx context.Context) (rebalance.View, error) {
	instances, whole, err := c.glance(ctx)
	if err != nil {
		return rebalance.View{}, err
	}
	entries := c.node.registry.Load()
	if entries == nil || sinceBoot()-entries.at > c.node.cfg.TTL/3 { // the lease keeper reads it too
		if entries, err = c.node.readRegistry(ctx); err != nil {
			return rebalance.View{}, err
		}
	}
	c.sight.away.Store(!whole)
	live := c.leased(instances)
	if !whole {
		return c.view(live, entries.all), nil
	}
	c.warnOfStrays(live)
	for _, text := range c.disputes.observe(sinceBoot(), c.node.cfg.TTL, live, c.gossip.Members()) {
		c.node.log.Warn("gossip and lease differ", "detail", text)
	}
	was := c.sight.recent.Swap(&recentView{live, sinceBoot()})
	if in := c.node.current.Load(); in != nil && (was == nil || len(was.live) != len(live)) {
		in.claims.Kick() // it may be alone, or not any more
	}
	return c.view(live, entries.all), nil
}

// Gossiped implements rebalance.Source.
func (c *cluster) Gossiped() []rebalance.Peer { return viewOf(nil, c.gossip.Members()).Peers }

// look reads everything anew.
func (c *cluster) look(ctx context.Context) (rebalance.View, error) {
	instances, err := c.node.leases.Instances(ctx)
	if err != nil {
		return rebalance.View{}, err
	}
	entries, err := c.node.readRegistry(ctx)
	if err != nil {
		return rebalance.View{}, err
	}
	return c.view(c.leased(instances), entries.all), nil
}

func (c *cluster) view(live []LeaseInfo, entries map[string]queue.Entry) rebalance.View {
	view := viewOf(live, c.disputes.believed(c.gossip.Members()))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		view.Queues = append(view.Queues, lowkiq.Queue{Name: name, Shards: entries[name].Shards})
	}
	in := c.node.current.Load()
	view.Leased = in != nil && in.keeper.Holds()
	c.recognise(&view)
	return view
}

// recognise finds this process in a view: its seat is fresher here than in any lease,
// and a newer process under its name ends its work.
func (c *cluster) recognise(view *rebalance.View) {
	var taken *string
	for i := range view.Peers {
		peer := &view.Peers[i]
		if peer.Boot != c.node.boot {
			continue
		}
		peer.RaftInfo = c.agent.RaftInfo()
		if peer.Superseded {
			name := peer.Name
			taken = &name
		}
	}
	if was := c.taken.Swap(taken); (was == nil) != (taken == nil) {
		c.node.log.Warn("another process with this node's name", "newer", taken != nil)
		if in := c.node.current.Load(); in != nil {
			in.claims.Kick()
		}
	}
}

// leased are the processes that have a lease and are not proven dead.
func (c *cluster) leased(instances []queue.Instance) []LeaseInfo {
	var live []LeaseInfo
	for _, info := range c.sight.leases.read(instances) {
		if !c.node.process.Gone(info.Process) {
			live = append(live, info)
		}
	}
	return latest(live)
}

// latest keeps the newest lease of each process: one that has lost its lease and goes on
// under another has two until the first runs out.
func latest(leases []LeaseInfo) (kept []LeaseInfo) {
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
func viewOf(leases []LeaseInfo, members []membership.Member) rebalance.View {
	peers := map[string]rebalance.Peer{} // by boot
	newest := map[string]LeaseInfo{}     // by name
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

func peerOf(info LeaseInfo) rebalance.Peer {
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
func (c *cluster) addresses(ctx context.Context) ([]string, error) {
	recent := c.sight.recent.Load()
	if recent == nil || sinceBoot()-recent.at > c.node.cfg.TTL && !c.sight.away.Load() { // those who look at all find the missing
		instances, err := c.node.leases.Instances(ctx)
		if err != nil {
			return nil, err
		}
		recent = &recentView{live: c.leased(instances)}
	}
	var list []string
	for _, info := range recent.live {
		if info.Boot != c.node.boot && info.Gossip != "" {
			list = append(list, info.Gossip)
		}
	}
	return list, nil
}

// Claims are read for the first plan of a group, by its leader, and without a plan nobody works: so it must come to an end
// however many shards there are and however slow Redis is. A turn of the agent may be too short for all of them. What was
// read stays for the next turn, for keptClaimsTTLs; a shard that has moved meanwhile moves once more at worst.
const (
	claimsOfSeed   = 2000 // a round trip
	keptClaimsTTLs = 10
)

// readClaims are the node names behind claims, read so far. They belong to the agent's goroutine.
type readClaims struct {
	of map[*queue.Queue][]string // by shard index
	at time.Duration             // sinceBoot of the last ones
}

// Claims implements rebalance.Source.
func (c *cluster) Claims(ctx context.Context) (*plan.Assignment, error) {
	entries, err := c.node.leases.Registry(ctx)
	if err != nil {
		return nil, err
	}
	if c.read.of == nil || sinceBoot()-c.read.at > keptClaimsTTLs*c.node.cfg.TTL {
		c.read.of = map[*queue.Queue][]string{}
	}
	owners := map[string][]string{} // node names by queue and shard index
	for name := range entries {
		q, err := c.node.leases.Queue(ctx, name)
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
func (c *cluster) readClaimsOf(ctx context.Context, q *queue.Queue) error {
	for page := range slices.Chunk(q.All()[len(c.read.of[q]):], claimsOfSeed) {
		held, err := c.node.leases.Owners(ctx, page)
		if err != nil {
			return err
		}
		for _, owner := range held {
			c.read.of[q] = append(c.read.of[q], identity.NodeOf(owner.Instance))
		}
		c.read.at = sinceBoot()
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
