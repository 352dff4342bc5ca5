//go:build linux

package e2e

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/history"
	"github.com/lowkiq/lowkiq/membership"
)

// TestClusterFreezes: a worker and the leader are stopped, for less than their lease
// lives and for much longer, and thaw (design, section 10). Calls that were under way
// count as cut off by the freeze: see TestFrozenProcess.
func TestClusterFreezes(t *testing.T) {
	t.Parallel()
	for name, who := range map[string]func(*fleet) string{
		"worker": func(f *fleet) string { _, _, workers := f.parts(); return workers[0] },
		"leader": func(f *fleet) string { leader, _, _ := f.parts(); return leader },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, settings{})
			var files []string
			for _, name := range names(5) {
				file := filepath.Join(t.TempDir(), name)
				files = append(files, file)
				f.up(name, func(s *settings) { s.History = file })
			}
			f.balanced(patience)
			f.freezesShortly(who(f))
			f.freezesLong(who(f), files)
			f.finish(history.Config{MaxDuplicates: -1}, files...)
		})
	}
}

// stop freezes a node and returns when that was.
func (f *fleet) stop(name string) (frozen time.Duration) {
	f.t.Helper()
	p := f.nodes[name]
	p.signal(syscall.SIGSTOP)
	f.await(name+" is frozen", patience, func() bool { return state(p) == "T" })
	return history.Now()
}

// freezesShortly: no shard goes to another node. A lease may have been about to be
// renewed when the freeze began, so that it is lost; it then lives on as the next
// instance, with the same shards.
func (f *fleet) freezesShortly(name string) {
	f.t.Helper()
	short := ttl * 6 / 10 // a renewal comes every ttl/6, and the deadline is 0.7 ttl after it
	frozen := f.stop(name)
	<-time.After(short)
	f.nodes[name].signal(syscall.SIGCONT)
	f.balanced(patience)
	if moves := f.watch.since(frozen); len(moves) > 0 {
		f.t.Errorf("freeze of %s for %s: got %d moves, want none: %+v", name, short, len(moves), moves[0])
	}
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

func (f *fleet) freezesLong(name string, files []string) {
	f.t.Helper()
	p, was := f.nodes[name], f.instance(name)
	frozen := f.stop(name)
	delete(f.nodes, name)
	took := f.balanced(f.settings.TTL*2+3*time.Second+slack) - frozen
	f.t.Logf("freeze of %s: its last shard served elsewhere after %s", name, took.Round(time.Millisecond))
	<-time.After(3*f.settings.TTL - (history.Now() - frozen))
	p.signal(syscall.SIGCONT)
	f.nodes[name] = p
	f.leased(p, was.N+1)
	f.balanced(patience)
	f.done() // a history that is written to cannot be rewritten
	for _, file := range files {
		if filepath.Base(file) == name {
			f.t.Logf("%d calls were under way when %s froze", f.cutOff(file, p, frozen), name)
		}
	}
}
