//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// TestStockNodeCounts keeps a counter in the state of its id while nodes are killed. The handler is a child that knows
// only the JSON of the count. The counter is exact, and each call gets the count that it has made.
func TestStockNodeCounts(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: python3 is not on PATH, so examples/python/counter.py was NOT run; install python3 to run it")
	}
	counter, err := filepath.Abs("../examples/python/counter.py")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, 4)
	config := r.config(fmt.Sprintf("{exec: [%q, %q], processes: 3}\n    batch_size: 3\n    state: 720h", python, counter))
	w := r.stock(config)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	const ids, calls, kills = 7, 150, 2
	var made atomic.Int32
	var callers sync.WaitGroup
	for i := range ids {
		id := "page-" + strconv.Itoa(i)
		if i == 0 {
			id = "page-\xff"
		}
		callers.Go(func() {
			for n := range calls {
				got, err := r.client.Call(ctx, queueName, lowkiq.Push{ID: id, Payload: []byte(`{"visitor": 1}`)})
				if err != nil || got.State != lowkiq.ReplyDone || string(got.Result) != strconv.Itoa(n+1) {
					t.Errorf("%q, call %d: got %s %q, %v, want the count", id, n+1, got.State, got.Result, err)
					return
				}
				made.Add(1)
			}
		})
	}
	for i := range kills {
		r.await("calls are answered", patience, func() bool { return t.Failed() || int(made.Load()) >= (i+1)*ids*calls/(kills+1) })
		r.kill(w)
		w = r.stock(config)
	}
	callers.Wait()
	// The state is deleted, and the next count begins anew.
	for _, c := range []struct{ payload, want string }{{`"reset"`, "0"}, {`1`, "1"}} {
		got, err := r.client.Call(ctx, queueName, lowkiq.Push{ID: "page-1", Payload: []byte(c.payload)})
		if err != nil || string(got.Result) != c.want {
			t.Errorf("%s: got %q, %v, want %s", c.payload, got.Result, err, c.want)
		}
	}
	w.terminate(patience)
	r.noneFailed()
}
