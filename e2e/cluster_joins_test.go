//go:build linux

package e2e

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/lab/judge"
)

// TestClusterJoinsAndLeaves starts five nodes in turn, restarts them in turn, lets them leave in turn, and starts them
// all at once, under load. Nothing is handled twice, no retry is spent, and no more shards move than must (I4, I5).
func TestClusterJoinsAndLeaves(t *testing.T) {
	t.Parallel()
	f := newFleet(t, settings{TTL: 2 * ttl}) // no lease is to end
	f.up("n1")
	f.balanced(patience)
	f.joinsOneByOne()
	f.rollingRestart()
	for _, name := range []string{"n5", "n4", "n3", "n2"} {
		f.handsOver(name)
	}
	f.joinsAtOnce()
	f.finish(judge.Config{})
}

// joinsOneByOne adds n2 to n5; some are told of a peer, some find it.
func (f *fleet) joinsOneByOne() {
	f.t.Helper()
	seed := f.lease("n1").Gossip
	for i, name := range names(5)[1:] {
		began := judge.Now()
		f.up(name, func(s *settings) {
			if i%2 == 0 {
				s.Join = []string{seed}
			}
		})
		took := f.balanced(patience) - began
		moves := f.watch.since(began)
		f.t.Logf("join of %s: %s from its start; %s", name, took.Round(time.Millisecond), pauses(moves))
		for _, m := range moves {
			if m.to != name {
				f.t.Errorf("join of %s: got a move %+v, want moves to it alone (I5)", name, m)
			}
		}
		if got, want := len(moves), len(fleetQueues)*f.shards/(i+2); got > want {
			f.t.Errorf("join of %s: got %d moves, want at most %d", name, got, want)
		}
	}
}

// rollingRestart restarts all nodes, each as soon as the one before is ready.
func (f *fleet) rollingRestart() {
	f.t.Helper()
	began := judge.Now()
	for _, name := range f.list() {
		f.leave(name)
		f.up(name)
		f.ready(name)
	}
	f.balanced(patience)
	moves := f.watch.since(began)
	f.t.Logf("rolling restart: %s; %s", (judge.Now() - began).Round(time.Millisecond), pauses(moves))
	if got := most(moves); got > 4 { // usually 2; on a busy machine the next node leaves before shards have come back
		f.t.Errorf("rolling restart: got a shard that moved %d times, want at most 4", got)
	}
}

// handsOver ends a node with SIGTERM.
func (f *fleet) handsOver(name string) {
	f.t.Helper()
	f.balanced(patience)
	asked := f.leave(name)
	ended := judge.Now()
	took := f.balanced(patience) - asked
	moves := f.watch.since(asked)
	f.t.Logf("SIGTERM of %s: its last shard served elsewhere after %s, gone after %s; %s",
		name, took.Round(time.Millisecond), (ended - asked).Round(time.Millisecond), pauses(moves))
	if got := most(moves); got > 1 {
		f.t.Errorf("SIGTERM of %s: got a shard that moved %d times, want 1", name, got)
	}
	for _, m := range moves {
		if m.from != name {
			f.t.Errorf("SIGTERM of %s: got a move %+v, want its own shards to move alone (I5)", name, m)
		}
	}
}

// joinsAtOnce adds n2 to n5.
func (f *fleet) joinsAtOnce() {
	f.t.Helper()
	f.balanced(patience)
	began := judge.Now()
	f.upAll(names(5)[1:]...)
	took := f.balanced(patience) - began
	moves := f.watch.since(began)
	f.t.Logf("join of four at once: %s from their start; %s", took.Round(time.Millisecond), pauses(moves))
	if got := most(moves); got > 4 { // a busy machine may let them come one by one
		f.t.Errorf("join of four at once: got a shard that moved %d times, want at most once for each that joined", got)
	}
	f.parts()
}
