// Package cluster is a process's part in the cluster: gossip says which processes seem alive, Raft
// says which node should own which shard. Neither is trusted with safety: claims are for that (I1).
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

	"github.com/lowkiq/lowkiq/internal/connlimit"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Redis is what the cluster reads and writes there. A *queue.Client is one.
type Redis interface {
	Registry() *queue.Registry
	Queue(ctx context.Context, name string) (*queue.Queue, error)
	Owners(context.Context, []*queue.Shard) ([]queue.Owner, error)
}

// Leases are what the cluster reads and writes of nodes' instances. A *lease.Index is them.
type Leases interface {
	Identities(context.Context) ([]lease.Instance, error)
	State(context.Context, []lease.Instance) (lease.ClusterState, error)
	All(context.Context) ([]lease.Instance, error)
	End(ctx context.Context, instance string) error
	Record() lease.Record
	Mark(ttl time.Duration) lease.Mark
}

// Config says who this process is, and what the cluster needs to know of it.
type Config struct {
	Cluster, Node, Boot string
	Process             identity.Process
	TTL                 time.Duration // of leases
	Bind                string        // host:port of gossip; Raft listens one port above
	Advertise           string        // host at which others reach this process, "": Bind's
	Join                []string      // host:port of gossip of others
	GossipKeys          [][]byte
	Insecure            bool
	FewNodes            int // with no more processes, each looks at all leases

	Redis  Redis
	Leases Leases
	Log    *slog.Logger
	Now    func() time.Duration // a clock that never jumps and counts suspend
	// Network makes the Raft port, and what connects to others', speak TLS if the nodes are to.
	Network func(net.Listener) (net.Listener, rebalance.DialFunc)

	// Registry returns the queues, as read within this time or anew.
	Registry func(ctx context.Context, within time.Duration) (map[string]queue.Entry, error)
	// Instance is the current one, "" between two; leased says whether its lease holds.
	Instance func() (name string, leased bool)
	// Changed is told that the desired shards may have changed, and whether what the lease says
	// has.
	Changed func(lease bool)
	Applied func(leads bool, generation uint64) // for metrics
	// WriteDown adds a line to the log of changes.
	WriteDown func(ctx context.Context, line changes.Line) error
	// OutOfReach logs an error that says that Redis is out of reach, and reports whether it does.
	OutOfReach func(op string, err error) bool
	// Hung ends the process: this part of it makes no progress, and cannot be begun anew.
	Hung func(why string)
}

// Cluster belongs to the process and outlives its instances. A process without one has nil: what it
// is asked then says that there is no other process, no plan and no address.
type Cluster struct {
	cfg      Config
	gossip   *membership.Gossip
	listener *rebalance.Listener
	agent    *rebalance.Agent
	done     chan struct{} // closed when the agent has left the Raft group
	cache    viewCache
	read     readClaims
	disputes disputes
	warnings warnings
	trail    trail // of follow, but for its channel
	// superseded: a newer process works under this node's name.
	superseded atomic.Bool
}

// New opens the Raft port and builds gossip and agent; they are silent until their actors run.
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
		Cluster: cfg.Cluster, Listener: raftListener, Dial: dial, Advertise: cfg.advertise(raftPort), Log: cfg.Log,
	})
	c.gossip, err = membership.New(membership.Config{
		Cluster: cfg.Cluster, Node: cfg.Node, Boot: cfg.Boot, Bind: cfg.Bind, Advertise: cfg.advertise(port), Join: cfg.Join,
		TTL: cfg.TTL, Peers: c.addresses, Keys: cfg.GossipKeys, Insecure: cfg.Insecure,
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

// BindAddress splits the host:port of gossip.
func BindAddress(bind string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(bind)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port > 65534 {
		return "", 0, fmt.Errorf("bind %q: want host:port, the port below 65535 as Raft listens one above", bind)
	}
	return host, port, nil
}

// advertise is the host:port at which others reach a port of this process, "" for the address it
// listens at.
func (cfg Config) advertise(port int) string {
	if cfg.Advertise == "" || port == 0 {
		return ""
	}
	return net.JoinHostPort(cfg.Advertise, strconv.Itoa(port))
}

// Add adds the cluster's actors. They end after stopped is closed, because a drain needs the plan;
// the agent first, because leaving the group needs the network.
func (c *Cluster) Add(group *run.Group, stopped <-chan struct{}) {
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
	actor(c.follow, c.done)
	actor(c.watchRaft, c.done)
	actor(c.writeTrail, c.done)
}

// leaveFor is how long the end of the agent may take. It bounds each of its steps by itself.
const leaveFor = 6 * time.Second

// leaveInTime runs the agent, and does not wait for one that has hung when it is to end.
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
	case <-time.After(leaveFor):
		c.cfg.Log.Error("the raft group is not left in time: the node ends without it", "after", leaveFor)
		return nil
	}
}

