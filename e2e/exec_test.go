//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/history"
)

// family is an exec child with a grandchild, one in a session of its own, and one whose
// parent is gone.
const family = `sleep 600 & setsid sleep 600 & (setsid sh -c 'exec sleep 600' &)
while read -r line; do echo '{"ok":true}'; done`

// TestExecChildrenDieWithTheirNode: no exec child, nor what it started, outlives its
// killed node by 1 s (I1).
func TestExecChildrenDieWithTheirNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	w := r.start(settings{Handler: "exec", Argv: []string{"sh", "-c", family}, Processes: 2})
	r.push(plainJobs("job", 20)...)
	r.familyRuns(1 + 2*5)
	r.drained()
	r.diesWithFamily(w)
}

// familyRuns waits for a number of processes: the node, and per child a guard, a shell
// and three sleeps.
func (r *rig) familyRuns(n int) {
	r.t.Helper()
	r.await("the children and grandchildren run", patience, func() bool { return len(tagged(r.tag)) == n })
}

func (r *rig) diesWithFamily(w *process) {
	r.t.Helper()
	killed := r.kill(w)
	r.await("no process of the node is left", patience, func() bool { return len(tagged(r.tag)) == 0 })
	if took, limit := history.Now()-killed, time.Second+slack; took > limit {
		r.t.Errorf("got %s until all processes of the node were gone, want at most %s", took, limit)
	}
}

// TestExecKillNine: the children write the history, so that one which outlived its node
// and worked beside the next node's would be seen.
func TestExecKillNine(t *testing.T) {
	t.Parallel()
	s := settings{Handler: "exec", Argv: []string{os.Args[0]}, Processes: 3, MaxCrashes: -1}
	random := randomly(t)
	r := newRig(t, 8)
	r.killsInAStream(random, func() *process { return r.start(s) }, history.Config{ShardConcurrency: 1, MaxDuplicates: -1})
}

// killsInAStream kills five nodes whose handlers are other processes, while real events
// flow.
func (r *rig) killsInAStream(random *rand.Rand, start func() *process, judge history.Config) {
	r.t.Helper()
	const kills = 5
	feed := r.feed(realEvents(3000))
	for i := range kills {
		feed.share(i+1, kills+1)
		before := r.stats().Processed
		w := start()
		r.await("the node handles jobs", patience, func() bool { return r.stats().Processed > before })
		<-time.After(upTo(random, 150*time.Millisecond))
		last := fmt.Sprintf("%s-%d", lastID, i)
		r.push(plainJob(last))
		r.await("a handler is at "+last, patience, func() bool { return bytes.Contains(r.read(), []byte(last)) })
		r.kill(w)
	}
	w := start()
	r.leased(w, 1)
	feed.finish()
	r.drained()
	w.terminate(patience)
	if v := r.verdict(judge); v.Interrupted+v.Failed == 0 {
		r.t.Error("got no call that a death cut off: the test would show little")
	}
	r.noneFailed()
}
