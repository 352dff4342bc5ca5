package feed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// What waits for one id cannot be read: its push is refused, and the stream goes on.
func TestDamagedRecordRefusesItsLine(t *testing.T) {
	t.Parallel()
	s, r := &store{answer: func(_, _ int, job lowkiq.Push) *queue.Result {
		if job.ID == "2" {
			return &queue.Result{Err: fmt.Errorf("job 2: %w", queue.ErrDamaged)}
		}
		return nil
	}}, &refused{}
	f := &Feeder{Target: s, Shards: 4, Refused: r.add}
	got, err := f.Run(t.Context(), Input{"", strings.NewReader(lines(1, 3))})
	if want := (Summary{Pushed: 2, Refused: 1, Lines: 3, Line: 3}); got != want || err != nil || len(r.lines) != 1 {
		t.Errorf("got %+v %v, refused %q, want %+v and line 2 refused", got, err, r.lines, want)
	}
}

// Interrupted while Redis answers: what the answer says is stored is not to be pushed again.
func TestCancelCountsTheLastAnswer(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &store{answer: func(_, _ int, job lowkiq.Push) *queue.Result {
		cancel(stop)
		if job.ID == "3" {
			return &queue.Result{Err: context.Canceled}
		}
		return &queue.Result{}
	}}
	f := &Feeder{Target: s, Shards: 4}
	got, err := f.Run(ctx, Input{"", strings.NewReader(lines(1, 3) + lines(3, 3))})
	if got.Line != got.Pushed || got.Pushed == 0 || got.Pushed > 2 || !errors.Is(err, stop) {
		t.Errorf("got %+v %v, want the lines before the third counted, and %v", got, err, stop)
	}
}
