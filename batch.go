package lowkiq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"unicode/utf8"
)

// Batch has the jobs of a handler call: up to batch_size jobs of a shard.
type Batch struct {
	Shard Shard
	// Fence is the fencing token of the shard's claim. It only rises. A handler can write it to its own
	// store, so that the store can refuse the handler of a former owner of the shard (I1).
	Fence int64
	// Flight is the number of the pop that took the jobs. It counts the pops of a claim.
	Flight int64
	Jobs   []Job

	answers *answers // results, states and notes of the handler; copies of a batch share it
}

// NewBatch returns a batch as a node makes it. Copies of it share their answers, so a middleware may copy
// a batch. A test of a handler may use a literal if nothing copies it.
func NewBatch(shard Shard, fence, flight int64, jobs []Job) *Batch {
	own := &struct {
		Batch
		answers
	}{Batch: Batch{Shard: shard, Fence: fence, Flight: flight, Jobs: jobs}}
	own.Batch.answers = &own.answers
	return &own.Batch
}

// Limits of an answer.
const (
	MaxResultBytes   = 256 << 10 // bytes of the result of a job
	MaxStateBytes    = 64 << 10  // bytes of the state of an id
	MaxFollowUps     = 1000      // follow-ups of a job
	MaxFollowUpBytes = 1 << 20   // bytes of the payloads of a job's follow-ups, as they are stored
	MaxHops          = 100       // follow-ups in a chain; see [Answer.Then]
)

// FollowUp is a push that is stored with the end of a job; see [Answer.Then].
type FollowUp struct {
	Queue string
	Push  Push
}

// Answer sets the result of a job, the state of its id, and its follow-ups. Redis stores them once, in the step that
// takes the job as done. They are not stored if the job fails. An answer for an id that is not in the batch
// fails the whole batch. An answer that is too long fails its job.
type Answer struct {
	all *answers
	id  string
}

// Answered has the values that a handler has set with [Answer].
type Answered struct {
	Result []byte // nil without a result; an empty result is not nil
	State  []byte // the new state, if Stated; nil deletes the state
	Stated bool   // the handler has set the state
	Then   []FollowUp
}

// Note is a progress report of a handler about a job. Zero fields keep their earlier values.
type Note struct {
	Progress float64 // the share that is done, from 0 to 1
	Log      string  // a line of at most MaxLogBytes bytes of UTF-8; pages show the last line
	State    []byte  // if not nil, replaces the id's state at once, even if the job fails later; see [Answer.State]
}

// MaxLogBytes is the maximum length of the line of a note.
const MaxLogBytes = 1 << 10

// Check returns an [ErrNote] if the note is not valid.
func (n *Note) Check() error {
	switch {
	case !(n.Progress >= 0 && n.Progress <= 1): // NaN, too
		return fmt.Errorf("%w: progress is %v, want 0 to 1", ErrNote, n.Progress)
	case len(n.Log) > MaxLogBytes:
		return fmt.Errorf("%w: the line has %d bytes, at most %d are allowed", ErrNote, len(n.Log), MaxLogBytes)
	case !utf8.ValidString(n.Log):
		return fmt.Errorf("%w: the line is not UTF-8", ErrNote)
	case len(n.State) > MaxStateBytes:
		return fmt.Errorf("%w: the state has %d bytes, at most %d are allowed", ErrNote, len(n.State), MaxStateBytes)
	}
	return nil
}

// Note reports the progress of a job of the batch. Pages and lists of in-flight jobs show it, and the
// journal keeps the last kilobyte of the lines with the run. Notes of an id within a second are sent
// together. A note with a state is sent at once, and is stored when Note returns, so that the next run
// can continue from it. A job needs no notes to stay alive, because the lease keeps it.
//
// Note returns [ErrEnded] if the job is no longer in the handler's flight. The handler may stop then.
// Note does not report errors of notes that are sent later.
func (b *Batch) Note(ctx context.Context, id string, note Note) error {
	if err := note.Check(); err != nil {
		return fmt.Errorf("job %q: %w", id, err)
	}
	if b.answers == nil {
		return nil // a test
	}
	b.answers.mu.Lock()
	over := b.answers.over
	b.answers.mu.Unlock()
	switch {
	case over:
		return fmt.Errorf("job %q: %w", id, ErrEnded)
	case b.answers.notes == nil:
		return nil
	}
	return b.answers.notes.TakeNote(ctx, b, id, note)
}

// NoteTaker takes the notes of handlers. batch is the receiver of [Batch.Note].
type NoteTaker interface {
	TakeNote(ctx context.Context, batch *Batch, id string, note Note) error
}

