package node

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
)

// TestOutageIsLoggedOnce: of a Redis that is out of reach there is one warning in a while, whoever notices it,
// and a line once it is back.
func TestOutageIsLoggedOnce(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	srv := redistest.Start(t)
	var log lines
	n, err := New(Config{Name: "n1", Redis: srv.URL(), TTL: 6 * time.Second, Bind: "127.0.0.1:0", Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Handle(QueueConfig{Name: "orders", Shards: 4}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil })); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	(&running{Node: n, t: t}).serving()
	before := log.count("level=WARN")
	srv.Stop()
	began := time.Now()
	await(t, "the lease is lost", func() bool { return log.has(`msg="lease lost"`) })
	await(t, "attempts at another one", func() bool { return n.outages.leftOut(redisAway) > 10 })
	warnings, lasted := log.count("level=WARN")-before, time.Since(began)
	srv.Restart()
	await(t, "a line that it is back", func() bool { return log.has("level=INFO", `msg="redis is in reach again"`, "left_out=") })
	cancel()
	if err := receive(t, "the end", ended); err != nil {
		t.Error(err)
	}
	// That it is out of reach, and that the lease is lost.
	if most := 2 + int(lasted/outageEvery); warnings > most || !log.has("level=WARN", `msg="redis is out of reach"`) {
		t.Errorf("got %d warnings in %s, want %d at most:\n%s", warnings, lasted, most, log.text.String())
	}
}

// leftOut is how many were not logged since the last line.
func (l *failureLog) leftOut(kind failureKind) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[failureKey{"", kind}].left
}

// count counts the lines that have a word.
func (l *lines) count(word string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), word)
}
