package feed

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Target stores jobs: a *protocol.Queue, or a node that is asked to store them.
type Target interface {
	Push(ctx context.Context, jobs ...lowkiq.Push) ([]protocol.Result, error)
}

// Input is a part of the stream.
type Input struct {
	Name string
	io.Reader
}

// Feeder stores a stream of lines. Its fields must not change during Run.
type Feeder struct {
	Target Target
	Shards int // shard count of the queue
	// Skip is the number of lines that are not stored, because an earlier run has stored them.
	Skip int
	// Strict ends the run at the first line that is refused.
	Strict bool
	// Patience is how long Redis may be away before the run fails. Every stored line starts it anew. Default: 30 s.
	Patience time.Duration
	// Rate is the maximum number of lines read per second. 0 is no limit.
	Rate int
	// Refused is called for each refused line, in order.
	Refused func(line int, reason error)
	// Settled is called after each batch, and Away when Redis is out of reach for the first time since a line was stored.
	// Both may be nil.
	Settled func(Summary)
	Away    func(error)

	sum Summary
}

// Summary is the result for the lines so far.
type Summary struct {
	Pushed  int `json:"pushed"`  // stored jobs, with merged jobs
	Merged  int `json:"merged"`  // stored jobs whose payload was equal to a waiting payload
	Refused int `json:"refused"` // bad lines, and jobs over a limit
	Lines   int `json:"lines"`   // pushed and refused lines, without empty and skipped lines

	Line int `json:"-"` // every line of the stream up to this line is settled
}

// Errors that end a run early.
var (
	// ErrStrict means that a line was refused and Strict is set. It is the first line after Summary.Line.
	ErrStrict = errors.New("a line was refused")
	// ErrRefused is wrapped by a target that will never store a job.
	ErrRefused = errors.New("refused")
	// ErrAway is wrapped by a target whose error may pass.
	ErrAway = errors.New("away")
	// ErrInput means that the stream could not be read.
	ErrInput = errors.New("cannot read the input")
)

// Bounds of a batch. Package queue stores a shard's share of it in a single script. So the failed part of a batch can be
// repeated without a change of order.
const (
	batchLines = 4096
	batchBytes = 8 << 20
	shareLines = 1000
	shareBytes = 1 << 20

	maxLine   = 8 << 20
	readAhead = 24 << 20 // bytes read and not yet stored; more than the longest line
	overhead  = 128      // bytes of memory for a line, about
)

// Run stores the inputs in turn, with their lines counted through. The error is ErrStrict, ErrInput, the cause of the
// context's end, or the last error of Redis.
func (f *Feeder) Run(ctx context.Context, inputs ...Input) (Summary, error) {
	if f.Patience == 0 {
		f.Patience = 30 * time.Second
	}
	f.sum = Summary{Line: f.Skip}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &reader{inputs: inputs, skip: f.Skip, rate: f.Rate, items: make(chan item, batchLines), room: semaphore.NewWeighted(readAhead)}
	go r.readInputs(ctx)
	var next *item
	for {
		var batch []item
		var err error
		batch, next, err = f.gatherBatch(ctx, r, next)
		if err != nil || len(batch) == 0 {
			return f.sum, err
		}
		if err := f.settleBatch(ctx, batch); err != nil {
			return f.sum, err
		}
		for i := range batch {
			r.room.Release(batch[i].size)
		}
	}
}

// gatherBatch waits for an item and takes the items that are ready after it, up to the limits. rest is the item that did not
// fit, which begins the next batch. An empty batch means that the stream has ended.
func (f *Feeder) gatherBatch(ctx context.Context, r *reader, first *item) (batch []item, rest *item, err error) {
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
	room.tryAdd(first)
	batch = append(batch, *first)
	for !batch[len(batch)-1].endsStream() {
		select {
		case it, ok := <-r.items:
			if !ok {
				return batch, nil, nil
			}
			if !room.tryAdd(&it) {
				return batch, &it, nil
			}
			batch = append(batch, it)
		default:
			return batch, nil, nil
		}
	}
	return batch, nil, nil
}

// settleBatch stores a batch and counts its lines in order.
func (f *Feeder) settleBatch(ctx context.Context, batch []item) error {
	if f.Strict {
		batch = cutAfterRefused(batch)
	}
	failed := f.pushBatch(ctx, batch)
	for i := range batch {
		if batch[i].pending {
			return failed
		}
		if err := f.countLine(&batch[i]); err != nil {
			return err
		}
	}
	if f.Settled != nil {
		f.Settled(f.sum)
	}
	return nil
}

// countLine counts a line that was stored or refused.
func (f *Feeder) countLine(it *item) error {
	if it.endsStream() {
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

// cutAfterRefused cuts a batch after its first refused line.
func cutAfterRefused(batch []item) []item {
	for i := range batch {
		if batch[i].err != nil {
			return batch[:i+1]
		}
	}
	return batch
}

// pushBatch pushes the jobs of a batch, and repeats those that Redis could not store until Patience is over. Jobs that are
// still pending then may have been stored.
func (f *Feeder) pushBatch(ctx context.Context, batch []item) error {
	b := sleep.Backoff{Limit: f.Patience, Away: f.Away}
	for {
		jobs, items := pendingJobs(batch)
		if len(jobs) == 0 {
			return nil
		}
		results, err := f.Target.Push(ctx, jobs...)
		stored := 0
		for i := range results {
			if err := results[i].Err; err == nil || isRefusal(err) {
				*items[i] = items[i].withResult(results[i])
				stored++
			} else if ctx.Err() == nil && !protocol.Transient(err) && !errors.Is(err, ErrAway) {
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

// pendingJobs returns the pending jobs of a batch. The item of a job has the same index.
func pendingJobs(batch []item) (jobs []lowkiq.Push, items []*item) {
	for i := range batch {
		if batch[i].pending {
			jobs = append(jobs, batch[i].push)
			items = append(items, &batch[i])
		}
	}
	return jobs, items
}

// isRefusal reports whether err concerns this job alone and would come again.
func isRefusal(err error) bool {
	for _, known := range []error{ErrRefused, protocol.ErrID, protocol.ErrScore, protocol.ErrPerformAt, lowkiq.ErrHeader, protocol.ErrPayloadSize,
		protocol.ErrTooManyPayloads, protocol.ErrTooManyBytes, protocol.ErrDamaged} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
