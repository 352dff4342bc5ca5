package node

import (
	"context"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
)

// TestFigures: what a node pushes, buries and is busy with is exported.
func TestFigures(t *testing.T) {
	t.Parallel()
	held, release := make(chan struct{}), make(chan struct{})
	run := start(t, Config{Redis: redistest.Start(t).URL(), Concurrency: 3, Version: "1.2.3"},
		QueueConfig{Shards: 1, MaxRetryCount: -1, Exhausted: queue.Bury}, func(_ context.Context, b *lowkiq.Batch) error {
			close(held)
			<-release
			return context.DeadlineExceeded
		}).serving()
	m := &member{Node: run.Node}
	want := func(name string, value float64, labels ...string) {
		t.Helper()
		got, series := 0.0, 0
		await(t, name, func() bool {
			got, series = scrape(t, m, name, labels...)
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

// A registry of the node's own has what Go and the process tell of themselves.
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
