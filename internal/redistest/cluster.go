package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// Cluster is a Redis Cluster. Its methods may be called from any goroutine, one at a time.
type Cluster struct {
	Masters  []*Server // each can be killed, paused and restarted by itself
	Replicas []*Server // of the master at the same place; nil without

	t       testing.TB
	tls     *TLS            // nil: without
	args    []string        // added to each master's command line
	env     []string        // of the next master, beside that of the test
	clients []*redis.Client // one per server, for administration: those of masters first
	ids     []string        // the masters' names in the cluster
}

// StartCluster runs a cluster with the slots spread evenly over the masters, and
// waits until every one of them knows every slot. It takes two to three seconds.
func StartCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	c.start(masters)
	return c
}

// StartClusterReplicated is StartCluster with a replica for each master, which is promoted two to four seconds after its
// master has fallen silent.
func StartClusterReplicated(t testing.TB, masters int) *Cluster {
	t.Helper()
	// Of a node timeout that is shorter a busy machine promotes replicas by itself.
	c := &Cluster{t: t, args: []string{
		"--cluster-node-timeout", "1500", "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
	}}
	c.start(masters)
	for range masters {
		c.add()
	}
	c.Masters, c.Replicas = c.Masters[:masters:masters], c.Masters[masters:]
	if err := c.replicate(t.Context()); err != nil {
		t.Fatalf("give each master a replica: %v", err)
	}
	if err := await(nil, func() bool { return c.Ready(t.Context()) }); err != nil {
		t.Fatalf("cluster of %d masters with replicas is not ready: %v", masters, err)
	}
	return c
}

// replicate makes each of the servers that hold no slots the replica of the master at its place.
func (c *Cluster) replicate(ctx context.Context) error {
	for i := range c.Replicas {
		client := c.clients[len(c.Masters)+i]
		host, port := hostPort(c.Masters[0])
		if err := client.ClusterMeet(ctx, host, port).Err(); err != nil {
			return err
		}
		var last error
		if await(nil, func() bool { // it has to hear of its master first
			last = client.ClusterReplicate(ctx, c.ids[i]).Err()
			return last == nil
		}) != nil {
			return last
		}
		if err := await(nil, func() bool { return replicates(ctx, c.Replicas[i]) }); err != nil {
			return err
		}
	}
	return nil
}

// AwaitPromotion waits until the replica of a master is the master of its slots, and the cluster serves them.
func (c *Cluster) AwaitPromotion(master int) {
	c.t.Helper()
	client := c.clients[len(c.Masters)+master]
	if err := await(nil, func() bool {
		role, err := client.Info(c.t.Context(), "replication").Result()
		state, err2 := client.ClusterInfo(c.t.Context()).Result()
		return err == nil && err2 == nil && hasLines(role, []string{"role:master"}) && hasLines(state, []string{"cluster_state:ok"})
	}); err != nil {
		c.t.Fatalf("the replica of %s is not promoted: %v", c.Masters[master].Addr(), err)
	}
}

// StartClusterTLS is StartCluster with TLS, also between the masters.
func StartClusterTLS(t testing.TB, masters int, l TLS) *Cluster {
	t.Helper()
	c := &Cluster{t: t, tls: &l}
	c.start(masters)
	return c
}

// StartClusterClocked is StartCluster with masters that have a clock each (see StartClocked); args are added to each one's
// command line.
func StartClusterClocked(t testing.TB, masters int, args ...string) (*Cluster, []*Clock) {
	t.Helper()
	c := &Cluster{t: t, args: args}
	var clocks []*Clock
	for range masters {
		clock := newClock(t)
		clocks, c.env = append(clocks, clock), clock.env()
		c.add()
	}
	c.meet()
	return c, clocks
}

func (c *Cluster) start(masters int) {
	c.t.Helper()
	for range masters {
		c.add()
	}
	c.meet()
}

// meet makes one cluster of the masters.
func (c *Cluster) meet() {
	c.t.Helper()
	if err := c.form(c.t.Context()); err != nil {
		c.t.Fatalf("form a cluster of %d masters: %v", len(c.Masters), err)
	}
	if err := await(nil, func() bool { return c.Ready(c.t.Context()) }); err != nil {
		c.t.Fatalf("cluster of %d masters is not ready: %v", len(c.Masters), err)
	}
}

