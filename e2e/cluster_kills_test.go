//go:build linux

package e2e

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/lab/judge"
)

// TestClusterKills kills a worker under load, then the leader, two of three voters, all nodes but one, and all. Each
// time the cluster returns by itself. It handles in-flight payloads again, and nothing else (I1, I2, I3, I4).
func TestClusterKills(t *testing.T) {
	t.Parallel()
	f := newFleet(t, settings{MaxCrashes: -1, TTL: 2 * ttl})
	f.upAll(names(5)...)
	f.balanced(patience)
	_, _, workers := f.parts()
	f.dies("a worker", workers[0])
	leader, _, _ := f.parts()
	f.dies("the leader", leader)
	leader, voters, _ := f.parts()
	f.dies("two of three voters", leader, voters[0])
	f.dies("all but one", f.list()[1:]...)
	f.diesOut()
	f.finish(judge.Config{MaxDuplicates: -1})
}

// dies kills nodes, waits until the others have all shards, and starts them again.
func (f *fleet) dies(who string, names ...string) {
	f.t.Helper()
	killed := f.crash(names...)
	took := f.balanced(2*f.settings.TTL+3*time.Second+slack) - killed
	f.t.Logf("SIGKILL of %s: their last shard served elsewhere after %s; %s", who, took.Round(time.Millisecond), pauses(f.watch.since(killed)))
	f.upAll(names...)
	f.balanced(patience)
}

// diesOut kills all nodes and starts them again.
func (f *fleet) diesOut() {
	f.t.Helper()
	all := f.list()
	f.crash(all...)
	began := judge.Now()
	f.upAll(all...)
	took := f.balanced(patience) - began
	f.t.Logf("SIGKILL of all: all shards served %s after the start of all", took.Round(time.Millisecond))
}
