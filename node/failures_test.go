package node

import (
	"bytes"
	"context"
	"fmt"
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

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) has(words ...string) bool {
	for line := range strings.Lines(l.String()) {
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

// TestFailuresAreLogged: a failed batch and a burial are warnings, a panic is an error with its
// stack.
func TestFailuresAreLogged(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	var log lines
	start(t, Config{Redis: srv.URL(), Log: slog.New(slog.NewTextHandler(&log, nil))}, QueueConfig{Shards: 1}, func(_ context.Context, b *lowkiq.Batch) error {
		switch b.Jobs[0].ID {
		case "panics":
			panic("poison")
		case "dead":
			return lowkiq.Bury{Reason: "no such account"}
		}
		return errBoom
	})
	p.ids("fails", 1)
	p.push(lowkiq.Push{ID: "dead"}, lowkiq.Push{ID: "panics"})
	await(t, "three lines", func() bool {
		return log.has("level=WARN", `msg="batch failed"`, "id=fails0", "err=boom", "jobs=1 of=1") &&
			log.has("level=WARN", `msg="jobs buried"`, "id=dead", `err="no such account"`) &&
			log.has("level=ERROR", `msg="handler panicked"`, "panic=poison", "TestFailuresAreLogged")
	})
}

// TestFailure: one line in a while, which counts those left out; it is over once nothing has failed
// for some time.
func TestFailure(t *testing.T) {
	t.Parallel()
	const every, calm = 30 * time.Second, 2 * time.Second
	var f failure
	may := func(at time.Duration, left int, ok bool) {
		t.Helper()
		if l, o := f.may(time.Hour+at, every); l != left || o != ok {
			t.Errorf("at %s: got %d, %v; want %d, %v", at, l, o, left, ok)
		}
	}
	over := func(at time.Duration, left int, ok bool) {
		t.Helper()
		if l, o := f.over(time.Hour+at, calm); l != left || o != ok {
			t.Errorf("at %s: over: got %d, %v; want %d, %v", at, l, o, left, ok)
		}
	}
	over(0, 0, false)
	may(0, 0, true)
	may(every/2, 0, false)
	may(every-1, 0, false)
	over(every, 0, false) // one operation fails, another does not
	may(every, 2, true)
	may(every+1, 0, false)
	over(every+calm, 0, false)
	over(every+1+calm, 1, true)
	over(2*every, 0, false)
	may(2*every, 0, true)
	may(3*every, 0, true)
}

// TestFailureLog: each failure has its lines, and those of long ago are forgotten.
func TestFailureLog(t *testing.T) {
	t.Parallel()
	var l failureLog
	for i, c := range []struct {
		what string
		ok   bool
	}{{"a", true}, {"a", false}, {"b", true}, {"b", false}, {"a", false}} {
		if _, ok := l.may(c.what); ok != c.ok {
			t.Errorf("%d: got %v, want %v", i, ok, c.ok)
		}
	}
	for i := range failureLines {
		l.may(fmt.Sprint(i))
	}
	for _, f := range l.of {
		f.seen -= time.Hour
	}
	if l.may("another"); len(l.of) != 1 {
		t.Errorf("%d failures are known, want one", len(l.of))
	}
}
