//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/history"
)

// TestFrozenProcess: a worker is stopped for longer than its lease lives. Another one
// takes over; on its thaw the first is fenced, and goes on as a new instance that waits
// (design, section 10).
//
// A call that was under way when the process froze ends after the thaw, when its id may
// have been handled by the other: the stated limit of I1. So the verdict takes the
// freeze for the end of such calls (see cutOff). Of whatever began after the thaw
// nothing is excused: with the lost claim's fence it would be a fault.
func TestFrozenProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, 16)
	theirs := filepath.Join(t.TempDir(), "frozen")
	a := r.start(settings{Name: "a", Work: 20 * time.Millisecond, History: theirs})
	feed := r.feed(realEvents(3000))
	feed.share(1, 2)
	r.works(a)
	b := r.start(settings{Name: "b", Work: time.Millisecond})
	r.leased(b, 1)
	a.signal(syscall.SIGSTOP)
	r.await("the first worker is frozen", patience, func() bool { return state(a) == "T" })
	frozen := history.Now()
	took := r.works(b) - frozen
	t.Logf("taken over in %s", took)
	if most := 2*ttl + 3*time.Second + slack; took > most {
		t.Errorf("got %s until the second took over, want at most %s", took, most)
	}
	// While nobody has seized a shard, its owner may still ack what it has finished.
	r.await("the second worker owns all shards", patience, func() bool { return r.owns("b") })
	feed.share(2, 2)
	a.signal(syscall.SIGCONT)
	r.leased(a, 2)
	feed.finish()
	r.drained()
	b.terminate(patience)
	r.push(plainJobs("afterwards", 50)...)
	r.drained()
	a.terminate(patience)
	cut := r.cutOff(theirs, a, frozen)
	t.Logf("%d calls were under way when the process froze", cut)
	v := r.judge(history.Config{ShardConcurrency: 1, MaxDuplicates: -1}, r.history, theirs)
	if !v.OK() {
		t.Error(v.Words())
	}
	r.noneFailed()
}

// TestShortFreeze: a stop that the lease survives has no effect.
func TestShortFreeze(t *testing.T) {
	t.Parallel()
	r := newRig(t, 16)
	a := r.start(settings{Name: "a", Work: 5 * time.Millisecond})
	feed := r.feed(realEvents(2000))
	feed.share(1, 2)
	r.works(a)
	b := r.start(settings{Name: "b"})
	r.leased(b, 1)
	a.signal(syscall.SIGSTOP)
	<-time.After(ttl / 4) // a renewal comes every ttl/6, and the deadline is 0.7 ttl after it
	a.signal(syscall.SIGCONT)
	feed.finish()
	r.drained()
	if b.first() != 0 {
		t.Error("the second worker got work although the first one's lease lived")
	}
	b.terminate(patience)
	a.terminate(patience)
	r.verdict(history.Config{ShardConcurrency: 1})
	r.noneFailed()
}

// TestFrozenNodeWithChildren: a frozen node cannot stop its exec children, which are not
// frozen. Their guards kill them before another node could have the shards (I1).
func TestFrozenNodeWithChildren(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	// One child each: a second one that starts as the node freezes has no batch, and waits with it.
	s := settings{Handler: "exec", Argv: []string{os.Args[0]}, Processes: 1}
	s.Name = "a"
	a := r.start(s)
	r.push(plainJobs(longID, 1)...)
	r.works(a)
	r.await("the child has begun", patience, func() bool { return bytes.Contains(r.read(), []byte(longID)) })
	children := slices.DeleteFunc(tagged(r.tag), func(pid int) bool { return pid == a.pid() })
	s.Name = "b"
	b := r.start(s)
	r.leased(b, 1)
	a.signal(syscall.SIGSTOP)
	frozen := time.Now()
	r.await("the children of the frozen node are gone", patience, func() bool {
		return !slices.ContainsFunc(tagged(r.tag), func(pid int) bool { return slices.Contains(children, pid) })
	})
	if took, limit := time.Since(frozen), ttl+slack; took > limit {
		t.Errorf("got %s until the children were gone, want at most %s", took, limit)
	}
	for _, pid := range children {
		if err := r.notes.Death(fmt.Sprintf("%d/%d", a.pid(), pid), 0, history.Now()); err != nil {
			t.Fatal(err)
		}
	}
	r.await("the second worker owns all shards", patience, func() bool { return r.owns("b") })
	a.signal(syscall.SIGCONT)
	r.leased(a, 2)
	r.drained()
	b.terminate(patience)
	a.terminate(patience)
	if v := r.verdict(history.Config{ShardConcurrency: 1}); v.Interrupted != 1 {
		t.Errorf("got %d calls cut off, want 1", v.Interrupted)
	}
	r.noneFailed()
}

// read returns the history as it is.
func (r *rig) read() []byte {
	r.t.Helper()
	text, err := os.ReadFile(r.history)
	if err != nil {
		r.t.Fatal(err)
	}
	return text
}

// owns tells whether a node owns all shards.
func (r *rig) owns(node string) bool {
	r.t.Helper()
	for i := range r.shards {
		owner, err := r.queue.Shard(i).Owner(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		if !strings.HasPrefix(owner.Instance, node+"/") {
			return false
		}
	}
	return true
}

// state is the letter of a process's state in /proc.
func state(p *process) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid()) + "/stat")
	if err != nil {
		return ""
	}
	return string(stat[bytes.LastIndexByte(stat, ')')+2:][:1])
}
