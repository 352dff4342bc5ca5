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

// adminClient is the part of a [redis.Client] for administration. The exported types name no client type of go-redis, for the reason
// that redisdb.Client states.
type adminClient interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
	Close() error
}

// Cluster is a Redis Cluster. Its methods may be called from any goroutine, but not concurrently.
type Cluster struct {
	Masters  []*Server // each may be killed, paused and restarted
	Replicas []*Server // replica of the master at the same index; nil without replicas

	t       testing.TB
	tls     *TLS          // nil without TLS
	args    []string      // added to the command line of each master
	env     []string      // added to the environment of the next master
	clients []adminClient // a client per server for administration, those of masters first
	ids     []string      // the masters' names in the cluster
}

// StartCluster runs a cluster whose slots are spread evenly over the masters, and waits until each master knows every slot.
// It takes two to three seconds.
func StartCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	c.startMasters(masters)
	return c
}

// StartClusterReplicated is StartCluster with a replica for each master, which is promoted two to four seconds after its
// master has fallen silent.
func StartClusterReplicated(t testing.TB, masters int) *Cluster {
	t.Helper()
	// With a shorter node timeout a busy machine would promote replicas by itself.
	c := &Cluster{t: t, args: []string{
		"--cluster-node-timeout", "1500", "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
	}}
	c.startMasters(masters)
	for range masters {
		c.addServer()
	}
	c.Masters, c.Replicas = c.Masters[:masters:masters], c.Masters[masters:]
	if err := c.replicate(t.Context()); err != nil {
		t.Fatalf("give each master a replica: %v", err)
	}
	if err := awaitCondition(nil, func() bool { return c.Ready(t.Context()) }); err != nil {
		t.Fatalf("cluster of %d masters with replicas is not ready: %v", masters, err)
	}
	return c
}

// replicate makes each server without slots the replica of the master at its index.
func (c *Cluster) replicate(ctx context.Context) error {
	for i := range c.Replicas {
		client := c.clients[len(c.Masters)+i]
		host, port := hostPort(c.Masters[0])
		if err := client.ClusterMeet(ctx, host, port).Err(); err != nil {
			return err
		}
		var last error
		if awaitCondition(nil, func() bool { // the server must first learn of its master
			last = client.ClusterReplicate(ctx, c.ids[i]).Err()
			return last == nil
		}) != nil {
			return last
		}
		if err := awaitCondition(nil, func() bool { return isReplicating(ctx, c.Replicas[i]) }); err != nil {
			return err
		}
	}
	return nil
}

// AwaitPromotion waits until the replica of a master has its slots, and the cluster serves them.
func (c *Cluster) AwaitPromotion(master int) {
	c.t.Helper()
	client := c.clients[len(c.Masters)+master]
	if err := awaitCondition(nil, func() bool {
		role, err := client.Info(c.t.Context(), "replication").Result()
		state, err2 := client.ClusterInfo(c.t.Context()).Result()
		return err == nil && err2 == nil && hasLines(role, []string{"role:master"}) && hasLines(state, []string{"cluster_state:ok"})
	}); err != nil {
		c.t.Fatalf("the replica of %s is not promoted: %v", c.Masters[master].Addr(), err)
	}
}

// StartClusterTLS starts a cluster as [StartCluster] does, with TLS, also between the masters.
func StartClusterTLS(t testing.TB, masters int, l TLS) *Cluster {
	t.Helper()
	c := &Cluster{t: t, tls: &l}
	c.startMasters(masters)
	return c
}

// StartClusterClocked starts a cluster as [StartCluster] does, whose masters have a clock each (see [StartClocked]). args
// are added to the command line of each.
func StartClusterClocked(t testing.TB, masters int, args ...string) (*Cluster, []*Clock) {
	t.Helper()
	c := &Cluster{t: t, args: args}
	var clocks []*Clock
	for range masters {
		clock := newClock(t)
		clocks, c.env = append(clocks, clock), clock.environment()
		c.addServer()
	}
	c.meetMasters()
	return c, clocks
}

func (c *Cluster) startMasters(masters int) {
	c.t.Helper()
	for range masters {
		c.addServer()
	}
	c.meetMasters()
}

