package node

import (
	"context"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestFigures checks the exported figures of pushes, burials and running calls.
func TestFigures(t *testing.T) {
	t.Parallel()
	held, release := make(chan struct{}), make(chan struct{})
	run := start(t, Config{Redis: redistest.Start(t).URL(), Concurrency: 3, Version: "1.2.3"},
		QueueConfig{Shards: 1, Rules: rules.Rules{MaxRetryCount: -1, Exhausted: protocol.Bury}}, func(_ context.Context, b *lowkiq.Batch) error {
			close(held)
			<-release
			return context.DeadlineExceeded
		}).serving()
	want := func(name string, value float64, labels ...string) {
		t.Helper()
		got, series := 0.0, 0
		await(t, name, func() bool {
			got, series = scrape(t, run, name, labels...)
			return series == 1 && got == value
		})
	}
	want("lowkiq_slots_busy", 0)
	if _, err := run.Client().Push(t.Context(), "orders", lowkiq.Push{ID: "a", Payload: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	<-held
	want("lowkiq_jobs_pushed_total", 1, "orders")
	want("lowkiq_slots", 3)
	want("lowkiq_slots_busy", 1)
	want("lowkiq_build_info", 1, "1.2.3")
	close(release)
	want("lowkiq_jobs_buried_total", 1, "orders")
	want("lowkiq_slots_busy", 0)
}

// TestLateJobsAreExported checks that the exported figures tell whether due jobs have failed before, and count each job in a
// single state.
func TestLateJobsAreExported(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 1)
	p.push(lowkiq.Push{ID: "a"}, lowkiq.Push{ID: "b"}, lowkiq.Push{ID: "c"})
	claim, err := p.Shard(0).Claim(t.Context(), "n0/1", protocol.Fresh, protocol.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	popped, err := claim.Pop(t.Context(), protocol.PopRequest{IDs: 3, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range popped.Jobs {
		_, err := claim.Nack(t.Context(), protocol.Nack{Flight: popped.Flight, ID: job.ID, Kind: protocol.Retry, Error: "boom"})
		if err != nil {
			t.Fatal(err)
		}
	}
	p.push(lowkiq.Push{ID: "fresh"})
	_, err = claim.Release(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.client.Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	nodes := []*running{start(t, Config{Redis: url}, QueueConfig{Shards: 1}, nothing)}
	await(t, "4 jobs are ready", func() bool { return total(t, nodes, "lowkiq_queue_jobs", "orders", "ready") == 4 })
	if got := total(t, nodes, "lowkiq_queue_jobs_failed", "orders"); got != 3 {
		t.Errorf("got %v failed jobs, want 3", got)
	}
	if got := total(t, nodes, "lowkiq_queue_jobs", "orders"); got != 4 {
		t.Errorf("got %v jobs of all states, want 4", got)
	}
}

// TestDefaultRegistry checks that the node's own registry has the metrics of Go and of the process.
func TestDefaultRegistry(t *testing.T) {
	t.Parallel()
	cfg, err := Config{Redis: "redis://127.0.0.1:1"}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	families, err := cfg.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, family := range families {
		found[family.GetName()] = true
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if !found[name] {
			t.Errorf("no %s", name)
		}
	}
}
