package runner

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestChange checks that each lane uses new rules from its next step on. Running calls go on. A concurrency that is set,
// lowered, raised and removed holds for calls that begin afterwards.
func TestChange(t *testing.T) {
	t.Parallel()
	calmly(t, 10, func(t *testing.T, p *process) {
		next := make(chan struct{})
		var running, largest, ids atomic.Int64
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: 1}}}, func(_ context.Context, b *lowkiq.Batch) error {
			largest.Store(max(largest.Load(), running.Add(1)))
			defer running.Add(-1)
			ids.Store(max(ids.Load(), int64(len(b.Jobs))))
			<-next
			return nil
		})
		r := p.runners[s.Shard]
		q := r.queue
		change := func(lanes, batch, calls int) {
			rules := *q.rules()
			rules.ShardConcurrency, rules.BatchSize = lanes, batch
			q.Change(rules, calls)
			r.ApplyRules()
			soon()
		}
		runs := func(want int64, when string) {
			t.Helper()
			if got := running.Load(); got != want {
				t.Errorf("%s: %d calls run, want %d", when, got, want)
			}
		}
		p.give(s, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")
		soon()
		runs(1, "with one lane")
		change(4, 1, 0)
		runs(4, "with four lanes")
		change(4, 1, 2) // those that run began without a bound
		for range 4 {
			next <- struct{}{}
		}
		soon()
		runs(2, "with two calls at once")
		change(4, 1, 3)
		runs(3, "with three calls at once")
		change(4, 1, 1)
		runs(3, "with one call at once, while others run")
		for range 3 {
			next <- struct{}{}
		}
		soon()
		runs(1, "with one call at once")
		change(4, 1, 0)
		if got := running.Load(); got < 3 {
			t.Errorf("without a bound again: %d calls run, want all that is left", got)
		}
		close(next)
		soon()
		s.has(t, 0, "in the end")
		if ids.Load() != 1 {
			t.Errorf("a batch of %d ids, want 1", ids.Load())
		}
		change(1, 3, 0)
		p.give(s, "m", "n", "o")
		soon()
		if ids.Load() != 3 {
			t.Errorf("a batch of %d ids, want 3 after the change", ids.Load())
		}
		s.has(t, 0, "after larger batches")
	})
}

// TestFewerLanesThanLongCalls checks that a lane pops for itself if the rules now allow fewer lanes than are in long calls.
func TestFewerLanesThanLongCalls(t *testing.T) {
	t.Parallel()
	s := &state{queue: NewQueue(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: 1}}}), alarm: alarm{now: func() time.Duration { return time.Hour }}}
	for range 3 {
		busy := &lane{}
		busy.began.Store(int64(time.Minute))
		s.lanes = append(s.lanes, busy)
	}
	if s.lanes = append(s.lanes, &lane{}); s.idleLanes() != 1 {
		t.Errorf("got %d lanes, want 1", s.idleLanes())
	}
}

// TestTrackedRuns checks that only tracked ids of a batch get lines in the journal, at their places.
func TestTrackedRuns(t *testing.T) {
	t.Parallel()
	rule := journal.Rule{Runs: journal.None, Keep: 8}
	jobs := []lowkiq.Job{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	if lines := (&callResult{}).doneRuns(&rule, jobs); lines.Len() != 0 {
		t.Errorf("no id is tracked: got %d places", lines.Len())
	}
	rule.Track([]string{"x"})
	if lines := (&callResult{}).doneRuns(&rule, jobs); lines.Len() != 0 {
		t.Errorf("another id is tracked: got %d places", lines.Len())
	}
	rule.Track([]string{"b"})
	if lines := (&callResult{}).doneRuns(&rule, jobs); lines.Len() != 3 || lines.Lines() != 1 {
		t.Errorf("one of three is tracked: got %d lines at %d places", lines.Lines(), lines.Len())
	}
	if !rule.Keeps(journal.Failed, "b") || rule.Keeps(journal.Failed, "a") {
		t.Error("a failure of a tracked id gets a line, that of another does not")
	}
}
