package logbuf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// gated is a handler that writes only while its gate is open.
type gated struct {
	slog.Handler
	gate *sync.RWMutex
}

func (g *gated) Handle(ctx context.Context, r slog.Record) error {
	g.gate.RLock()
	defer g.gate.RUnlock()
	return g.Handler.Handle(ctx, r)
}

func (g *gated) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &gated{g.Handler.WithAttrs(attrs), g.gate}
}

// noTime leaves the time out of a text.
func noTime(groups []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

func newGated(out *bytes.Buffer) (*slog.Logger, *sync.RWMutex) {
	g := &gated{slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: noTime}), new(sync.RWMutex)}
	return Logger(slog.New(g)), g.gate
}

// Lines come out as they went in, with their attributes.
func TestOrder(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, _ := newGated(&out)
	log.With("node", "n1").Info("a", "k", 1)
	for i := range 100 {
		log.Warn("b", "i", i)
	}
	Flush(log, time.Minute)
	want := "level=INFO msg=a node=n1 k=1\n"
	for i := range 100 {
		want += fmt.Sprintf("level=WARN msg=b i=%d\n", i)
	}
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if n, lately := Dropped(log); n != 0 || lately {
		t.Errorf("dropped: got %d, %v, want none", n, lately)
	}
}

// With a handler that blocks nobody waits; what does not fit is dropped, counted, and said where it
// is missing.
func TestBlocked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		text  string
		holds int
	}{{"short lines", "x", maxLines}, {"long lines", strings.Repeat("x", maxBytes/4), 5}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			log, gate := newGated(&out)
			gate.Lock()
			for range c.holds + 3 {
				log.Info("line", "text", c.text)
			}
			Flush(log, time.Millisecond) // it gives up
			Flush(log, time.Hour)        // for good
			n, lately := Dropped(log)
			if n < 3 || n > 4 || !lately { // the text is a bit more than its value
				t.Errorf("dropped: got %d, %v, want 3 of late", n, lately)
			}
			gate.Unlock()
			for !idle(log) {
				time.Sleep(time.Millisecond)
			}
			log.Info("after")
			Flush(log, time.Minute)
			want := fmt.Sprintf("level=WARN msg=\"log lines were dropped here because they came faster than they could be "+
				"written\" lines=%d\nlevel=INFO msg=after\n", n)
			if !strings.HasSuffix(out.String(), want) || strings.Count(out.String(), "msg=line ") != c.holds+3-int(n) {
				t.Errorf("got %d lines that end with %q", strings.Count(out.String(), "\n"), out.String()[max(0, out.Len()-300):])
			}
		})
	}
}

// idle reports whether all lines are written.
func idle(log *slog.Logger) bool {
	b := log.Handler().(*handler).to
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.writing
}

// broken is a handler whose pipe is closed.
type broken struct{ slog.Handler }

func (broken) Handle(context.Context, slog.Record) error { return errors.New("broken pipe") }

// A line that cannot be written is dropped as well, and no news for ever.
func TestUnwritable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := Logger(slog.New(&broken{slog.Default().Handler()}))
		log.Info("a")
		log.Info("b")
		Flush(log, time.Minute)
		if n, lately := Dropped(log); n != 2 || !lately {
			t.Errorf("got %d, %v, want 2 of late", n, lately)
		}
		time.Sleep(Lately)
		if n, lately := Dropped(log); n != 2 || lately {
			t.Errorf("%s later: got %d, %v, want 2 and no news", Lately, n, lately)
		}
	})
}

// Loggers of one handler share a buffer, and a logger that has one gets no second.
func TestShared(t *testing.T) {
	t.Parallel()
	log := slog.New(&broken{slog.Default().Handler()})
	one, other := Logger(log), Logger(log)
	one.Info("a")
	other.Info("b")
	Flush(Logger(one), time.Minute)
	if n, _ := Dropped(other); n != 2 {
		t.Errorf("got %d lines, want 2", n)
	}
	if n, lately := Dropped(log); n != 0 || lately {
		t.Errorf("a logger without a buffer: got %d, %v, want none", n, lately)
	}
}

// mutable is an error whose text changes.
type mutable struct{ text string }

func (m *mutable) Error() string { return m.text }

// An error is logged as it was when it was logged, and counts with its length; a nil pointer to an error does no harm.
func TestErrorsAreTextAtOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, gate := newGated(&out)
	gate.Lock()
	err := &mutable{"before"}
	log.Info("a", "err", err, "none", (*mutable)(nil))
	err.text = "after"
	for range maxBytes/(64<<10) + 10 {
		log.Info("b", "err", &mutable{strings.Repeat("x", 64<<10)})
	}
	if dropped, _ := Dropped(log); dropped == 0 {
		t.Error("no line was dropped of errors that are larger than the buffer")
	}
	gate.Unlock()
	Flush(log, time.Minute)
	if line, _, _ := strings.Cut(out.String(), "\n"); !strings.Contains(line, "err=before") || !strings.Contains(line, "PANIC") {
		t.Errorf("got %q, want the first text of the error", line)
	}
}
