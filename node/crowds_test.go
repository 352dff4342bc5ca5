package node

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestCrowdsDrain checks that a node handles many payloads of many ids in pieces and keeps its lease meanwhile. Its ttl is
// longer than the default, because machines may stand still. "make bench" uses as many payloads as the limits of ids allow,
// which is 36 ids with 10,000 payloads in each of four shards.
func TestCrowdsDrain(t *testing.T) {
	t.Parallel()
	ids, each := 8, 2500
	if os.Getenv("LOWKIQ_WORST") != "" {
		ids, each = 144, 10_000
	}
	url := redistest.Start(t).URL()
	client, err := protocol.Open(protocol.Config{Redis: url, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	q, err := client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i := range ids {
		jobs := make([]lowkiq.Push, each)
		for k := range jobs {
			jobs[k] = lowkiq.Push{ID: fmt.Sprint("id", i), Payload: fmt.Append(nil, k)}
		}
		if _, err := q.Push(t.Context(), jobs...); err != nil {
			t.Fatal(err)
		}
	}
	var handled, largest atomic.Int64
	n := start(t, Config{Redis: url, TTL: 15 * time.Second}, QueueConfig{Shards: 4}, func(_ context.Context, b *lowkiq.Batch) error {
		for _, job := range b.Jobs {
			handled.Add(int64(len(job.Payloads)))
			largest.Store(max(largest.Load(), int64(len(job.Payloads))))
		}
		return nil
	}).serving()
	instance := n.instance().name
	await(t, "all payloads handled", func() bool { return handled.Load() >= int64(ids*each) })
	if got := n.instance(); got == nil || got.name != instance {
		t.Errorf("the lease of %s was lost", instance)
	}
	if largest.Load() > 2000 {
		t.Errorf("got a job of %d payloads, want at most 2,000", largest.Load())
	}
	if handled.Load() != int64(ids*each) {
		t.Errorf("handled %d payloads, want each of %d once", handled.Load(), ids*each)
	}
}
