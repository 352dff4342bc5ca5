package dashboard

import (
	"fmt"
	"testing"
)

// Jobs that have failed are shown and counted as such once they are due, too.
func TestLateJobsAreFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	n, err := w.orders.RunNow(t.Context(), "f1", "f2")
	if n != 2 || err != nil {
		t.Fatalf("run now: got %d, %v, want 2", n, err)
	}
	for shown := false; !shown; {
		now, change := w.pages.sampler.look("orders")
		if f := now.queue("orders"); f != nil && f.Sum.Jobs.Retry == 0 {
			shown = true
			continue
		}
		select {
		case <-change:
		case <-t.Context().Done():
			t.Fatal("the figures never came")
		}
	}
	const link = `href="/queues/orders/jobs?state=%s"%s>%d</a>`
	expect(t, w.get("/"), 200, fmt.Sprintf(link, "failed", ` class="warn"`, 2))
	expect(t, w.get("/queues/orders"), 200, fmt.Sprintf(link, "failed", "", 2), fmt.Sprintf(link, "retry", "", 0))
	expect(t, w.get("/queues/orders/jobs?state=failed"), 200, ">f1</a>", ">f2</a>")
	expect(t, w.post("/confirm", "do", "kill-failed", "queue", "orders", "back", "/queues/orders"), 200, "Kill all failed: 2 jobs of queue orders?")
}
