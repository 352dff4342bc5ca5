package node

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
)

// What a node exports says of jobs that are due whether they have failed before, and counts each in one state.
func TestLateJobsAreExported(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 1)
	p.push(lowkiq.Push{ID: "a"}, lowkiq.Push{ID: "b"}, lowkiq.Push{ID: "c"})
	claim, err := p.Shard(0).Claim(t.Context(), "n0/1", queue.Fresh, queue.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	popped, err := claim.Pop(t.Context(), queue.PopRequest{IDs: 3, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range popped.Jobs {
		_, err := claim.Nack(t.Context(), queue.Nack{Flight: popped.Flight, ID: job.ID, Kind: queue.Retry, Error: "boom"})
		if err != nil {
			t.Fatal(err)
		}
	}
	p.push(lowkiq.Push{ID: "fresh"})
	_, err = claim.Release(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.client.Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	nodes := []*member{startMemberWith(t, Config{Name: "n1", Redis: url, TTL: 6 * time.Second}, 1)}
	await(t, "4 jobs are ready", func() bool { return total(t, nodes, "lowkiq_queue_jobs", "orders", "ready") == 4 })
	if got := total(t, nodes, "lowkiq_queue_jobs_failed", "orders"); got != 3 {
		t.Errorf("got %v failed jobs, want 3", got)
	}
	if got := total(t, nodes, "lowkiq_queue_jobs", "orders"); got != 4 {
		t.Errorf("got %v jobs of all states, want 4", got)
	}
}
