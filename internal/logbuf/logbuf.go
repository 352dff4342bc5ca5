// Package logbuf keeps work from waiting for its log. What is logged goes into a bounded buffer,
// from which a goroutine hands it to the handler that writes it. A handler that blocks, as one does
// that writes to a pipe which nobody reads, costs lines and nothing else: those that do not fit are
// dropped and counted.
package logbuf

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"
)

// What a buffer holds at most: so many lines, and so many bytes of text but for the last line.
const (
	maxLines = 8192
	maxBytes = 4 << 20
)

// Lately is for how long dropped lines are news.
const Lately = 10 * time.Minute

// Logger returns a logger that never blocks: it writes what log does, a moment later and in order.
// Values are written as they are then, so they must not change once they are logged. Loggers of one
// handler share a buffer.
func Logger(log *slog.Logger) *slog.Logger {
	if _, ok := log.Handler().(*handler); ok {
		return log
	}
	return slog.New(&handler{log.Handler(), bufferOf(log.Handler())})
}

// Flush waits until all lines of a logger are written, for so long at most. It does not wait once more while no
// line is written after it gave up.
func Flush(log *slog.Logger, patience time.Duration) {
	if h, ok := log.Handler().(*handler); ok {
		h.to.flush(patience)
	}
}

// Dropped is how many lines of a logger, and of those that share its buffer, were dropped or could not be
// written. lately reports whether some were of late, or wait to be told.
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

// Enabled reports whether the handler behind the buffer wants lines of a level.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle puts a record into the buffer, or drops it.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	h.to.add(line{h.next, context.WithoutCancel(ctx), r.Clone(), sizeOf(r)})
	return nil
}

// WithAttrs returns a handler of the same buffer that adds attributes.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(attrs), h.to}
}

// WithGroup returns a handler of the same buffer that opens a group.
func (h *handler) WithGroup(name string) slog.Handler { return &handler{h.next.WithGroup(name), h.to} }

// sizeOf is about how many bytes of text a record holds.
func sizeOf(r slog.Record) int {
	size := len(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		size += len(a.Key)
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

// buffer holds the lines that are not written yet. A goroutine writes them while there are any.
type buffer struct {
	next slog.Handler // of what the buffer has to say

	mu      sync.Mutex
	lines   []line    // oldest first; guarded by mu, as is all that follows
	bytes   int       // of their text
	writing bool      // the goroutine runs
	dropped int64     // ever
	untold  int64     // dropped since a line last said so
	last    time.Time // when a line was dropped last
	stuck   bool      // a flush has given up, and no line was written since
}

// shared are the buffers by their handlers. They stay: a program has few handlers.
var shared sync.Map

func bufferOf(next slog.Handler) *buffer {
	if !reflect.ValueOf(next).Comparable() {
		return &buffer{next: next}
	}
	b, _ := shared.LoadOrStore(next, &buffer{next: next})
	return b.(*buffer)
}

func (b *buffer) add(l line) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.lines) >= maxLines || b.bytes >= maxBytes {
		b.untold++
		b.drop()
		return
	}
	b.tell()
	b.push(l)
	if !b.writing {
		b.writing = true
		go b.write()
	}
}

// push appends a line. mu is held.
func (b *buffer) push(l line) {
	b.lines = append(b.lines, l)
	b.bytes += l.size
}

// drop counts a line that is lost. mu is held.
func (b *buffer) drop() {
	b.dropped++
	b.last = time.Now()
}

// tell appends a line that says how many were dropped at this place, if some were. mu is held.
func (b *buffer) tell() {
	if b.untold == 0 {
		return
	}
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "lines of the log were dropped here: they came faster than they were written", 0)
	r.AddAttrs(slog.Int64("lines", b.untold))
	b.untold = 0
	b.push(line{b.next, context.Background(), r, sizeOf(r)})
}

// write hands lines to their handlers until none is left.
func (b *buffer) write() {
	for l, ok := b.oldest(); ok; l, ok = b.oldest() {
		b.written(l, l.next.Handle(l.ctx, l.record))
	}
}

// oldest is the line to write next. It stays in the buffer until it is written. ok is false if there
// is none: the goroutine ends.
func (b *buffer) oldest() (l line, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.lines) == 0 {
		b.tell()
	}
	if len(b.lines) == 0 {
		b.lines, b.writing = nil, false
		return line{}, false
	}
	return b.lines[0], true
}

// written takes out the oldest line; an error says that it is lost.
func (b *buffer) written(l line, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck = false
	if err != nil {
		b.drop()
	}
	b.lines[0] = line{}
	b.lines, b.bytes = b.lines[1:], b.bytes-l.size
}

// flush looks again and again: who waits for the end of a process needs no speed. Of several that
// flush, as the parts of a node do at its end, one waits for a handler that blocks.
func (b *buffer) flush(patience time.Duration) {
	for end := time.Now().Add(patience); b.flushing(!time.Now().Before(end)); {
		time.Sleep(time.Millisecond)
	}
}

// flushing reports whether a flush is to wait on.
func (b *buffer) flushing(late bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck = b.writing && (b.stuck || late)
	return b.writing && !b.stuck
}
