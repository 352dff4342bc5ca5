package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/queue"
)

// notes takes what a handler says of its jobs while it works. Those about an id that come within a
// second are sent as one, at the end of the second; one with a state at once. A call without notes
// costs it nothing.
type notes struct {
	r    *Runner
	turn *turn
	used atomic.Bool // there are notes of the call

	mu     sync.Mutex // guards the fields below
	flight int64
	heard  time.Time              // when the last one came, or the call began; see watch
	sent   map[string]time.Time   // by id: when the last note was sent; nil between calls, and without notes
	later  map[string]lowkiq.Note // what is to be sent
	timer  *time.Timer            // for later; nil: none runs
}

// noteEvery is how often notes about an id are sent.
const noteEvery = time.Second

// end drops what was not sent, and says of which ids there are notes, and what logs of them were not sent.
func (n *notes) end() (sent map[string]time.Time, logs map[string]string) {
	if !n.used.Swap(false) {
		return nil, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, note := range n.later {
		if note.Log != "" {
			if logs == nil {
				logs = map[string]string{}
			}
			logs[id] = note.Log
		}
	}
	sent, n.sent, n.later = n.sent, nil, nil
	if n.timer != nil {
		n.timer.Stop()
		n.timer = nil
	}
	return sent, logs
}

// watch ends a call when nothing is noted of its jobs for so long. stop ends the watch.
func (n *notes) watch(after time.Duration, cancel context.CancelCauseFunc) (stop func()) {
	w := &silenceWatch{n: n, after: after, cancel: cancel}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = time.Now()
	w.timer = time.AfterFunc(after, w.ring)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		w.over = true
		w.timer.Stop()
	}
}

// silenceWatch waits until nothing was noted for too long. The notes' mu guards it.
type silenceWatch struct {
	n      *notes
	after  time.Duration
	cancel context.CancelCauseFunc
	timer  *time.Timer
	over   bool // the call has returned
}

// ring is the timer's. What an endpoint notes goes to any node, so Redis is asked before the call ends.
func (w *silenceWatch) ring() {
	n := w.n
	if n.silent() >= w.after {
		last, err := n.r.claim.LastNote(n.r.process.IO, n.ids()...)
		ago := n.r.process.RedisTime(n.r.process.Now()).Sub(last)
		n.mu.Lock()
		switch {
		case err != nil && !Refused(err): // what ends a call is the loss of its lease, unless Redis answers
			n.heard = time.Now().Add(noteEvery - w.after)
		case err == nil:
			n.heard = later(n.heard, time.Now().Add(-ago))
		}
		n.mu.Unlock()
	}
	silent := n.silent()
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case w.over:
	case silent < w.after:
		w.timer.Reset(w.after - silent)
	default:
		w.cancel(lowkiq.ErrStuck)
	}
}

func later(x, y time.Time) time.Time {
	if y.After(x) {
		return y
	}
	return x
}

// silent is for how long nothing was heard.
func (n *notes) silent() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Since(n.heard)
}

// ids are those of the batch at hand.
func (n *notes) ids() []string {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	return slices.Clone(n.turn.ids)
}

// has reports whether an id is in the batch at hand.
func (n *notes) has(id string) bool {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	return slices.Contains(n.turn.ids, id)
}

// TakeNote is [lowkiq.Batch.Note]. A goroutine that a handler has left behind may come too late: Redis
// knows whether the id is in that flight.
func (n *notes) TakeNote(ctx context.Context, batch *lowkiq.Batch, id string, note lowkiq.Note) error {
	if err := n.r.queue.rules().Keepable(&note); err != nil {
		return fmt.Errorf("job %q: %w", id, err)
	}
	if !n.has(id) {
		return fmt.Errorf("job %q is not in the batch: %w", id, lowkiq.ErrNote)
	}
	n.used.Store(true)
	n.mu.Lock()
	n.flight = batch.Flight
	now := time.Now()
	n.heard = now
	if n.sent == nil {
		n.sent, n.later = map[string]time.Time{}, map[string]lowkiq.Note{}
	}
	last, before := n.sent[id]
	if note.Progress == 0 {
		note.Progress = n.later[id].Progress
	}
	note.Log = journal.JoinLog(n.later[id].Log, note.Log)
	if in := noteEvery - now.Sub(last); before && in > 0 && note.State == nil {
		n.later[id] = note
		if n.timer == nil {
			n.timer = time.AfterFunc(in, n.sendLater)
		}
		n.mu.Unlock()
		return nil
	}
	delete(n.later, id)
	n.sent[id] = now
	n.mu.Unlock()
	// A handler that is told to stop must not be held up by a Redis that does not answer (I1): its request goes on alone.
	sent := make(chan error, 1)
	go func() { sent <- n.send(ctx, queue.Note{Flight: batch.Flight, ID: id, Note: note}) }()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return fmt.Errorf("job %q: %w: its note may be lost", id, context.Cause(ctx))
	}
}

// sendLater is the timer's.
func (n *notes) sendLater() {
	n.mu.Lock()
	n.timer = nil
	var due []queue.Note
	for id, note := range n.later {
		n.sent[id] = time.Now()
		due = append(due, queue.Note{Flight: n.flight, ID: id, Note: note})
	}
	clear(n.later)
	n.mu.Unlock()
	for _, note := range due {
		if n.send(n.r.process.IO, note) != nil {
			return
		}
	}
}

func (n *notes) send(ctx context.Context, note queue.Note) error {
	err := n.r.claim.Note(ctx, note)
	if errors.Is(err, lowkiq.ErrFenced) {
		n.r.lose("note", err)
		return fmt.Errorf("job %q: %w: %w", note.ID, lowkiq.ErrEnded, err)
	}
	return err
}
