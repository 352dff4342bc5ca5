//go:build linux

package e2e

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// TestClusterCutOff cuts a worker off from the other nodes, but not from Redis, while a new node joins. Then it cuts
// the leader off. The isolated node keeps its shards while its lease lives, and works by an old plan. Nothing is
// handled twice, and afterwards all nodes agree again (I1).
func TestClusterCutOff(t *testing.T) {
	tier.All(t)
	t.Parallel()
	f := newFleet(t, settings{TTL: 2 * ttl}) // no lease is to end
	d := newRelays(t)
	for i := range 5 {
		d.up(f, i+1)
	}
	f.balanced(patience)
	_, _, workers := f.parts()
	alone := 3 * f.settings.TTL // longer than a seizure takes
	f.cutsOff(d, workers[0], alone, func() { d.up(f, 6) })
	leader, _, _ := f.parts()
	f.cutsOff(d, leader, alone, func() {})
	f.parts()
	f.finish(judge.Config{})
}

// cutsOff lets a node be alone for a while.
func (f *fleet) cutsOff(d *relays, name string, alone time.Duration, meanwhile func()) {
	f.t.Helper()
	began := judge.Now()
	d.isolate(f.nodes[name].pid())
	meanwhile()
	others := f.list()[0] // one of those that see each other
	if others == name {
		others = f.list()[1]
	}
	f.await("the others have a leader that is not "+name, patience, func() bool {
		status, err := f.status(others)
		return err == nil && status.Leader != "" && status.Leader != name
	})
	f.await("gossip gives it up", patience, func() bool { return f.gossipOf(others, name) == "dead" })
	<-time.After(alone - (judge.Now() - began))
	for _, m := range f.watch.since(began) {
		if m.from == name || m.to == name {
			f.t.Errorf("while %s was cut off: got a move %+v, want it to keep its shards", name, m)
		}
	}
	healed := judge.Now()
	d.isolate(0)
	f.balanced(patience)
	f.await(name+" is in the gossip again", patience, func() bool { return f.gossipOf(others, name) == "alive" })
	f.t.Logf("%s was cut off for %s and is back for %s", name, (healed - began).Round(time.Millisecond), (judge.Now() - healed).Round(time.Millisecond))
}
