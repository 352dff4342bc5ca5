//go:build linux

package e2e

import (
	"net/url"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/history"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/status"
)

// TestClusterNames: on an empty Redis two groups of nodes start at once under one name
// and become one cluster. Beside them is a cluster of another name, whose nodes are told
// to join the first one and are called like its nodes. Redis allows each cluster its own
// keys and channels only, and must find nothing to refuse (design, section 10).
func TestClusterNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, fleetShards)
	admin := r.admin()
	one, other := r.ofCluster(admin, "one"), r.ofCluster(admin, "one-more")
	first, second := redistest.Addresses(t, 2)[0], redistest.Addresses(t, 2)[0]
	one.up("n1", bindTo(first))
	one.up("n3", bindTo(second))
	other.up("n1", joining(first))
	one.up("n2", joining(first))
	one.up("n4", joining(second))
	one.up("n5", joining(second))
	other.up("n2", joining(second))
	one.balanced(patience)
	other.balanced(patience)
	leader, _, _ := one.parts()
	other.parts()
	before := history.Now()
	one.crash(leader)
	one.balanced(patience)
	if moves := other.watch.since(before); len(moves) > 0 {
		t.Errorf("the other cluster: got %d moves, want none: %+v", len(moves), moves[0])
	}
	one.finish(history.Config{MaxDuplicates: -1})
	other.finish(history.Config{})
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
	return fleetOf(own, settings{Redis: address.String(), MaxCrashes: -1})
}

func bindTo(address string) func(*settings) {
	return func(s *settings) { s.Bind = address }
}

func joining(address string) func(*settings) {
	return func(s *settings) { s.Join = []string{address} }
}

// TestClusterWrongKey: a node with another gossip key stays out of the gossip. It works
// on what the plan gives it, because it has a lease and Raft reaches it, and when it dies
// its lease tells.
func TestClusterWrongKey(t *testing.T) {
	t.Parallel()
	f := newFleet(t, settings{GossipKey: "sixteen bytes ok", MaxCrashes: -1})
	f.upAll(names(4)...)
	seed := f.lease("n1").Gossip
	f.up("n5", joining(seed), func(s *settings) { s.GossipKey = "sixteen bytes no" })
	f.balanced(patience)
	f.await("four gossip", patience, func() bool { return len(f.members("n1")) == 4 })
	if got := f.members("n5"); len(got) != 1 {
		t.Errorf("gossip of the node with another key: got %v, want itself alone", got)
	}
	if got := f.hears("n2", "n5"); got != "" {
		t.Errorf("gossip of the others: got n5 %s, want nothing of it", got)
	}
	f.crash("n5")
	f.balanced(patience)
	f.finish(history.Config{MaxDuplicates: -1})
}

// members lists what a node hears of by gossip.
func (f *fleet) members(name string) (members []status.Member) {
	f.t.Helper()
	f.await(name+" says whom it hears", patience, func() bool { return f.ask(name, "members", &members) == nil })
	return members
}

// hears is what a node hears of another one, "" for nothing.
func (f *fleet) hears(name, other string) string {
	f.t.Helper()
	for _, m := range f.members(name) {
		if m.Node == other {
			return m.State
		}
	}
	return ""
}