// follow passes news on: of gossip to the agent, of either to the process.
func (c *Cluster) follow(ctx context.Context) error {
	address := ""
	for {
		changed := false // what the lease says of the process
		select {
		case <-ctx.Done():
			return nil
		case <-c.gossip.Changed():
			changed, address = address != c.gossip.Address(), c.gossip.Address()
			c.Stale()
			c.agent.Wake()
		case <-c.agent.Changed():
			leads, assignment := c.agent.Status().Leading, c.agent.Assignment()
			c.cfg.Applied(leads, assignment.Generation.Index)
			c.trail.see(leads, assignment)
			c.publish(func(m *membership.Meta) { m.RaftInfo = gossipedInfo(c.agent.RaftInfo()) })
			changed = true // the leader waits for the seat
		}
		c.cfg.Changed(changed)
	}
}

// Announce tells the other processes what changed of this one: n is the number of its instance.
func (c *Cluster) Announce(n int, draining bool) {
	if c == nil {
		return
	}
	c.Stale()
	c.publish(func(m *membership.Meta) { m.N, m.Draining = n, draining })
}

// publish changes what the process says of itself by gossip.
func (c *Cluster) publish(change func(*membership.Meta)) {
	if err := c.gossip.Update(change); err != nil {
		c.cfg.Log.Warn("gossip not updated", "err", err)
	}
}

// gossipedInfo is what gossip says of the seat. It must not change with each plan: gossip tells all
// processes of every change. What the process has applied is in its lease.
func gossipedInfo(seat rebalance.RaftInfo) string {
	seat.Applied = plan.Generation{}
	text, err := json.Marshal(seat)
	if err != nil {
		return ""
	}
	return string(text)
}

// Stale has the next look read the index of instances: a process may have come.
func (c *Cluster) Stale() { c.cache.stale.Store(true) }

// Address is the host:port of gossip.
func (c *Cluster) Address() string {
	if c == nil {
		return ""
	}
	return c.gossip.Address()
}

// Describe says in a lease where the process is reached, and what its part in Raft is.
func (c *Cluster) Describe(info *identity.Lease) {
	if c != nil {
		info.Gossip, info.Raft, info.RaftInfo = c.gossip.Address(), c.listener.Address(), c.agent.RaftInfo()
	}
}

// Members are the processes that gossip knows.
func (c *Cluster) Members() []membership.Member { return c.gossip.Members() }

// Status is what this process knows of Raft.
func (c *Cluster) Status() rebalance.Status { return c.agent.Status() }

// Assignment is the plan that it has applied last, an empty one at first.
func (c *Cluster) Assignment() *plan.Assignment { return c.agent.Assignment() }

// Agreed is the plan likewise, nil if none is known.
func (c *Cluster) Agreed() *plan.Assignment {
	if c == nil || c.agent.Assignment().Generation == (plan.Generation{}) {
		return nil
	}
	return c.agent.Assignment()
}

// Leader is the name of the node that leads, "" if none is known.
func (c *Cluster) Leader() string {
	raft := c.agent.Status()
	if raft.Leading {
		return c.cfg.Node
	}
	leader := ""
	for _, m := range c.gossip.Members() {
		var seat rebalance.RaftInfo
		if json.Unmarshal([]byte(m.Meta.RaftInfo), &seat) == nil && seat.Server != "" && seat.Server == raft.Leader {
			leader = m.Instance.Node
		}
	}
	return leader
}

// Superseded reports whether a newer process works under this node's name.
func (c *Cluster) Superseded() bool { return c != nil && c.superseded.Load() }

// Dead reports what gossip knows of the instance that holds a claim: that its own process goes on
// as a later one, or that it is dead or has left. "unknown" is neither.
func (c *Cluster) Dead(instance string) (succeeded, departed bool) {
	i, err := membership.ParseInstance(instance)
	if err != nil || c == nil {
		return false, false
	}
	state := c.gossip.State(i)
	return c.gossip.Succeeded(i), state == membership.Dead || state == membership.Left
}

// Alone reports whether the last look saw this process's lease and no other, and gossip sees no
// other process alive.
func (c *Cluster) Alone() bool {
	recent := c.cache.recent.Load()
	if recent == nil || len(recent.live) == 0 { // not even this one: its lease is new
		c.Stale()
		c.agent.Wake()
	}
	if recent == nil || len(recent.live) != 1 || recent.live[0].Boot != c.cfg.Boot || c.cfg.Now()-recent.at > c.cfg.TTL/2 {
		return false
	}
	return !slices.ContainsFunc(c.gossip.Members(), func(m membership.Member) bool {
		return m.State == membership.Alive && m.Instance.Boot != c.cfg.Boot
	})
}

// Hung says what of this process's part in the cluster makes no progress, "" if all does.
func (c *Cluster) Hung() string {
	if c == nil {
		return ""
	}
	return c.agent.Status().Hung
}

// Warnings are what people should know of the cluster, in words.
func (c *Cluster) Warnings() (list []string) {
	if hung := c.Hung(); hung != "" {
		list = append(list, fmt.Sprintf("node %s: %s; it has begun anew, and owns what it had until it follows a leader", c.cfg.Node, hung))
	}
	if raft := c.agent.Status(); raft.Unread != "" {
		list = append(list, fmt.Sprintf("node %s cannot read what the cluster's leader writes, and follows no plan: %s; "+
			"run the release of the other nodes", c.cfg.Node, raft.Unread))
	}
	return append(list, c.warnings.list()...)
}
