package lowkiq

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"unicode/utf8"
)

// Batch is what one handler call receives: up to batch_size jobs of one shard.
type Batch struct {
	Shard Shard
	// Fence is the fencing token of the shard's claim. It only grows. A handler that writes to its
	// own store can send it along, so that the store can refuse a writer whose shard has been taken
	// over (I1).
	Fence int64
	// Flight is the number of the pop that delivered the jobs, counted per claim.
	Flight int64
	Jobs   []Job

	answers *answers // what the handler says beside done or failed; copies of a batch share it
}

// NewBatch makes a batch as a node does: what is answered to a copy of it, by a middleware say, is
// answered to it. A literal will do for tests of handlers that copy none.
func NewBatch(shard Shard, fence, flight int64, jobs []Job) *Batch {
	own := &struct {
		Batch
		answers
	}{Batch: Batch{Shard: shard, Fence: fence, Flight: flight, Jobs: jobs}}
	own.Batch.answers = &own.answers
	return &own.Batch
}

// What one answer may carry, bytes.
const (
	MaxResultBytes = 256 << 10 // longest result of a job
	MaxStateBytes  = 64 << 10  // longest state of an id
)

// Answer is what a handler says of one job beside done or failed. It counts if the job is done: it is
// stored in one step with that, or not at all, and at most once. An answer about an id that is not in
// the batch fails all of it, one that is too long fails its job.
type Answer struct {
	all *answers
	id  string
}

// Answered is what a handler has said of a job with [Answer].
type Answered struct {
	Result []byte // nil: none; an empty one is not nil
	State  []byte // as Result; see Stated
	Stated bool   // the state is replaced by State, or deleted if that is nil
}

// Note is what a handler says of a job while it works on it. What is zero stays as it was.
type Note struct {
	Progress float64 // how much is done, 0 to 1
	Log      string  // a line of up to MaxLogBytes bytes of UTF-8: the last one is shown
	State    []byte  // replaces the id's state now, whatever becomes of the job; not nil, see [Answer.State]
}

// MaxLogBytes is the longest line of a note.
const MaxLogBytes = 1 << 10

// Check says what is wrong with a note.
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

// Note tells people how far a job of the batch is: lists of what is in flight, and the id's page,
// show it, and what is logged stays with the run in the queue's journal, the last kilobyte. The notes about
// one id in a second are sent as one; one with a state is sent at once, and is stored when Note returns:
// where the next attempt goes on if this one fails. A note is no sign of life that the job needs: the
// lease is.
//
// ErrEnded says that the job is not this handler's any more, which is a good moment to stop. Errors of
// what is sent later are not told.
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

// NoteTaker takes the notes of handlers; batch is that on which [Batch.Note] was called.
type NoteTaker interface {
	TakeNote(ctx context.Context, batch *Batch, id string, note Note) error
}

// NoteFunc is a function as a [NoteTaker].
type NoteFunc func(ctx context.Context, batch *Batch, id string, note Note) error

// TakeNote calls f.
func (f NoteFunc) TakeNote(ctx context.Context, batch *Batch, id string, note Note) error {
	return f(ctx, batch, id, note)
}

// NotesTo says who takes the notes about a batch, before a handler has it: for nodes, and for tests of
// handlers. Without it they go nowhere.
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
	// notes is set before the call; nil: nobody takes notes.
	notes NoteTaker
}

// Answer is the answer to a job of the batch, which several goroutines may give.
func (b *Batch) Answer(id string) *Answer {
	if b.answers == nil {
		b.answers = &answers{}
	}
	return &Answer{b.answers, id}
}

// Result is for those who wait for the job's end with a call, and for nobody if there are none (see
// [Job.Callers]): up to MaxResultBytes of any kind, which are not copied. All calls that the batch has
// of an id get the same one, the last that was given. It returns a.
func (a *Answer) Result(data []byte) *Answer {
	return a.change(func(all *Answered) { all.Result = some(data) })
}

// State replaces the state of the id, up to MaxStateBytes, which are not copied: the id's next job
// gets it in [Job.State]. nil deletes it. The queue's rules must keep states
// (node.QueueConfig.State), else the batch fails. As one handler at a time has an id, and the state
// is stored in one step with the end of the job that it came with, no update is lost and none counts
// twice: what a handler does to the state alone is done exactly once. It returns a.
func (a *Answer) State(data []byte) *Answer {
	return a.change(func(all *Answered) { all.State, all.Stated = data, true })
}

// some is never nil.
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

// Answers are what has been answered so far, by id: for middlewares and tests. nil if nothing has.
func (b *Batch) Answers() map[string]Answered {
	if b.answers == nil {
		return nil
	}
	b.answers.mu.Lock()
	defer b.answers.mu.Unlock()
	return maps.Clone(b.answers.byID)
}

// EndAnswers is Answers for the node when the call has ended: what a goroutine that the handler has
// left behind says from then on is not heard. The map is the node's alone.
func (b *Batch) EndAnswers() map[string]Answered {
	if b.answers == nil {
		return nil
	}
	b.answers.mu.Lock()
	defer b.answers.mu.Unlock()
	b.answers.over = true
	return maps.Clone(b.answers.byID)
}
