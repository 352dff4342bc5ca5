package node

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		found := true
		for _, word := range words {
			found = found && strings.Contains(line, word)
		}
		if found {
			return true
		}
	}
	return false
}

// TestFailuresAreLogged: a failed batch and a burial are warnings, a panic is an error with its stack.
func TestFailuresAreLogged(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	var log lines
	n, err := New(Config{Name: "n1", Redis: srv.URL(), TTL: calmTTL, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	err = n.Handle(QueueConfig{Name: "orders", Shards: 1, RetryIn: func(int) time.Duration { return time.Hour }}, lowkiq.HandlerFunc(func(_ context.Context, b *lowkiq.Batch) error {
		switch b.Jobs[0].ID {
		case "panics":
			panic("poison")
		case "dead":
			return lowkiq.Bury{Reason: "no such account"}
		}
		return errBoom
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	p.ids("fails", 1)
	p.push(lowkiq.Push{ID: "dead"}, lowkiq.Push{ID: "panics"})
	await(t, "three lines", func() bool {
		return log.has("level=WARN", `msg="batch failed"`, "id=fails0", "err=boom", "jobs=1 of=1") &&
			log.has("level=WARN", `msg="jobs buried"`, "id=dead", `err="no such account"`) &&
			log.has("level=ERROR", `msg="handler panicked"`, "panic=poison", "TestFailuresAreLogged")
	})
	cancel()
	if err := receive(t, "the end", ended); err != nil {
		t.Error(err)
	}
}

// TestFailureLog: one line of a queue and kind in a while, which counts those left out.
func TestFailureLog(t *testing.T) {
	t.Parallel()
	var l failureLog
	for i, c := range []struct {
		queue string
		kind  failureKind
		at    time.Duration
		left  int
		ok    bool
	}{
		{"a", "batch failed", 0, 0, true},
		{"a", "batch failed", failureEvery / 3, 0, false},
		{"a", "batch failed", failureEvery / 2, 0, false},
		{"a", "jobs buried", failureEvery / 2, 0, true},
		{"b", "batch failed", failureEvery / 2, 0, true},
		{"a", "batch failed", failureEvery, 2, true},
		{"a", "batch failed", 2 * failureEvery, 0, true},
	} {
		if left, ok := l.may(c.queue, c.kind, c.at); left != c.left || ok != c.ok {
			t.Errorf("%d: got %d, %v; want %d, %v", i, left, ok, c.left, c.ok)
		}
	}
}

// TestOutageLog: an outage has a line in a longer while, and is over once nothing has failed for some time.
func TestOutageLog(t *testing.T) {
	t.Parallel()
	var l failureLog
	may := func(at time.Duration, left int, ok bool) {
		t.Helper()
		if l, o := l.may("", redisAway, at); l != left || o != ok {
			t.Errorf("at %s: got %d, %v; want %d, %v", at, l, o, left, ok)
		}
	}
	over := func(at time.Duration, left int, ok bool) {
		t.Helper()
		if l, o := l.over("", redisAway, at, outageCalm); l != left || o != ok {
			t.Errorf("at %s: over: got %d, %v; want %d, %v", at, l, o, left, ok)
		}
	}
	over(0, 0, false)
	may(0, 0, true)
	may(outageEvery-1, 0, false)
	over(outageEvery, 0, false) // one operation fails, another does not
	may(outageEvery, 1, true)
	may(outageEvery+1, 0, false)
	over(outageEvery+outageCalm, 0, false)
	over(outageEvery+1+outageCalm, 1, true)
	over(2*outageEvery, 0, false)
	may(2*outageEvery, 0, true)
}
