//go:build linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/history"
	"github.com/lowkiq/lowkiq/internal/nodebin"
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
`, r.redis.URL(), r.cluster, ttl, queueName, r.shards, handler)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return file
}

func (r *rig) stock(config string) *process {
	r.t.Helper()
	return r.run("lowkiq-node", []string{roleEnv + "=child"}, built.Path(r.t, ".."), "run", "--config", config, "--http", "127.0.0.1:0")
}

func TestStockNodeExecKillNine(t *testing.T) {
	t.Parallel()
	random := randomly(t)
	r := newRig(t, 8)
	config := r.config(fmt.Sprintf("{exec: [%q], processes: 3}", os.Args[0]))
	r.killsInAStream(random, func() *process { return r.stock(config) }, history.Config{ShardConcurrency: 1, MaxDuplicates: -1})
}

func TestStockNodeChildrenDieWithIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	script := filepath.Join(t.TempDir(), "family.sh")
	if err := os.WriteFile(script, []byte(family), 0o600); err != nil {
		t.Fatal(err)
	}
	w := r.stock(r.config(fmt.Sprintf("{exec: [sh, %q], processes: 2}", script)))
	r.push(plainJobs("job", 20)...)
	r.familyRuns(1 + 2*5)
	r.drained()
	r.diesWithFamily(w)
}

// TestStockNodeHTTPKillNine: the endpoint writes the history. It stops when its request
// is aborted, which is as soon as the node is dead.
func TestStockNodeHTTPKillNine(t *testing.T) {
	t.Parallel()
	random := randomly(t)
	r := newRig(t, 8)
	config := r.config(fmt.Sprintf("{http: %q}", r.endpoint()))
	// The history is the endpoint's, which does not die: no death explains a duplicate.
	r.killsInAStream(random, func() *process { return r.stock(config) }, history.Config{ShardConcurrency: 1, MaxDuplicates: -1, MaxUncaused: -1})
}

// TestHTTPSIGTERM: the requests in flight are answered before the worker exits.
func TestHTTPSIGTERM(t *testing.T) {
	t.Parallel()
	r := newRig(t, 8)
	s := settings{Handler: "http", URL: r.endpoint()}
	const rounds = 4
	feed := r.feed(realEvents(2000))
	for i := range rounds {
		feed.share(i+1, rounds)
		w := r.start(s)
		r.works(w)
		w.terminate(servesAgain + slack)
	}
	w := r.start(s)
	r.leased(w, 1)
	feed.finish()
	r.drained()
	w.terminate(patience)
	r.verdict(history.Config{ShardConcurrency: 1})
	r.noneFailed()
}

// endpoint serves batches in the test's own process.
func (r *rig) endpoint() (url string) {
	handler := history.Wrap(r.notes, lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
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
