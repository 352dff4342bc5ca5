package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/oklog/run"

	"github.com/lowkiq/lowkiq/internal/connlimit"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
	"github.com/lowkiq/lowkiq/status"
)

// cluster is the node's part in the cluster: gossip says who seems alive, Raft says
// who should own which shard. Both belong to the process and outlive its instances.
// Neither is trusted with safety: that is the claims' (I1).
type cluster struct {
	node      *Node
	gossip    *membership.Gossip
	listener  *rebalance.Listener
	agent     *rebalance.Agent
	done      chan struct{} // closed when the agent has left the Raft group
	sight     sight
	read      readClaims
	disputes  disputes
	unreached unreached
	// taken is the boot of a newer process that works under this node's name.
	taken atomic.Pointer[string]
}

// newCluster opens the Raft port and builds gossip and agent; they are silent until
// their actors run.
func newCluster(n *Node) (*cluster, error) {
	host, port, err := bindAddress(n.cfg.Bind)
	if err != nil {
		return nil, err
	}
	raftPort := 0
	if port > 0 {
		raftPort = port + 1
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(raftPort)))
	if err != nil {
		return nil, fmt.Errorf("raft listens one port above gossip: %w", err)
	}
	listener = connlimit.Listener{Listener: listener, Set: connlimit.New(connlimit.Limit{Total: 128, PerAddress: 64})}
	c := &cluster{node: n, done: make(chan struct{})}
	raftPort = listener.Addr().(*net.TCPAddr).Port
	raftListener, dial := n.raftNetwork(listener)
	if n.dialRaft != nil {
		dial = n.dialRaft
	}
	c.listener = rebalance.NewListener(rebalance.ListenerConfig{
		Cluster: n.cfg.Cluster, Listener: raftListener, Dial: dial, Advertise: n.advertise(raftPort), Log: n.log,
	})
	c.gossip, err = membership.New(membership.Config{
		Cluster: n.cfg.Cluster, Node: n.cfg.Name, Boot: n.boot, Bind: n.cfg.Bind, Advertise: n.advertise(port), Join: n.cfg.Join,
		TTL: n.cfg.TTL, Peers: c.addresses, Keys: n.cfg.GossipKeys, Insecure: n.cfg.Insecure,
		Meta: membership.Meta{N: 1, Raft: raftPort}, Log: n.log,
	})
	if err == nil {
		c.agent, err = rebalance.New(rebalance.Config{
			Boot: n.boot, TTL: n.cfg.TTL, Record: sightedRecord{n.leases.Record(), &c.sight}, Mark: sightedMark{n.leases.Mark(n.cfg.TTL), &c.sight, n.cfg.TTL},
			Source: c, Transport: c.listener.Transport, Log: n.log, Logged: n.outOfReach,
		})
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return c, nil
}

func bindAddress(bind string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(bind)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port > 65534 {
		return "", 0, fmt.Errorf("bind %q: want host:port, the port below 65535 as Raft listens one above", bind)
	}
	return host, port, nil
}

// advertise is the host:port at which others reach a port of this node, "" for the
// address it listens at.
func (n *Node) advertise(port int) string {
	if n.cfg.Advertise == "" || port == 0 {
		return ""
	}
	return net.JoinHostPort(n.cfg.Advertise, strconv.Itoa(port))
}

// add adds the cluster's actors. They end after the instances, because a drain needs
// the plan; the agent first, because leaving the group needs the network.
func (c *cluster) add(group *run.Group) {
	actor := func(run func(context.Context) error, after <-chan struct{}) {
		ctx, cancel := context.WithCancel(context.Background())
		group.Add(func() error {
			if err := run(ctx); err != nil {
				return fmt.Errorf("node: %w", err)
			}
			<-ctx.Done()
			return nil
		}, func(error) { <-after; cancel() })
	}
	actor(func(ctx context.Context) error { defer close(c.done); return c.agent.Run(ctx) }, c.node.stopped)
	actor(c.listener.Run, c.done)
	actor(c.gossip.Run, c.done)
	actor(c.follow, c.done)
	actor(c.watchReach, c.done)
}

