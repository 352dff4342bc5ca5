//go:build linux

package e2e

import (
	"net/url"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/status"
)

// TestClusterNames starts two groups of nodes at once under one name on an empty Redis. They become one cluster. Beside
// them is a cluster of another name, with the same node names and the first cluster as its seeds. Redis allows each
// cluster its own keys and channels only, and must find nothing to refuse. One node of the other cluster has another
// gossip key. It stays out of the gossip but works on its part of the plan, because it has a lease and Raft reaches it.
// When it dies, its lease tells.
func TestClusterNames(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRig(t, fleetShards)
	admin := r.admin()
	one, other := r.ofCluster(admin, "one"), r.ofCluster(admin, "one-more")
	other.settings.GossipKey = "sixteen bytes ok"
	first, second := redistest.Addresses(t, 2)[0], redistest.Addresses(t, 2)[0]
	one.up("n1", bindTo(first))
	one.up("n3", bindTo(second))
	other.up("n1", joining(first))
	one.up("n2", joining(first))
	one.up("n4", joining(second))
	one.up("n5", joining(second))
	other.up("n2", joining(second))
	other.up("n3", joining(other.lease("n1").Gossip), func(s *settings) { s.GossipKey = "sixteen bytes no" })
	one.balanced(patience)
	other.balanced(patience)
	other.await("those with the key gossip", patience, func() bool { return len(other.members("n1")) == 2 })
	if got := other.members("n3"); len(got) != 1 {
		t.Errorf("gossip of the node with another key: got %v, want itself alone", got)
	}
	if got := other.gossipOf("n2", "n3"); got != "" {
		t.Errorf("gossip of the others: got n3 %s, want nothing of it", got)
	}
	leader, _, _ := one.parts()
	other.parts()
	before := judge.Now()
	one.crash(leader)
	one.balanced(patience)
	if moves := other.watch.since(before); len(moves) > 0 {
		t.Errorf("the other cluster: got %d moves, want none: %+v", len(moves), moves[0])
	}
	other.crash("n3")
	other.balanced(patience)
	one.finish(judge.Config{MaxDuplicates: -1})
	other.finish(judge.Config{MaxDuplicates: -1})
	refused, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
	if err != nil || len(refused) > 0 {
		t.Errorf("got refused commands %v, %v, want none", refused, err)
	}
}

// ofCluster is a fleet with a history of its own, whose nodes may touch nothing but
// their cluster.
func (r *rig) ofCluster(admin *redis.Client, cluster string) *fleet {
	r.t.Helper()
	err := admin.Do(r.t.Context(), "ACL", "SETUSER", cluster, "on", ">secret", "+@all",
		"~lk:{"+cluster+"}*", "~lk:{"+cluster+"/*", "&lk:{"+cluster+"}*", "&lk:{"+cluster+"/*").Err()
	if err != nil {
		r.t.Fatal(err)
	}
	address := url.URL{Scheme: "redis", User: url.UserPassword(cluster, "secret"), Host: r.redis.Addr(), Path: "/0"}
	own := &rig{t: r.t, tag: r.tag, cluster: cluster, redis: r.redis, url: r.url, shards: r.shards, history: filepath.Join(r.t.TempDir(), cluster)}
	own.open(address.String())
	return fleetOf(own, settings{Redis: address.String(), MaxCrashes: -1, TTL: 2 * ttl})
}

func bindTo(address string) func(*settings) {
	return func(s *settings) { s.Bind = address }
}

func joining(address string) func(*settings) {
	return func(s *settings) { s.Join = []string{address} }
}

// members lists the nodes that a node knows by gossip.
func (f *fleet) members(name string) (members []status.Member) {
	f.t.Helper()
	f.await(name+" tells its members", patience, func() bool { return f.ask(name, "members", &members) == nil })
	return members
}

// gossipOf is the state of another node in a node's gossip, "" for none.
func (f *fleet) gossipOf(name, other string) string {
	f.t.Helper()
	for _, m := range f.members(name) {
		if m.Node == other {
			return m.State
		}
	}
	return ""
}
