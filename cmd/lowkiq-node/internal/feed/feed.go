package feed

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Target stores jobs: a *queue.Queue, or a node that is asked to.
type Target interface {
	Push(ctx context.Context, jobs ...lowkiq.Push) ([]queue.Result, error)
}

// Input is one part of the stream.
type Input struct {
	Name string
	io.Reader
}

// Feeder stores a stream of lines. Its fields are not changed while Run runs.
type Feeder struct {
	Target Target
	Shards int // of the queue
	// Skip lines are not stored: they were, in an earlier run.
	Skip int
	// Strict ends the run at the first line that is refused.
	Strict bool
	// Patience is how long Redis may be away without any line getting through.
	// Default 30 s.
	Patience time.Duration
	// Rate is how many lines a second are read at most; 0 = as many as Redis takes.
	Rate int
	// Refused is told of each refused line, in order.
	Refused func(line int, reason error)
	// Settled is told after each batch, Away when Redis is out of reach for the first
	// time since a line got through. Both may be nil.
	Settled func(Summary)
	Away    func(error)

	sum Summary
}

// Summary is what became of the lines so far.
type Summary struct {
	Pushed  int `json:"pushed"`  // jobs in Redis, merged ones included
	Merged  int `json:"merged"`  // of these, equal to a payload that was waiting already
	Refused int `json:"refused"` // bad lines, and jobs beyond a limit
	Lines   int `json:"lines"`   // pushed and refused; empty and skipped lines are not counted

	Line int `json:"-"` // every line of the stream up to this one is settled
}

// Errors that end a run early.
var (
	// ErrStrict: a line was refused and Strict is set. It is the first one behind
	// Summary.Line.
	ErrStrict = errors.New("a line was refused")
	// ErrRefused: a target wraps it around why it will never store one job.
	ErrRefused = errors.New("refused")
	// ErrAway: a target wraps it around a trouble that may pass.
	ErrAway = errors.New("away")
	// ErrInput: the stream could not be read.
	ErrInput = errors.New("cannot read the input")
)

// Sizes of a batch. A shard's share is one script of package queue, so that a batch of
// which a part failed can be repeated without turning the order around.
const (
	batchLines = 4096
	batchBytes = 8 << 20
	shareLines = 1000
	shareBytes = 1 << 20

	maxLine   = 8 << 20
	readAhead = 24 << 20 // bytes read and not yet stored; more than one longest line
	overhead  = 128      // of a line in memory, about
)

// Run stores the inputs one after the other, their lines counted through. The error is
// ErrStrict, ErrInput, the context's cause, or what Redis said last.
func (f *Feeder) Run(ctx context.Context, inputs ...Input) (Summary, error) {
	if f.Patience == 0 {
		f.Patience = 30 * time.Second
	}
	f.sum = Summary{Line: f.Skip}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &reader{inputs: inputs, skip: f.Skip, rate: f.Rate, items: make(chan item, batchLines), room: semaphore.NewWeighted(readAhead)}
	go r.run(ctx)
	var next *item
	for {
		var batch []item
		var err error
		batch, next, err = f.gather(ctx, r, next)
		if err != nil || len(batch) == 0 {
			return f.sum, err
		}
		if err := f.settle(ctx, batch); err != nil {
			return f.sum, err
		}
		for i := range batch {
			r.room.Release(batch[i].size)
		}
	}
}

// gather waits for an item and takes along what is there besides, up to the limits. The
// item that did not fit is the first of the next batch. No items: the stream is over.
func (f *Feeder) gather(ctx context.Context, r *reader, first *item) (batch []item, rest *item, err error) {
	if first == nil {
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case it, ok := <-r.items:
			if !ok {
				return nil, nil, nil
			}
			first = &it
		}
	}
	room := newRoom(f.Shards)
	room.take(first)
	batch = append(batch, *first)
	for !batch[len(batch)-1].last() {
		select {
		case it, ok := <-r.items:
			if !ok {
				return batch, nil, nil
			}
			if !room.take(&it) {
				return batch, &it, nil
			}
			batch = append(batch, it)
		default:
			return batch, nil, nil
		}
	}
	return batch, nil, nil
}

// settle stores a batch and accounts for its lines in order.
func (f *Feeder) settle(ctx context.Context, batch []item) error {
	if f.Strict {
		batch = untilBad(batch)
	}
	failed := f.store(ctx, batch)
	for i := range batch {
		if batch[i].pending {
			return failed
		}
		if err := f.account(&batch[i]); err != nil {
			return err
		}
	}
	if f.Settled != nil {
		f.Settled(f.sum)
	}
	return nil
}

// account counts a line that was stored or refused.
func (f *Feeder) account(it *item) error {
	if it.last() {
		return it.err
	}
	f.sum.Lines++
	if it.err != nil {
		f.sum.Refused++
		f.Refused(it.line, it.err)
		if f.Strict {
			return ErrStrict
		}
	} else {
		f.sum.Pushed++
	}
	if it.merged {
		f.sum.Merged++
	}
	f.sum.Line = it.line
	return nil
}

// untilBad ends a batch with its first bad line.
func untilBad(batch []item) []item {
	for i := range batch {
		if batch[i].err != nil {
			return batch[:i+1]
		}
	}
	return batch
}

// store pushes the batch's jobs and repeats what Redis could not take, until Patience
// is over. What is still pending then was perhaps not stored.
func (f *Feeder) store(ctx context.Context, batch []item) error {
	b := Backoff{Limit: f.Patience, Away: f.Away}
	for {
		jobs, items := pending(batch)
		if len(jobs) == 0 {
			return nil
		}
		results, err := f.Target.Push(ctx, jobs...)
		stored := 0
		for i := range results {
			if err := results[i].Err; err == nil || refusal(err) {
				*items[i] = items[i].settled(results[i])
				stored++
			} else if ctx.Err() == nil && !queue.Transient(err) && !errors.Is(err, ErrAway) {
				return err
			}
		}
		if stored == len(items) {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if stored > 0 {
			b.Reset()
		}
		if err := b.Wait(ctx, err); err != nil {
			return err
		}
	}
}

func pending(batch []item) (jobs []lowkiq.Push, items []*item) {
	for i := range batch {
		if batch[i].pending {
			jobs = append(jobs, batch[i].push)
			items = append(items, &batch[i])
		}
	}
	return jobs, items
}

// refusal reports whether err concerns this one job and would come again.
func refusal(err error) bool {
	for _, known := range []error{ErrRefused, queue.ErrID, queue.ErrScore, queue.ErrPerformAt, lowkiq.ErrHeader, queue.ErrPayloadSize, queue.ErrTooManyPayloads, queue.ErrTooManyBytes, queue.ErrDamaged} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
