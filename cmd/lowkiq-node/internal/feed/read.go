package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/wire"
)

// item is a line on its way into the queue.
type item struct {
	line    int
	size    int64
	push    lowkiq.Push
	pending bool  // not stored yet
	merged  bool  // the stored job was merged
	err     error // why it was refused, or ErrInput
}

// endsStream reports whether the stream cannot be read beyond this item.
func (it *item) endsStream() bool { return errors.Is(it.err, ErrInput) }

func (it item) withResult(r protocol.Result) item {
	it.pending, it.merged, it.err = false, r.Merged, r.Err
	return it
}

// reader turns the inputs into items.
type reader struct {
	inputs []Input
	skip   int
	rate   int // lines per second; 0 is no limit
	items  chan item
	room   *semaphore.Weighted // bytes that were read and are not stored yet
}

// readInputs reads until the inputs end, an input cannot be read, or ctx ends. A blocked read of a terminal or a pipe
// outlives ctx.
func (r *reader) readInputs(ctx context.Context) {
	defer close(r.items)
	began := time.Now()
	before := 0 // lines of the earlier inputs
	for _, in := range r.inputs {
		scanner := wire.NewScanner(in, maxLine)
		for {
			line, push, err := scanner.Next()
			var bad *wire.Error
			if err == io.EOF {
				before += line
				break
			}
			it := item{line: before + line, push: push, pending: err == nil, size: overhead + int64(len(push.ID)+len(push.Payload))}
			switch {
			case errors.As(err, &bad) && len(r.inputs) > 1:
				it.err = fmt.Errorf("%s (%s line %d, column %d)", bad.Detail(), in.Name, line, bad.Column)
			case errors.As(err, &bad):
				it.err = fmt.Errorf("%s (column %d)", bad.Detail(), bad.Column)
			case err != nil:
				it.err = fmt.Errorf("%w: %s: %w", ErrInput, in.Name, err)
			}
			if it.line <= r.skip && !it.endsStream() {
				continue
			}
			if r.awaitTurn(ctx, began, it.line-r.skip) != nil || !r.sendItem(ctx, it) || it.endsStream() {
				return
			}
		}
	}
}

// awaitTurn waits until the n-th line may be sent.
func (r *reader) awaitTurn(ctx context.Context, began time.Time, n int) error {
	if r.rate == 0 {
		return nil
	}
	return sleep.For(ctx, time.Until(began.Add(time.Duration(n)*time.Second/time.Duration(r.rate))))
}

// sendItem sends an item when there is room for its bytes. It reports whether it did so before ctx was done.
func (r *reader) sendItem(ctx context.Context, it item) bool {
	if r.room.Acquire(ctx, it.size) != nil {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case r.items <- it:
		return true
	}
}

// room is the space that is left in a batch.
type room struct {
	shards int
	lines  int
	bytes  int64
	share  map[int]share
}

type share struct{ lines, bytes int }

func newRoom(shards int) *room { return &room{shards: shards, share: map[int]share{}} }

// tryAdd reports whether the item fits, and counts it if so.
func (r *room) tryAdd(it *item) bool {
	if r.lines > 0 && (r.lines == batchLines || r.bytes+it.size > batchBytes) {
		return false
	}
	if it.pending {
		shard := lowkiq.ShardOf(it.push.ID, r.shards)
		s := r.share[shard]
		s.lines++
		s.bytes += len(it.push.Payload)
		if s.lines > shareLines || s.lines > 1 && s.bytes > shareBytes {
			return false
		}
		r.share[shard] = s
	}
	r.lines++
	r.bytes += it.size
	return true
}
