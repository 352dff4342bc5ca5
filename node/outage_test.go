package node

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/redistest"
)

// TestOutageIsLoggedOnce: of a Redis that is out of reach there is one warning in a while, whoever
// notices it, and a line once it is back.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var log lines
	n := startMember(t, Config{Redis: srv.URL(), TTL: shortTTL, Log: slog.New(slog.NewTextHandler(&log, nil))}, 4).serving()
	before := strings.Count(log.String(), "level=WARN")
	srv.Stop()
	began := time.Now()
	await(t, "the lease is lost", func() bool { return log.has(`msg="lease lost"`) })
	await(t, "attempts at another one", func() bool {
		n.outages.mu.Lock()
		defer n.outages.mu.Unlock()
		return n.outages.last.left > 10
	})
	warnings, lasted := strings.Count(log.String(), "level=WARN")-before, time.Since(began)
	srv.Restart()
	await(t, "a line that it is back", func() bool { return log.has("level=INFO", `msg="redis is in reach again"`, "left_out=") })
	// That it is out of reach, and that the lease is lost.
	if most := 2 + int(lasted/outageEvery); warnings > most || !log.has("level=WARN", `msg="redis is out of reach"`) {
		t.Errorf("got %d warnings in %s, want %d at most:\n%s", warnings, lasted, most, log.String())
	}
}