// follow passes news on: of gossip to the agent, of either to the supervisor.
func (c *cluster) follow(ctx context.Context) error {
	address := ""
	for {
		said := true // what the lease says of the process is still true
		select {
		case <-ctx.Done():
			return nil
		case <-c.gossip.Changed():
			said, address = address == c.gossip.Address(), c.gossip.Address()
			c.sight.stale.Store(true)
			c.agent.Wake()
		case <-c.agent.Changed():
			status := c.agent.Status()
			c.node.metrics.RaftLeader.Set(map[bool]float64{true: 1}[status.Leading])
			c.node.metrics.Generation.Set(float64(c.agent.Assignment().Generation.Index))
			c.publish(func(m *membership.Meta) { m.RaftInfo = c.infoText() })
			said = false // the leader waits for the seat
		}
		if in := c.node.current.Load(); in != nil {
			in.claims.Kick()
			if !said {
				in.keeper.Poke()
			}
		}
	}
}

// publish changes what the process says of itself.
func (c *cluster) publish(change func(*membership.Meta)) {
	if err := c.gossip.Update(change); err != nil {
		c.node.log.Warn("gossip not updated", "err", err)
	}
}

// infoText is what gossip says of the seat. It must not change with each plan: gossip
// tells everybody of every change. What the process has applied is in its lease.
func (c *cluster) infoText() string { return gossipedInfo(c.agent.RaftInfo()) }

func gossipedInfo(seat rebalance.RaftInfo) string {
	seat.Applied = plan.Generation{}
	text, err := json.Marshal(seat)
	if err != nil {
		return ""
	}
	return string(text)
}

// dead reports what gossip knows of the instance that holds a claim: that it was given
// up by its own process, or that it is dead or has left. "unknown" is neither.
func (c *cluster) dead(instance string) (succeeded, gone bool) {
	i, err := membership.ParseInstance(instance)
	if err != nil {
		return false, false
	}
	state := c.gossip.State(i)
	return c.gossip.Succeeded(i), state == membership.Dead || state == membership.Left
}

// describe adds to a status what Raft says, and what is wrong with the cluster.
func (c *cluster) describe(known *status.Status) {
	raft, generation := c.agent.Status(), c.agent.Assignment().Generation
	known.Generation = status.Generation{Record: strconv.FormatUint(raft.Record, 10), Index: generation.Index}
	for _, m := range c.gossip.Members() {
		var seat rebalance.RaftInfo
		if json.Unmarshal([]byte(m.Meta.RaftInfo), &seat) == nil && seat.Server != "" && seat.Server == raft.Leader {
			known.Leader = m.Instance.Node
		}
	}
	if raft.Leading {
		known.Leader = c.node.cfg.Name
	}
	if raft.Unread != "" {
		known.Warnings = append(known.Warnings, fmt.Sprintf("node %s cannot read what the cluster's leader writes, and follows no plan: %s; run the release of the other nodes", c.node.cfg.Name, raft.Unread))
	}
	if strays := c.sight.strays.Load(); strays != nil {
		known.Warnings = append(known.Warnings, *strays...)
	}
	known.Warnings = append(known.Warnings, c.disputes.warnings()...)
	known.Warnings = append(known.Warnings, c.unreached.warnings()...)
}

// alone reports whether the last look saw this process's lease and no other, and gossip sees no other
// process alive.
func (c *cluster) alone() bool {
	recent := c.sight.recent.Load()
	if recent == nil || len(recent.live) == 0 { // not even this one: its lease is new
		c.sight.stale.Store(true)
		c.agent.Wake()
	}
	if recent == nil || len(recent.live) != 1 || recent.live[0].Boot != c.node.boot || sinceBoot()-recent.at > c.node.cfg.TTL/2 {
		return false
	}
	return !slices.ContainsFunc(c.gossip.Members(), func(m membership.Member) bool {
		return m.State == membership.Alive && m.Instance.Boot != c.node.boot
	})
}
