//go:build linux

package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/history"
)

// TestClusterExec: five nodes whose handlers are child processes, which write the
// history; one node is killed, one leaves.
func TestClusterExec(t *testing.T) {
	t.Parallel()
	f := newFleet(t, settings{Handler: "exec", Argv: []string{os.Args[0]}, Processes: 1, MaxCrashes: -1})
	f.loses(history.Config{MaxDuplicates: -1})
}

// TestClusterHTTP: the same with an endpoint, which is the test's own process. It does
// not die: no death explains a duplicate.
func TestClusterHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t, fleetShards)
	f := fleetOf(r, settings{Handler: "http", URL: r.endpoint(), MaxCrashes: -1})
	f.loses(history.Config{MaxDuplicates: -1, MaxUncaused: -1})
}

// loses starts five nodes at once; one dies, one leaves, one is restarted.
func (f *fleet) loses(judge history.Config) {
	f.t.Helper()
	f.upAll(names(5)...)
	f.balanced(patience)
	_, _, workers := f.parts()
	f.crash(workers[0])
	f.balanced(patience)
	f.leave(workers[1])
	f.balanced(patience)
	f.up(workers[0])
	f.balanced(patience)
	f.finish(judge)
}

// TestClusterStubbornHandler: a node loses its lease while a handler of it ignores its
// context. The process ends with status 75 before its shards may be seized; others serve
// them (I1).
func TestClusterStubbornHandler(t *testing.T) {
	t.Parallel()
	f := newFleet(t, settings{MaxCrashes: -1})
	f.upAll(names(4)...)
	f.balanced(patience)
	f.up("n5", func(s *settings) { s.Handler = "stubborn" }) // last: what it has got it does not give away
	f.balanced(patience)
	p := f.nodes["n5"]
	f.works(p)
	instance := f.lease("n5").Instance
	p.mortal.Store(true)
	ended := history.Now()
	if err := f.client.EndLease(t.Context(), instance); err != nil {
		t.Fatal(err)
	}
	status := p.exits(patience)
	took := history.Now() - ended
	if limit := ttl + slack; status != "exit status 75" || took > limit {
		t.Errorf("got %s after %s, want exit status 75 within %s", status, took, limit)
	}
	f.died(p, 0)
	delete(f.nodes, "n5")
	f.t.Logf("exit after %s; its last shard served elsewhere after %s", took.Round(time.Millisecond), (f.balanced(patience) - ended).Round(time.Millisecond))
	f.finish(history.Config{MaxDuplicates: -1})
}