// NoteFunc adapts a function to a [NoteTaker].
type NoteFunc func(ctx context.Context, batch *Batch, id string, note Note) error

// TakeNote calls f.
func (f NoteFunc) TakeNote(ctx context.Context, batch *Batch, id string, note Note) error {
	return f(ctx, batch, id, note)
}

// NotesTo sets the taker of the batch's notes. Nodes, and tests of handlers, call it before the handler
// gets the batch. Without a taker, notes are dropped.
func (b *Batch) NotesTo(taker NoteTaker) {
	if b.answers == nil {
		b.answers = &answers{}
	}
	b.answers.notes = taker
}

type answers struct {
	mu   sync.Mutex
	byID map[string]Answered // guarded by mu
	over bool                // the call has ended; guarded by mu
	// notes is set before the call; nil drops notes.
	notes NoteTaker
}

// Answer returns the answer for a job of the batch. Several goroutines may use it.
func (b *Batch) Answer(id string) *Answer {
	if b.answers == nil {
		b.answers = &answers{}
	}
	return &Answer{b.answers, id}
}

// Result sets the result of the job, at most MaxResultBytes, which are not copied. The calls that wait
// for the job get it (see [Job.Callers]); without calls it is dropped. The last result that is set
// counts. It returns a.
func (a *Answer) Result(data []byte) *Answer {
	return a.change(func(all *Answered) { all.Result = some(data) })
}

// State sets the state of the id, at most MaxStateBytes, which are not copied. nil deletes it. The next
// job of the id gets it in [Job.State]. The batch fails if the queue's rules keep no states
// (node.QueueConfig.State). Only one handler at a time has an id, and Redis stores the state in the step
// that ends the job. So no update is lost or applied twice: changes to the state alone happen exactly
// once. It returns a.
func (a *Answer) State(data []byte) *Answer {
	return a.change(func(all *Answered) { all.State, all.Stated = data, true })
}

// Then adds a follow-up, which is a push to any registered queue. Redis stores it with the end of the job or not at
// all, so a handler that runs twice and ends its job once has pushed once. A relay delivers it exactly once, shortly
// after. Follow-ups of one id to one other id arrive in order. They go through the middlewares and the codec of their
// queue at the end of the handler call.
//
// The batch fails if the queue is not registered. The job fails if the push is invalid, or beyond MaxFollowUps or
// MaxFollowUpBytes. Urgent and ReplyTo must not be set. A chain of follow-ups ends after MaxHops, so that a loop ends.
// The header hops counts them, and the job that would go beyond is buried. It returns a.
func (a *Answer) Then(queue string, push Push) *Answer {
	return a.change(func(all *Answered) { all.Then = append(all.Then, FollowUp{queue, push}) })
}

// some returns data, or an empty slice for nil.
func some(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}

func (a *Answer) change(change func(*Answered)) *Answer {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	if a.all.over {
		return a
	}
	if a.all.byID == nil {
		a.all.byID = map[string]Answered{}
	}
	now := a.all.byID[a.id]
	change(&now)
	a.all.byID[a.id] = now
	return a
}

// Answers returns the answers so far, by id, for middlewares and tests. It returns nil without answers.
func (b *Batch) Answers() map[string]Answered {
	if b.answers == nil {
		return nil
	}
	b.answers.mu.Lock()
	defer b.answers.mu.Unlock()
	return maps.Clone(b.answers.byID)
}

// ChangeFollowUps lets a middleware change the follow-ups that the handler has added so far, for example their headers. A
// header that it changes must be a new map, because pushes may share maps.
func (b *Batch) ChangeFollowUps(change func(id string, push *Push)) {
	if b.answers == nil {
		return
	}
	b.answers.mu.Lock()
	defer b.answers.mu.Unlock()
	if b.answers.over {
		return
	}
	for id, one := range b.answers.byID {
		if len(one.Then) == 0 {
			continue
		}
		one.Then = slices.Clone(one.Then) // Answers has returned the others
		for i := range one.Then {
			change(id, &one.Then[i].Push)
		}
		b.answers.byID[id] = one
	}
}

// EndAnswers returns the answers, by id, after the handler's call has ended. Later answers and notes, of
// goroutines that the handler has left behind, are ignored. Nodes call it.
func (b *Batch) EndAnswers() map[string]Answered {
	if b.answers == nil {
		return nil
	}
	b.answers.mu.Lock()
	defer b.answers.mu.Unlock()
	b.answers.over = true
	return maps.Clone(b.answers.byID)
}
