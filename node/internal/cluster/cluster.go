// Package cluster is a process's part in the cluster. Gossip says which processes seem alive. Raft
// says which node should own which shard. Neither makes the cluster safe. Claims do (I1).
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/oklog/run"

	"github.com/lowkiq/lowkiq/internal/network/connlimit"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Redis has the cluster's requests about queues. A *protocol.Client implements it.
type Redis interface {
	Registry() *protocol.Registry
	Queue(ctx context.Context, name string) (*protocol.Queue, error)
	Owners(context.Context, []*protocol.Shard) ([]protocol.Owner, error)
}

// Leases has the cluster's requests about instances. A *lease.Index implements it.
type Leases interface {
	Identities(context.Context) ([]lease.Instance, error)
	State(context.Context, []lease.Instance) (lease.ClusterState, error)
	All(context.Context) ([]lease.Instance, error)
	End(ctx context.Context, instance string) error
	Record() lease.Record
	Mark(ttl time.Duration) lease.Mark
}

// Config describes this process to the cluster.
type Config struct {
	Cluster, Node, Boot string
	Process             identity.Process
	TTL                 time.Duration // of leases
	Bind                string        // host:port of gossip; Raft listens one port above
	Advertise           string        // host where others reach this process; "" for the host of Bind
	Join                []string      // host:port of other processes' gossip
	GossipKeys          [][]byte
	Insecure            bool
	MaxNodesReadingAll  int // up to this many processes each reads all leases

	Redis  Redis
	Leases Leases
	Log    *slog.Logger
	Now    func() time.Duration // a clock that never jumps and counts suspend
	// Network adds TLS to the Raft listener and to connections to others, if the nodes use TLS.
	Network func(net.Listener) (net.Listener, rebalance.DialFunc)

	// Registry returns the queues. They were read within this time, or are read anew.
	Registry func(ctx context.Context, within time.Duration) (map[string]protocol.RegistryEntry, error)
	// Instance returns the current instance, "" between two, and whether its lease holds.
	Instance func() (name string, leased bool)
	// OnChange is called when the desired shards may have changed. lease says whether the text of the lease has changed, too.
	OnChange func(lease bool)
	OnPlan   func(leads bool, generation uint64) // for metrics
	// WriteChange adds a line to the list of changes.
	WriteChange func(ctx context.Context, line changes.Line) error
	// OutOfReach reports whether an error means that Redis is out of reach, and logs it then.
	OutOfReach func(op string, err error) bool
	// OnHung ends the process, because its agent makes no progress and cannot begin anew.
	OnHung func(why string)
}

// Cluster belongs to the process and outlives its instances. A process without a cluster has a nil
// Cluster, which answers that there is no other process, no plan and no address.
type Cluster struct {
	cfg      Config
	gossip   *membership.Gossip
	listener *rebalance.Listener
	agent    *rebalance.Agent
	done     chan struct{} // closed when the agent has left the Raft group
	cache    viewCache
	claims   claimsRead
	disputes disputes
	warnings warnings
	trail    trail // belongs to forwardChanges, except its channel
	// superseded says that a newer process works under this node's name.
	superseded atomic.Bool
}