func (c *Cluster) add() {
	c.t.Helper()
	s := startServer(c.t, c.tls, func(p *port, dir string) ([]string, error) {
		return slices.Concat(serverArgs(p, dir), c.tls.args(p), c.tls.clusterArgs(), []string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", "5000",
		}, c.args), nil
	}, c.env...)
	client := s.connect()
	c.t.Cleanup(func() { _ = client.Close() })
	c.Masters, c.clients = append(c.Masters, s), append(c.clients, client)
}

// form assigns the slots and introduces everybody to everybody.
func (c *Cluster) form(ctx context.Context) error {
	for i, client := range c.clients {
		id, err := client.Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			return err
		}
		c.ids = append(c.ids, id)
		// Distinct epochs, or two masters may hold one slot for good after a move.
		if err := client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return err
		}
		if err := client.ClusterAddSlots(ctx, share(i, len(c.clients))...).Err(); err != nil {
			return err
		}
	}
	// Only when all have their epochs: one that knows another may not set it any more.
	for _, client := range c.clients {
		for _, other := range c.Masters {
			host, port := hostPort(other)
			if err := client.ClusterMeet(ctx, host, port).Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// share returns the slots of the i-th of n masters.
func share(i, n int) []int {
	var share []int
	for slot := i * slots / n; slot < (i+1)*slots/n; slot++ {
		share = append(share, slot)
	}
	return share
}

// Ready reports whether every server knows all others and all slots, and serves.
func (c *Cluster) Ready(ctx context.Context) bool {
	want := []string{
		"cluster_state:ok", fmt.Sprintf("cluster_slots_ok:%d", slots),
		fmt.Sprintf("cluster_known_nodes:%d", len(c.clients)), fmt.Sprintf("cluster_size:%d", len(c.Masters)),
	}
	for _, client := range c.clients {
		info, err := client.ClusterInfo(ctx).Result()
		if err != nil || !hasLines(info, want) {
			return false
		}
	}
	return true
}

// hasLines reports whether every wanted line is one of a Redis INFO text.
func hasLines(info string, want []string) bool {
	lines := make(map[string]bool)
	for line := range strings.SplitSeq(info, "\r\n") {
		lines[line] = true
	}
	for _, w := range want {
		if !lines[w] {
			return false
		}
	}
	return true
}

// Addrs returns host:port of every master.
func (c *Cluster) Addrs() []string { return addrs(c.Masters) }

// URL returns redis+cluster://host:port,host:port,…
func (c *Cluster) URL() string {
	return c.Masters[0].scheme() + "+cluster://" + strings.Join(c.Addrs(), ",")
}

// SlotOf returns the slot of a key.
func (c *Cluster) SlotOf(key string) int {
	c.t.Helper()
	slot, err := c.clients[0].ClusterKeySlot(c.t.Context(), key).Result()
	if err != nil {
		c.t.Errorf("slot of key %q: %v", key, err)
	}
	return int(slot)
}

// OwnerOf returns the index of the master that holds a slot, as that master says;
// -1 if none does.
func (c *Cluster) OwnerOf(slot int) int {
	c.t.Helper()
	for i, client := range c.clients {
		nodes, err := client.ClusterNodes(c.t.Context()).Result()
		if err == nil && holds(nodes, c.ids[i], slot) { // err: killed or paused
			return i
		}
	}
	return -1
}

// holds reads the answer of CLUSTER NODES: "id addr flags master ping pong epoch
// link slot slot-slot [slot->-id] …", a line per master.
func holds(nodes, id string, slot int) bool {
	for line := range strings.Lines(nodes) {
		fields := strings.Fields(line)
		if len(fields) < 8 || fields[0] != id {
			continue
		}
		for _, text := range fields[8:] {
			first, last, isRange := strings.Cut(text, "-")
			if !isRange {
				last = first
			}
			low, errLow := strconv.Atoi(first)
			high, errHigh := strconv.Atoi(last)
			if errLow == nil && errHigh == nil && low <= slot && slot <= high {
				return true
			}
		}
	}
	return false
}

func addrs(servers []*Server) []string {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// hostPort returns an address as the two arguments that Redis's commands take.
func hostPort(s *Server) (host, port string) { return "127.0.0.1", strconv.Itoa(s.port.number) }
