// Package logbuf keeps work from waiting for its log. Log lines go into a bounded buffer, and a
// goroutine passes them to the handler that writes them. A handler may block, for example because
// nobody reads the pipe that it writes to. Then lines that do not fit are dropped and counted, and
// nothing else is affected.
package logbuf

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"
)

// Bounds of a buffer. The last line may exceed maxBytes.
const (
	maxLines = 8192
	maxBytes = 4 << 20
)

// Lately is how long Dropped reports a dropped line as recent.
const Lately = 10 * time.Minute

// Logger returns a logger that never blocks. It writes the same lines as log, in order and a moment
// later. Errors are logged as they are at the call. Other values are formatted later, so they must not
// change. Loggers of the same handler share a buffer.
func Logger(log *slog.Logger) *slog.Logger {
	if _, ok := log.Handler().(*handler); ok {
		return log
	}
	return slog.New(&handler{log.Handler(), bufferOf(log.Handler())})
}

// Flush waits until all lines of a logger are written, but no longer than patience. After it has given up, later
// calls do not wait until another line is written.
func Flush(log *slog.Logger, patience time.Duration) {
	if h, ok := log.Handler().(*handler); ok {
		h.to.waitForFlush(patience)
	}
}

// Dropped returns how many lines were dropped or could not be written, of all loggers that share the buffer.
// lately reports whether this happened within Lately, or the log does not say so yet.
func Dropped(log *slog.Logger) (lines int64, lately bool) {
	h, ok := log.Handler().(*handler)
	if !ok {
		return 0, false
	}
	h.to.mu.Lock()
	defer h.to.mu.Unlock()
	return h.to.dropped, h.to.dropped > 0 && (h.to.untold > 0 || time.Since(h.to.last) < Lately)
}

// handler is a slog.Handler that puts records into a buffer.
type handler struct {
	next slog.Handler
	to   *buffer
}

// Enabled reports whether the handler behind the buffer takes lines of a level.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle puts a record into the buffer, or drops it.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	r = withErrorTexts(r)
	h.to.addLine(line{h.next, context.WithoutCancel(ctx), r, sizeOf(r)})
	return nil
}

// WithAttrs returns a handler of the same buffer that adds attributes.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(attrs), h.to}
}

// WithGroup returns a handler of the same buffer that opens a group.
func (h *handler) WithGroup(name string) slog.Handler { return &handler{h.next.WithGroup(name), h.to} }

// withErrorTexts returns a copy of a record with the texts of its errors in their place. An error may change after it was
// logged, and its size is not known.
func withErrorTexts(r slog.Record) slog.Record {
	all := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && a.Value.Kind() == slog.KindAny {
			a.Value = slog.StringValue(textOf(err))
		}
		all.AddAttrs(a)
		return true
	})
	return all
}

// textOf returns the text of an error, or how it panicked, as a nil pointer does.
func textOf(err error) (text string) {
	defer func() {
		if why := recover(); why != nil {
			text = fmt.Sprintf("!PANIC: %v", why)
		}
	}()
	return err.Error()
}

// otherSize is the size, in bytes, that a value counts with if it is no text.
const otherSize = 64

// sizeOf returns about how many bytes a record holds.
func sizeOf(r slog.Record) int {
	size := len(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		size += len(a.Key) + otherSize
		if a.Value.Kind() == slog.KindString {
			size += len(a.Value.String())
		}
		return true
	})
	return size
}

// line is a record on its way to its handler.
type line struct {
	next   slog.Handler
	ctx    context.Context
	record slog.Record
	size   int
}

// buffer holds lines until they are written. A goroutine writes them while there are lines.
type buffer struct {
	next slog.Handler // writes the buffer's own lines

	mu      sync.Mutex
	lines   []line    // oldest first; guarded by mu, as are the fields below
	bytes   int       // sum of the sizes of lines
	writing bool      // the goroutine runs
	dropped int64     // dropped lines since the start
	untold  int64     // dropped lines that the log does not mention yet
	last    time.Time // when the last line was dropped
	stuck   bool      // a flush has given up, and no line was written since
}

// shared holds the buffers by their handlers. They are never removed, because a program has few handlers.
var shared sync.Map

func bufferOf(next slog.Handler) *buffer {
	if !reflect.ValueOf(next).Comparable() {
		return &buffer{next: next}
	}
	b, _ := shared.LoadOrStore(next, &buffer{next: next})
	return b.(*buffer)
}

func (b *buffer) addLine(l line) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.lines) >= maxLines || b.bytes >= maxBytes {
		b.untold++
		b.dropOldest()
		return
	}
	b.reportDropped()
	b.pushLine(l)
	if !b.writing {
		b.writing = true
		go b.writeLoop()
	}
}

// push appends a line. mu is held.
func (b *buffer) pushLine(l line) {
	b.lines = append(b.lines, l)
	b.bytes += l.size
}

// drop counts a lost line. mu is held.
func (b *buffer) dropOldest() {
	b.dropped++
	b.last = time.Now()
}

// tell appends a line with the number of lines that were dropped at this place. mu is held.
func (b *buffer) reportDropped() {
	if b.untold == 0 {
		return
	}
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were dropped here because they came faster than they could be written", 0)
	r.AddAttrs(slog.Int64("lines", b.untold))
	b.untold = 0
	b.pushLine(line{b.next, context.Background(), r, sizeOf(r)})
}

// write passes lines to their handlers until none is left.
func (b *buffer) writeLoop() {
	for l, ok := b.takeOldest(); ok; l, ok = b.takeOldest() {
		b.lineWritten(l, l.next.Handle(l.ctx, l.record))
	}
}

// oldest returns the next line to write. It stays in the buffer until it is written. If there is no
// line, ok is false and the goroutine ends.
func (b *buffer) takeOldest() (l line, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.lines) == 0 {
		b.reportDropped()
	}
	if len(b.lines) == 0 {
		b.lines, b.writing = nil, false
		return line{}, false
	}
	return b.lines[0], true
}

// written removes the oldest line. An error means that the line is lost.
func (b *buffer) lineWritten(l line, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck = false
	if err != nil {
		b.dropOldest()
	}
	b.lines[0] = line{}
	b.lines, b.bytes = b.lines[1:], b.bytes-l.size
}

// flush polls, because the end of a process needs no speed. If several parts of a node flush at its end
// and the handler blocks, only the first of them waits.
func (b *buffer) waitForFlush(patience time.Duration) {
	for end := time.Now().Add(patience); b.isFlushing(!time.Now().Before(end)); {
		time.Sleep(time.Millisecond)
	}
}

// flushing reports whether a flush must continue to wait.
func (b *buffer) isFlushing(late bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck = b.writing && (b.stuck || late)
	return b.writing && !b.stuck
}
