package node

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// witness is a handler's middleware that looks for breaches of I1, I2 and I3: overlaps of
// an id or, with lanes 1, of a shard; payloads out of order; payloads handled twice.
type witness struct {
	lanes int // batches of one shard at once

	mu      sync.Mutex
	busy    map[string]bool
	shards  map[lowkiq.Shard]int
	last    map[string]int  // highest payload handled, by id
	seen    map[string]bool // id/payload
	repeats int
	handled int // distinct payloads
	most    int // most batches of one shard seen at once
	faults  []string
}

func newWitness(lanes int) *witness {
	return &witness{lanes: lanes, busy: map[string]bool{}, shards: map[lowkiq.Shard]int{}, last: map[string]int{}, seen: map[string]bool{}}
}

func (w *witness) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

func (w *witness) enter(b *lowkiq.Batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shards[b.Shard]++
	w.most = max(w.most, w.shards[b.Shard])
	if w.shards[b.Shard] > w.lanes {
		w.fault("%d batches of shard %s at once", w.shards[b.Shard], b.Shard)
	}
	for _, job := range b.Jobs {
		if w.busy[job.ID] {
			w.fault("two handlers of %q at once", job.ID)
		}
		w.busy[job.ID] = true
	}
}

// leave notes the end of a call; what succeeded counts as handled.
func (w *witness) leave(b *lowkiq.Batch, succeeded bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shards[b.Shard]--
	for _, job := range b.Jobs {
		delete(w.busy, job.ID)
		if succeeded {
			w.finished(job)
		}
	}
}

func (w *witness) finished(job lowkiq.Job) {
	before, known := w.last[job.ID]
	if !known {
		before = -1
	}
	for _, p := range job.Payloads {
		n, err := strconv.Atoi(string(p.Data))
		if err != nil {
			w.fault("%q: %v", job.ID, err)
		}
		key := job.ID + "/" + string(p.Data)
		switch {
		case w.seen[key]:
			w.repeats++
		case n != before+1:
			w.fault("%q: payload %d after %d", job.ID, n, before)
			fallthrough
		default:
			w.seen[key] = true
			w.handled++
		}
		before = max(before, n)
	}
	w.last[job.ID] = before
}

// around makes the witness watch a handler.
func (w *witness) around(handle lowkiq.HandlerFunc) lowkiq.HandlerFunc {
	return func(ctx context.Context, b *lowkiq.Batch) (err error) {
		jobs := slices.Clone(b.Jobs)
		w.enter(b)
		defer func() {
			copied := *b
			copied.Jobs = jobs
			w.leave(&copied, err == nil && context.Cause(ctx) == nil)
		}()
		return handle(ctx, b)
	}
}

func (w *witness) check(t testing.TB, payloads int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults[:min(5, len(w.faults))] {
		t.Error(f)
	}
	if w.handled != payloads {
		t.Errorf("%d distinct payloads handled, want %d", w.handled, payloads)
	}
	t.Logf("%d payloads handled, %d repeats, up to %d batches of a shard at once", w.handled, w.repeats, w.most)
}

// TestWitness shows that the witness objects.
func TestWitness(t *testing.T) {
	t.Parallel()
	batch := func(id string, payloads ...string) *lowkiq.Batch {
		job := lowkiq.Job{ID: id}
		for _, p := range payloads {
			job.Payloads = append(job.Payloads, lowkiq.Payload{Data: []byte(p)})
		}
		return &lowkiq.Batch{Shard: lowkiq.Shard{Queue: "orders"}, Jobs: []lowkiq.Job{job}}
	}
	for _, c := range []struct {
		name string
		do   func(*witness)
		want string
	}{
		{"two of an id", func(w *witness) { w.enter(batch("a", "0")); w.enter(batch("a", "1")) }, `two handlers of "a" at once`},
		{"too many of a shard", func(w *witness) { w.lanes = 1; w.enter(batch("a", "0")); w.enter(batch("b", "0")) }, "2 batches of shard orders/0 at once"},
		{"overtaking", func(w *witness) { w.finished(batch("a", "1").Jobs[0]); w.finished(batch("a", "0").Jobs[0]) }, `"a": payload 1 after -1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWitness(2)
			c.do(w)
			if !slices.Contains(w.faults, c.want) {
				t.Errorf("got %q, want %q", w.faults, c.want)
			}
		})
	}
}
