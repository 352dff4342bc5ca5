//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// TestFrozenNodeWithChildren freezes a node, which then cannot stop its exec children. Their guards kill the children
// before another node could have the shards (I1).
func TestFrozenNodeWithChildren(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRig(t, 2)
	const lives = 2 * ttl
	// One child each: a second one that starts as the node freezes has no batch, and waits with it.
	s := settings{TTL: lives, Handler: "exec", Argv: []string{os.Args[0]}, Processes: 1}
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
	if took, limit := time.Since(frozen), lives+slack; took > limit {
		t.Errorf("got %s until the children were gone, want at most %s", took, limit)
	}
	for _, pid := range children {
		if err := r.notes.Death(fmt.Sprintf("%d/%d", a.pid(), pid), 0, judge.Now()); err != nil {
			t.Fatal(err)
		}
	}
	r.await("the second worker owns all shards", patience, func() bool { return r.owns("b") })
	a.signal(syscall.SIGCONT)
	r.leased(a, 2)
	r.drained()
	b.terminate(patience)
	a.terminate(patience)
	if v := r.verdict(judge.Config{ShardConcurrency: 1}); v.Interrupted != 1 {
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