// meetMasters joins the masters to a cluster.
func (c *Cluster) meetMasters() {
	c.t.Helper()
	if err := c.assignSlots(c.t.Context()); err != nil {
		c.t.Fatalf("form a cluster of %d masters: %v", len(c.Masters), err)
	}
	if err := awaitCondition(nil, func() bool { return c.Ready(c.t.Context()) }); err != nil {
		c.t.Fatalf("cluster of %d masters is not ready: %v", len(c.Masters), err)
	}
}

func (c *Cluster) addServer() {
	c.t.Helper()
	s := startServer(c.t, c.tls, func(p *port, dir string) ([]string, error) {
		return slices.Concat(serverArgs(p, dir), c.tls.serverArgs(p), c.tls.clusterArgs(), []string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", "5000",
		}, c.args), nil
	}, c.env...)
	client := clientOf(s)
	c.t.Cleanup(func() { _ = client.Close() })
	c.Masters, c.clients = append(c.Masters, s), append(c.clients, client)
}

// assignSlots assigns the slots and makes the servers known to each other.
func (c *Cluster) assignSlots(ctx context.Context) error {
	for i, client := range c.clients {
		id, err := client.Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			return err
		}
		c.ids = append(c.ids, id)
		// Epochs must differ, or two masters may hold the same slot for good after a move.
		if err := client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return err
		}
		if err := client.ClusterAddSlots(ctx, slotShare(i, len(c.clients))...).Err(); err != nil {
			return err
		}
	}
	// A server that knows another cannot set its epoch any more, so all epochs are set before.
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

// slotShare returns the slots of the i-th of n masters.
func slotShare(i, n int) []int {
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

// hasLines reports whether a Redis INFO text has every wanted line.
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
func (c *Cluster) Addrs() []string { return addressesOf(c.Masters) }

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

// OwnerOf returns the index of the master that holds a slot, as that master reports it, or -1.
func (c *Cluster) OwnerOf(slot int) int {
	c.t.Helper()
	for i, client := range c.clients {
		nodes, err := client.ClusterNodes(c.t.Context()).Result()
		if err == nil && holdsSlot(nodes, c.ids[i], slot) { // an error means that the server is killed or paused
			return i
		}
	}
	return -1
}

// holdsSlot reads the answer of CLUSTER NODES, a line per master: "id addr flags master ping pong epoch link slot slot-slot
// [slot->-id] …".
func holdsSlot(nodes, id string, slot int) bool {
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

// awaitAgreement waits until all masters that answer agree on the slots and the epoch of each master. A slot that moves before
// may lose its owner for good. Its receiver takes an epoch above those that it knows, without a vote. If it does not know the
// epoch of another master, that master's older claim of the slot wins.
func (c *Cluster) awaitAgreement() {
	c.t.Helper()
	if err := awaitCondition(nil, c.masterViewsAgree); err != nil {
		c.t.Errorf("the masters do not agree who owns which slot: %v", err)
	}
}

func (c *Cluster) masterViewsAgree() bool {
	var first []string
	for _, client := range c.clients[:len(c.Masters)] {
		nodes, err := client.ClusterNodes(c.t.Context()).Result()
		if err != nil {
			continue // the server is killed or paused
		}
		view := ownersIn(nodes)
		if first == nil {
			first = view
		}
		if !slices.Equal(view, first) {
			return false
		}
	}
	return true
}

// ownersIn returns the id, the epoch and the slots of each server in an answer of CLUSTER NODES, without slots that are moving.
func ownersIn(nodes string) []string {
	var owners []string
	for line := range strings.Lines(nodes) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		owner := fields[0] + " " + fields[6]
		for _, text := range fields[8:] {
			if !strings.HasPrefix(text, "[") {
				owner += " " + text
			}
		}
		owners = append(owners, owner)
	}
	slices.Sort(owners)
	return owners
}

func addressesOf(servers []*Server) []string {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// hostPort returns an address as the two arguments that commands of Redis take.
func hostPort(s *Server) (host, port string) { return "127.0.0.1", strconv.Itoa(s.port.number) }
