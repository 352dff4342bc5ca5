package node

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// blocking is a program's slog.Handler that stands still.
type blocking struct{ release chan struct{} }

func (*blocking) Enabled(context.Context, slog.Level) bool { return true }

func (b *blocking) Handle(context.Context, slog.Record) error { <-b.release; return nil }

func (b *blocking) WithAttrs([]slog.Attr) slog.Handler { return b }

func (b *blocking) WithGroup(string) slog.Handler { return b }

// TestBlockingLog checks that a program's slog.Handler that blocks stops nothing. Dropped lines are counted, and the status of
// all nodes shows it.
func TestBlockingLog(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	log := &blocking{make(chan struct{})}
	defer close(log.release)
	done := make(chan string, 100)
	run := start(t, Config{Redis: srv.URL(), Log: slog.New(log)}, QueueConfig{Shards: 2}, func(_ context.Context, b *lowkiq.Batch) error {
		done <- b.Jobs[0].ID
		return nil
	}).serving()
	for range 10_000 {
		run.log.Info("a line")
	}
	for i := range 10 {
		p.push(lowkiq.Push{ID: fmt.Sprint(i)})
		receive(t, "a job", done)
	}
	if dropped, _ := scrape(t, run, "lowkiq_log_dropped_lines_total"); dropped < 1000 {
		t.Errorf("got %v dropped lines, want those that did not fit", dropped)
	}
	run.renew()
	known, err := run.Cluster().Status(t.Context())
	if err != nil || !strings.Contains(strings.Join(known.Warnings, "\n"), "node n1 has dropped ") {
		t.Errorf("got warnings %q, %v, want the dropped lines", known.Warnings, err)
	}
	run.stop()
}
