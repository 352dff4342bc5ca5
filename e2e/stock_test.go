//go:build linux

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/wire"
)

// The stock binary, with handlers in other processes.

// built is lowkiq-node for all tests. TestMain removes it.
var built nodebin.Binary

// config writes a node.yaml with a handler.
func (r *rig) config(handler string) string {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "node.yaml")
	text := fmt.Sprintf(`redis: %s
cluster: %s
node:
  name: n1
  ttl: %s
  concurrency: 8
queues:
  %s:
    shards: %d
    max_crashes: 0
    handler: %s
`, r.redis.URL(), r.cluster, 2*ttl, queueName, r.shards, handler)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return file
}

func (r *rig) stock(config string) *process {
	r.t.Helper()
	return r.run("lowkiq-node", []string{roleEnv + "=child"}, built.Path(r.t, ".."), "run", "--config", config, "--http", "127.0.0.1:0")
}

// TestStockNodeExecKillNine kills nodes while their exec children write the history. The history would show a child
// that outlives its node and works beside a child of the next node.
func TestStockNodeExecKillNine(t *testing.T) {
	t.Parallel()
	random := randomly(t)
	r := newRig(t, 8)
	config := r.config(fmt.Sprintf("{exec: [%q], processes: 3}", os.Args[0]))
	r.killsInAStream(random, config, judge.Config{ShardConcurrency: 1, MaxDuplicates: -1})
}

// family is an exec child with a grandchild, one in a session of its own, and one whose
// parent is gone.
const family = `sleep 600 & setsid sleep 600 & (setsid sh -c 'exec sleep 600' &)
while read -r line; do echo '{"ok":true}'; done`

// TestExecChildrenDieWithTheirNode checks that neither an exec child nor its descendants outlive the killed node by 1 s
// (I1).
func TestExecChildrenDieWithTheirNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	script := filepath.Join(t.TempDir(), "family.sh")
	if err := os.WriteFile(script, []byte(family), 0o600); err != nil {
		t.Fatal(err)
	}
	w := r.stock(r.config(fmt.Sprintf("{exec: [sh, %q], processes: 2}", script)))
	r.push(plainJobs("job", 20)...)
	const all = 1 + 2*5 // the node, and per child a guard, a shell and three sleeps
	r.await("the children and grandchildren run", patience, func() bool { return len(tagged(r.tag)) == all })
	r.drained()
	killed := r.kill(w)
	r.await("no process of the node is left", patience, func() bool { return len(tagged(r.tag)) == 0 })
	if took, limit := judge.Now()-killed, time.Second+slack; took > limit {
		t.Errorf("got %s until all processes of the node were gone, want at most %s", took, limit)
	}
}

// TestStockNodeHTTPKillNine kills nodes while the endpoint writes the history. The endpoint stops when its request is
// aborted, which happens as soon as the node is dead.
func TestStockNodeHTTPKillNine(t *testing.T) {
	tier.All(t)
	t.Parallel()
	random := randomly(t)
	r := newRig(t, 8)
	config := r.config(fmt.Sprintf("{http: %q}", r.endpoint()))
	// The history is the endpoint's, which does not die: no death explains a duplicate.
	r.killsInAStream(random, config, judge.Config{ShardConcurrency: 1, MaxDuplicates: -1, MaxUncaused: -1})
}

// killsInAStream kills five nodes whose handlers are other processes, while real events
// flow.
func (r *rig) killsInAStream(random *rand.Rand, config string, cfg judge.Config) {
	r.t.Helper()
	const kills = 5
	feed := r.feed(realEvents(3000))
	for i := range kills {
		feed.share(i+1, kills+1)
		before := r.stats().Processed
		w := r.stock(config)
		r.await("the node handles jobs", patience, func() bool { return r.stats().Processed > before })
		<-time.After(upTo(random, 150*time.Millisecond))
		last := fmt.Sprintf("%s-%d", lastID, i)
		r.push(plainJob(last))
		r.await("a handler is at "+last, patience, func() bool { return bytes.Contains(r.read(), []byte(last)) })
		r.kill(w)
	}
	w := r.stock(config)
	r.leased(w, 1)
	feed.finish()
	r.drained()
	w.terminate(patience)
	if v := r.verdict(cfg); v.Interrupted+v.Failed == 0 {
		r.t.Error("got no call that a death cut off: the test would show little")
	}
	r.noneFailed()
}

// endpoint serves batches in the test's own process.
func (r *rig) endpoint() (url string) {
	handler := judge.Wrap(r.notes, lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
		return (&settings{Work: hotWork(batch)}).pretend(ctx, batch)
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		text, err := io.ReadAll(req.Body)
		if err != nil {
			return // the node died
		}
		batch, err := wire.ParseBatch(text)
		if err == nil {
			err = handler.Handle(req.Context(), batch)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	r.t.Cleanup(server.Close)
	return server.URL
}
