package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// notes takes what a handler says of its jobs while it works. Of those about an id that come within a
// second the last one is sent, at the end of the second; one with a state at once.
type notes struct {
	r *Runner

	mu     sync.Mutex // guards the fields below
	flight int64
	jobs   []lowkiq.Job           // of the call; nil between calls
	sent   map[string]time.Time   // by id: when the last note was sent; nil without notes
	later  map[string]lowkiq.Note // what is to be sent
	timer  *time.Timer            // for later; nil: none runs
}

// noteEvery is how often notes about an id are sent.
const noteEvery = time.Second

// begin has the notes of a call taken.
func (n *notes) begin(batch *lowkiq.Batch) {
	n.mu.Lock()
	n.flight, n.jobs, n.sent, n.later = batch.Flight, batch.Jobs, nil, nil
	n.mu.Unlock()
	batch.OnNote(n.take)
}

// end drops what was not sent, and says of which ids there are notes.
func (n *notes) end() map[string]time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.jobs, n.later = nil, nil
	if n.timer != nil {
		n.timer.Stop()
		n.timer = nil
	}
	return n.sent
}

// take is [lowkiq.Batch.Note].
func (n *notes) take(ctx context.Context, id string, note lowkiq.Note) error {
	if err := n.r.queue.Keepable(&note); err != nil {
		return fmt.Errorf("job %q: %w", id, err)
	}
	n.mu.Lock()
	if n.jobs == nil {
		n.mu.Unlock()
		return fmt.Errorf("job %q: %w", id, lowkiq.ErrEnded)
	}
	if !slices.ContainsFunc(n.jobs, func(job lowkiq.Job) bool { return job.ID == id }) {
		n.mu.Unlock()
		return fmt.Errorf("job %q is not in the batch: %w", id, lowkiq.ErrNote)
	}
	now := time.Now()
	if n.sent == nil {
		n.sent, n.later = map[string]time.Time{}, map[string]lowkiq.Note{}
	}
	last, before := n.sent[id]
	if note.Progress == 0 {
		note.Progress = n.later[id].Progress
	}
	if note.Log == "" {
		note.Log = n.later[id].Log
	}
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
	flight := n.flight
	n.mu.Unlock()
	return n.send(ctx, queue.Note{Flight: flight, ID: id, Note: note})
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
