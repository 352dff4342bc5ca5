package judge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Writer appends events to a history. Many goroutines may use it, and many processes may have the same file open.
type Writer struct {
	process string
	out     io.Writer // each Write is an atomic append
	close   func() error
	now     func() time.Duration
	last    atomic.Int64 // start of the latest call; no two calls of a process share a start
}

// Open opens or creates the history at path. The process is named by its pid.
func Open(path string) (*Writer, error) { return OpenAs(path, strconv.Itoa(os.Getpid())) }

// OpenAs opens a history as [Open] does, with a name for the process. Containers need a name because their pids repeat, and
// exec children are named "<node's process>/<own pid>". A name may come back after the death of its process was noted, but
// not the name of a child.
func OpenAs(path, process string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open history: %w", err)
	}
	return newWriter(file, file.Close, process, Now), nil
}

func newWriter(out io.Writer, close func() error, process string, now func() time.Duration) *Writer {
	return &Writer{process: process, out: out, close: close, now: now}
}

// Close closes the file. It may be called twice.
func (w *Writer) Close() error {
	if err := w.close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close history: %w", err)
	}
	return nil
}

// Start notes that a handler was entered with batch. The caller calls done once with the handler's answer, before it
// returns. A [lowkiq.Failed] fails the jobs that it names with an error, as on a node. If Start or done returns an error,
// the event may be missing. Then do not call the handler, or report a failure.
func (w *Writer) Start(batch *lowkiq.Batch) (done func(error) error, err error) {
	began := w.uniqueNow()
	var lines [][]byte
	ids := make([]string, len(batch.Jobs))
	for i, job := range batch.Jobs {
		ids[i] = job.ID
		lines = appendStart(lines, began, w.process, batch, job)
	}
	queue := batch.Shard.Queue
	return func(answer error) error { return w.writeEnd(began, queue, ids, answer) }, w.appendLines(lines)
}

// writeEnd appends the end of each id. After a lowkiq.Failed, ids that it does not have were successful.
func (w *Writer) writeEnd(began time.Duration, queue string, ids []string, answer error) error {
	now := max(w.now(), began)
	var failed lowkiq.Failed
	perID := errors.As(answer, &failed)
	lines := make([][]byte, len(ids))
	for i, id := range ids {
		err := answer
		if perID {
			err = failed[id]
		}
		lines[i] = endLine(now, w.process, began, queue, id, err)
	}
	return w.appendLines(lines)
}

// Death notes the death of a process. killed is [Now] just before the SIGKILL was sent, or 0 if the process died by itself.
// reaped is Now after wait returned.
func (w *Writer) Death(process string, killed, reaped time.Duration) error {
	if reaped < killed || killed < 0 {
		return fmt.Errorf("death of %s: killed at %d, reaped at %d: want 0 <= killed <= reaped", process, killed, reaped)
	}
	return w.appendLines([][]byte{deathLine(process, killed, reaped)})
}

// uniqueNow returns the time, moved by nanoseconds if another call has it already.
func (w *Writer) uniqueNow() time.Duration {
	for {
		last, now := w.last.Load(), int64(w.now())
		next := max(now, last+1)
		if w.last.CompareAndSwap(last, next) {
			return time.Duration(next)
		}
	}
}

// appendLines writes whole lines, a chunk per write.
func (w *Writer) appendLines(lines [][]byte) error {
	var b []byte
	for i, line := range lines {
		b = append(b, line...)
		if i+1 < len(lines) && len(b)+len(lines[i+1]) <= chunk {
			continue
		}
		if _, err := w.out.Write(b); err != nil {
			return fmt.Errorf("append to history: %w", err)
		}
		b = b[:0]
	}
	return nil
}

var errPanicked = errors.New("handler panicked")

// Wrap returns handler with its calls noted in w. If the start of a call cannot be written, the handler is not called. If
// the end cannot be written, the batch fails. A panic is noted as a failure and continues.
func Wrap(w *Writer, handler lowkiq.Handler) lowkiq.Handler {
	return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) (answer error) {
		done, err := w.Start(batch)
		if err != nil {
			return err
		}
		answer = errPanicked
		defer func() {
			if err := done(answer); err != nil {
				answer = err
			}
		}()
		answer = handler.Handle(ctx, batch)
		return answer
	})
}