// New opens the Raft port and builds gossip and agent. They do nothing until their actors run.
func New(cfg Config) (*Cluster, error) {
	host, port, err := BindAddress(cfg.Bind)
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
	c := &Cluster{cfg: cfg, done: make(chan struct{}),
		trail: trail{node: cfg.Node, applied: &plan.Assignment{}, pending: make(chan changes.Line, trailPending)}}
	raftPort = listener.Addr().(*net.TCPAddr).Port
	raftListener, dial := cfg.Network(listener)
	c.listener = rebalance.NewListener(rebalance.ListenerConfig{
		Cluster: cfg.Cluster, Listener: raftListener, Dial: dial, Advertise: cfg.advertisedAddress(raftPort), Log: cfg.Log,
	})
	c.gossip, err = membership.New(membership.Config{
		Cluster: cfg.Cluster, Node: cfg.Node, Boot: cfg.Boot, Bind: cfg.Bind, Advertise: cfg.advertisedAddress(port), Join: cfg.Join,
		TTL: cfg.TTL, Peers: c.gossipAddresses, Keys: cfg.GossipKeys, Insecure: cfg.Insecure,
		Meta: membership.Meta{N: 1, Raft: raftPort}, Log: cfg.Log,
	})
	if err == nil {
		c.agent, err = rebalance.New(rebalance.Config{
			Boot: cfg.Boot, TTL: cfg.TTL, Record: cachedRecord{cfg.Leases.Record(), &c.cache},
			Mark: cachedMark{cfg.Leases.Mark(cfg.TTL), &c.cache, cfg.TTL, cfg.Now}, Source: c, Transport: c.listener.Transport, Log: cfg.Log,
			Logged: cfg.OutOfReach,
		})
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return c, nil
}

// BindAddress splits the host:port of gossip. The port must leave room for Raft's port above it.
func BindAddress(bind string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(bind)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port > 65534 {
		return "", 0, fmt.Errorf("bind %q must be host:port with a port below 65535, because Raft listens one port above", bind)
	}
	return host, port, nil
}

// advertisedAddress returns the host:port where others reach a port of this process, "" if that
// is the address where it listens.
func (cfg Config) advertisedAddress(port int) string {
	if cfg.Advertise == "" || port == 0 {
		return ""
	}
	return net.JoinHostPort(cfg.Advertise, strconv.Itoa(port))
}

// AddActors adds the cluster's actors to a group. They end after stopped is closed, because a drain
// needs the plan. The agent ends first, because it needs the network to leave the Raft group.
func (c *Cluster) AddActors(group *run.Group, stopped <-chan struct{}) {
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
	actor(func(ctx context.Context) error { defer close(c.done); return c.leaveInTime(ctx, c.agent.Run) }, stopped)
	actor(c.listener.Run, c.done)
	actor(c.gossip.Run, c.done)
	actor(c.forwardChanges, c.done)
	actor(c.watchRaft, c.done)
	actor(c.writeTrail, c.done)
}

// maxLeave is the time that the end of the agent has. Each step of that end has a limit of its own.
const maxLeave = 6 * time.Second

// leaveInTime runs the agent until ctx ends, and then waits for its end for maxLeave at most.
func (c *Cluster) leaveInTime(ctx context.Context, run func(context.Context) error) error {
	left := make(chan error, 1)
	go func() { left <- run(ctx) }()
	select {
	case err := <-left:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-left:
		return err
	case <-time.After(maxLeave):
		c.cfg.Log.Error("the raft group is not left in time, and the node ends without that", "after", maxLeave)
		return nil
	}
}

// forwardChanges tells the agent about changes of gossip, and the process about changes of gossip and of the agent.
func (c *Cluster) forwardChanges(ctx context.Context) error {
	address := ""
	for {
		changed := false // whether the text of the lease has changed
		select {
		case <-ctx.Done():
			return nil
		case <-c.gossip.Changed():
			changed, address = address != c.gossip.Address(), c.gossip.Address()
			c.RereadIndex()
			c.agent.Wake()
		case <-c.agent.Changed():
			leads, assignment := c.agent.Status().Leading, c.agent.Assignment()
			c.cfg.OnPlan(leads, assignment.Generation.Index)
			c.trail.record(leads, assignment)
			c.updateGossip(func(m *membership.Meta) { m.RaftInfo = gossipedInfo(c.agent.RaftInfo()) })
			changed = true // the leader waits for this process's RaftInfo
		}
		c.cfg.OnChange(changed)
	}
}

// AnnounceInstance tells the other processes the number of this process's instance, and whether it drains.
func (c *Cluster) AnnounceInstance(n int, draining bool) {
	if c == nil {
		return
	}
	c.RereadIndex()
	c.updateGossip(func(m *membership.Meta) { m.N, m.Draining = n, draining })
}

// updateGossip changes this process's entry in gossip.
func (c *Cluster) updateGossip(change func(*membership.Meta)) {
	if err := c.gossip.Update(change); err != nil {
		c.cfg.Log.Warn("gossip not updated", "err", err)
	}
}

// gossipedInfo returns the RaftInfo as text for gossip, without the applied plan. Gossip sends each
// change to all processes, so the text must not change with each plan. The lease has the applied plan.
func gossipedInfo(seat rebalance.RaftInfo) string {
	seat.Applied = plan.Generation{}
	text, err := json.Marshal(seat)
	if err != nil {
		return ""
	}
	return string(text)
}

// RereadIndex makes the next turn read the index of instances, because a process may have come.
func (c *Cluster) RereadIndex() { c.cache.stale.Store(true) }

// GossipAddress returns the host:port of this process's gossip.
func (c *Cluster) GossipAddress() string {
	if c == nil {
		return ""
	}
	return c.gossip.Address()
}

// DescribeInLease sets the addresses and the RaftInfo of this process in its lease.
func (c *Cluster) DescribeInLease(info *identity.Lease) {
	if c != nil {
		info.Gossip, info.Raft, info.RaftInfo = c.gossip.Address(), c.listener.Address(), c.agent.RaftInfo()
	}
}

// Members returns the processes that gossip knows.
func (c *Cluster) Members() []membership.Member { return c.gossip.Members() }

// Status returns the state of this process's part in Raft.
func (c *Cluster) Status() rebalance.Status { return c.agent.Status() }

// AgreedPlan returns the last applied plan, nil before the first.
func (c *Cluster) AgreedPlan() *plan.Assignment {
	if c == nil || c.agent.Assignment().Generation == (plan.Generation{}) {
		return nil
	}
	return c.agent.Assignment()
}

// Superseded reports whether a newer process works under this node's name.
func (c *Cluster) Superseded() bool { return c != nil && c.superseded.Load() }

// InstanceGone returns what gossip says about the instance that holds a claim. succeeded means that its process goes on as a
// later instance. departed means that its process is dead or has left. The state "unknown" is neither.
func (c *Cluster) InstanceGone(instance string) (succeeded, departed bool) {
	i, err := membership.ParseInstance(instance)
	if err != nil || c == nil {
		return false, false
	}
	state := c.gossip.State(i)
	return c.gossip.Succeeded(i), state == membership.Dead || state == membership.Left
}

// Alone reports whether a recent read of all leases has found this process's lease and no other,
// and gossip shows no other process alive.
func (c *Cluster) Alone() bool {
	recent := c.cache.recent.Load()
	if recent == nil || len(recent.live) == 0 { // the last read was before this process took its lease
		c.RereadIndex()
		c.agent.Wake()
	}
	if recent == nil || len(recent.live) != 1 || recent.live[0].Boot != c.cfg.Boot || c.cfg.Now()-recent.at > c.cfg.TTL/2 {
		return false
	}
	return !slices.ContainsFunc(c.gossip.Members(), func(m membership.Member) bool {
		return m.State == membership.Alive && m.Instance.Boot != c.cfg.Boot
	})
}

// HungPart says which Raft server of this process has hung, "" if none has.
func (c *Cluster) HungPart() string {
	if c == nil {
		return ""
	}
	return c.agent.Status().Hung
}

// Warnings returns texts about the cluster that people should know.
func (c *Cluster) Warnings() (list []string) {
	if hung := c.HungPart(); hung != "" {
		list = append(list, fmt.Sprintf("node %s: %s; it has begun anew, and owns what it had until it follows a leader", c.cfg.Node, hung))
	}
	if raft := c.agent.Status(); raft.Unread != "" {
		list = append(list, fmt.Sprintf("node %s cannot read what the cluster's leader writes, and follows no plan: %s; "+
			"run the release of the other nodes", c.cfg.Node, raft.Unread))
	}
	return append(list, c.warnings.list()...)
}
