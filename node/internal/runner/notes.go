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
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// notes sends the notes of a handler call to Redis. The first note about an id is sent at once. Later notes are joined, and
// sent once per noteInterval. A note with a state is always sent at once, because the handler relies on it. A call
// without notes does not use this type at all.
//
//	note --> first of the id, or with a state: sent at once, and the handler waits
//	     --> otherwise: joined in later --> the timer sends it
//	                                    '-> the call ends first: its log goes into the journal's line
type notes struct {
	r    *Runner
	lane *lane
	used atomic.Bool // the call has notes

	mu       sync.Mutex // guards the fields below
	flight   int64
	lastNote time.Time              // time of the last note, or of the beginning of the call; see watchSilence
	sent     map[string]time.Time   // by id: time when a note was sent; nil between calls, and without notes
	later    map[string]lowkiq.Note // by id: the note that the timer will send
	timer    *time.Timer            // sends later; nil if it does not run
}

// noteInterval is the time between two joined notes about an id.
const noteInterval = time.Second

// endCall drops notes that were not sent. It returns the ids with sent notes, and the log lines of the dropped notes by id.
func (n *notes) endCall() (sent map[string]time.Time, logs map[string]string) {
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

// watchSilence cancels a call without a note for the given time. stop ends the watch.
func (n *notes) watchSilence(after time.Duration, cancel context.CancelCauseFunc) (stop func()) {
	w := &silenceWatch{n: n, after: after, cancel: cancel}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lastNote = time.Now()
	w.timer = time.AfterFunc(after, w.checkSilence)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		w.over = true
		w.timer.Stop()
	}
}

// silenceWatch waits until a call has had no note for too long. The mutex of notes guards it.
type silenceWatch struct {
	n      *notes
	after  time.Duration
	cancel context.CancelCauseFunc
	timer  *time.Timer
	over   bool // the call has returned
}

// checkSilence runs when the timer ends. It asks Redis before it cancels the call, because an endpoint may send its notes to
// any node. If Redis does not answer, the call goes on. The loss of the lease ends it if Redis stays silent.
func (w *silenceWatch) checkSilence() {
	n := w.n
	if n.silentFor() >= w.after {
		last, err := n.r.claim.LastNote(n.r.process.IO, n.batchIDs()...)
		ago := n.r.process.RedisTime(n.r.process.Now()).Sub(last)
		n.mu.Lock()
		switch {
		case err != nil && !IsRefusal(err):
			n.lastNote = time.Now().Add(noteInterval - w.after)
		case err == nil:
			n.lastNote = laterOf(n.lastNote, time.Now().Add(-ago))
		}
		n.mu.Unlock()
	}
	silent := n.silentFor()
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

// laterOf returns the later of two times.
func laterOf(x, y time.Time) time.Time {
	if y.After(x) {
		return y
	}
	return x
}

// silentFor returns the time since the last note.
func (n *notes) silentFor() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Since(n.lastNote)
}

// batchIDs returns the ids of the lane's batch.
func (n *notes) batchIDs() []string {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	return slices.Clone(n.lane.ids)
}

// hasID reports whether an id is in the lane's batch.
func (n *notes) hasID(id string) bool {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	return slices.Contains(n.lane.ids, id)
}

// TakeNote implements [lowkiq.Batch.Note]. It may be called late, by a goroutine that a handler has left behind. Redis
// refuses a note if the id is no longer in that flight.
func (n *notes) TakeNote(ctx context.Context, batch *lowkiq.Batch, id string, note lowkiq.Note) error {
	if err := n.r.queue.rules().verdictRules().EncodeNote(&note); err != nil {
		return fmt.Errorf("job %q: %w", id, err)
	}
	if !n.hasID(id) {
		return fmt.Errorf("job %q is not in the batch: %w", id, lowkiq.ErrNote)
	}
	n.used.Store(true)
	n.mu.Lock()
	n.flight = batch.Flight
	now := time.Now()
	n.lastNote = now
	if n.sent == nil {
		n.sent, n.later = map[string]time.Time{}, map[string]lowkiq.Note{}
	}
	last, before := n.sent[id]
	if note.Progress == 0 {
		note.Progress = n.later[id].Progress
	}
	note.Log = journal.JoinLog(n.later[id].Log, note.Log)
	if in := noteInterval - now.Sub(last); before && in > 0 && note.State == nil {
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
	// A handler that must stop does not wait for a Redis that does not answer (I1). The request continues without it.
	sent := make(chan error, 1)
	go func() { sent <- n.sendNote(ctx, protocol.Note{Flight: batch.Flight, ID: id, Note: note}) }()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return fmt.Errorf("job %q: %w; its note may be lost", id, context.Cause(ctx))
	}
}

// sendLater runs when the timer ends. It sends the joined notes.
func (n *notes) sendLater() {
	n.mu.Lock()
	n.timer = nil
	var due []protocol.Note
	for id, note := range n.later {
		n.sent[id] = time.Now()
		due = append(due, protocol.Note{Flight: n.flight, ID: id, Note: note})
	}
	clear(n.later)
	n.mu.Unlock()
	for _, note := range due {
		if n.sendNote(n.r.process.IO, note) != nil {
			return
		}
	}
}

// sendNote sends a note to Redis. It returns [lowkiq.ErrEnded] if the claim is lost.
func (n *notes) sendNote(ctx context.Context, note protocol.Note) error {
	err := n.r.claim.Note(ctx, note)
	if errors.Is(err, lowkiq.ErrFenced) {
		n.r.loseClaim("note", err)
		return fmt.Errorf("job %q: %w: %w", note.ID, lowkiq.ErrEnded, err)
	}
	return err
}
