//go:build linux

package e2e

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/membership"
)

// TestClusterFreezes stops a worker and the leader at once, for less than a lease and for much longer, and continues
// them (I1). After a long stop a process is fenced, and goes on as a new instance.
//
// A call that a freeze interrupts ends after the thaw. Meanwhile another node may have handled its id, which is the
// stated limit of I1. So the verdict counts such a call as ended by the freeze (see cutOff). It excuses no call that
// began after the thaw, because a call with the lost claim's fence would be a fault.
func TestClusterFreezes(t *testing.T) {
	tier.All(t)
	t.Parallel()
	f := newFleet(t, settings{TTL: 2 * ttl})
	var files []string
	for _, name := range names(5) {
		file := filepath.Join(t.TempDir(), name)
		files = append(files, file)
		f.up(name, func(s *settings) { s.History = file })
	}
	f.balanced(patience)
	for range 3 { // a freeze may be longer than it should be, if the machine stands still
		if leader, _, workers := f.parts(); f.freezesShortly(workers[0], leader) {
			break
		}
	}
	leader, _, workers := f.parts()
	f.freezesLong(files, workers[0], leader)
	f.finish(judge.Config{MaxDuplicates: -1}, files...)
}

// stop freezes nodes and returns when that was.
func (f *fleet) stop(names ...string) (frozen time.Duration) {
	f.t.Helper()
	for _, name := range names {
		f.nodes[name].signal(syscall.SIGSTOP)
	}
	for _, name := range names {
		f.await(name+" is frozen", patience, func() bool { return state(f.nodes[name]) == "T" })
	}
	return judge.Now()
}

// freezesShortly: no shard goes to another node. A lease may have been about to be
// renewed when the freeze began, so that it is lost; its node then lives on as the next
// instance, with the same shards. It returns false if the freeze was too long to show that.
func (f *fleet) freezesShortly(names ...string) bool {
	f.t.Helper()
	short := f.settings.TTL * 6 / 10 // a renewal comes every ttl/6, and the deadline is 0.7 ttl after it
	frozen := f.stop(names...)
	<-time.After(short)
	for _, name := range names {
		f.nodes[name].signal(syscall.SIGCONT)
	}
	lasted := judge.Now() - frozen
	f.balanced(patience)
	moves := f.watch.since(frozen)
	if len(moves) > 0 && lasted > short+f.settings.TTL/20 {
		f.t.Logf("freeze of %v for %s in place of %s: %d moves", names, lasted, short, len(moves))
		return false
	}
	if len(moves) > 0 {
		f.t.Errorf("freeze of %v for %s: got %d moves, want none: %+v", names, lasted, len(moves), moves[0])
	}
	return true
}

// instance is under which name a node works.
func (f *fleet) instance(name string) membership.Instance {
	f.t.Helper()
	i, err := membership.ParseInstance(f.lease(name).Instance)
	if err != nil {
		f.t.Fatal(err)
	}
	return i
}

// freezesLong: the others have the shards in time, and the frozen ones go on after the thaw.
func (f *fleet) freezesLong(files []string, names ...string) {
	f.t.Helper()
	frozenOnes, was := map[string]*process{}, map[string]int{}
	for _, name := range names {
		frozenOnes[name], was[name] = f.nodes[name], f.instance(name).N
	}
	frozen := f.stop(names...)
	for _, name := range names {
		delete(f.nodes, name)
	}
	took := f.balanced(2*f.settings.TTL+3*time.Second+slack) - frozen
	f.t.Logf("freeze of %v: the last shard served elsewhere after %s", names, took.Round(time.Millisecond))
	<-time.After(3*f.settings.TTL - (judge.Now() - frozen))
	for name, p := range frozenOnes {
		p.signal(syscall.SIGCONT)
		f.nodes[name] = p
	}
	for name, p := range frozenOnes {
		f.leased(p, was[name]+1)
	}
	f.balanced(patience)
	f.done() // a history that is written to cannot be rewritten
	for _, file := range files {
		if name := filepath.Base(file); frozenOnes[name] != nil {
			f.t.Logf("%d calls were under way when %s froze", f.cutOff(file, frozenOnes[name], frozen), name)
		}
	}
}
