package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/lowkiq/lowkiq/internal/process/memory"
)

// Without Redis a page says so, in its usual surroundings.
func TestPagesWithoutRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	expect(t, w.get("/"), 200, "orders")
	w.redis.Kill()
	for _, target := range []string{"/queues/orders", "/queues/orders/jobs", "/queues/orders/errors", "/queues/orders/job?id=f1", "/redis"} {
		expect(t, w.get(target), 503, "Redis cannot be reached", "Jobs are safe where they are", `aria-label="Search all queues"`)
	}
	expect(t, w.post("/confirm", "do", "run-all", "queue", "orders"), 503, "Redis cannot be reached")
	expect(t, w.post("/do", "do", "run-all", "queue", "orders"), 200, "It did not go through", "0 jobs made due now")
	for {
		now, change := w.pages.sampler.registerWatcher("")
		if now.Err != nil {
			break
		}
		select {
		case <-change:
		case <-t.Context().Done():
			t.Fatal("the sampler never noticed")
		}
	}
	for _, target := range []string{"/", "/shards", "/nodes", "/plan"} {
		expect(t, w.get(target), 200, "Figures are not being read", `role="alert"><b>`)
	}
}

// A page for which the node has no memory now does not say that Redis is away.
func TestBusyIsNotAway(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("read the rules: %w", memory.ErrBusy)
	if isRedisAway(err) {
		t.Error("Redis counts as away")
	}
	v := new(Dashboard).errorView(httptest.NewRequest(http.MethodGet, "/recurring", nil), err)
	if v.Title != "The node is busy" || v.Status != http.StatusServiceUnavailable {
		t.Errorf("got %q with %d, want that the node is busy", v.Title, v.Status)
	}
}
