package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Target takes pushes. [Queue] and lowkiqtest.Queue are targets.
type Target interface {
	Push(ctx context.Context, jobs ...lowkiq.Push) ([]Result, error)
}

// Typed pushes payloads of type P to a queue, as JSON. lowkiq.Each and lowkiq.Mux decode them.
type Typed[P any] struct{ target Target }

// NewTyped returns a Typed that pushes to a queue.
func NewTyped[P any](target Target) Typed[P] { return Typed[P]{target} }

// TypedPush is a [lowkiq.Push] with a payload of type P.
type TypedPush[P any] struct {
	ID        string
	Payload   P
	Score     *float64
	PerformAt time.Time
	Urgent    bool
	Header    map[string]string
}

// Push pushes a payload for an id. See [Queue.Push].
func (q Typed[P]) Push(ctx context.Context, id string, payload P) error {
	return q.PushAll(ctx, TypedPush[P]{ID: id, Payload: payload})
}

// PushAll pushes payloads. If a payload cannot be encoded, it pushes none and returns the encoder's error.
// Otherwise a nil error means that all are stored, and a *[PushError] has the result of each.
func (q Typed[P]) PushAll(ctx context.Context, jobs ...TypedPush[P]) error {
	pushes := make([]lowkiq.Push, len(jobs))
	for i := range jobs {
		job := &jobs[i]
		data, err := json.Marshal(job.Payload)
		if err != nil {
			return fmt.Errorf("encode the payload for id %.40q, job %d of %d: %w", job.ID, i+1, len(jobs), err)
		}
		pushes[i] = lowkiq.Push{ID: job.ID, Payload: data, Score: job.Score, PerformAt: job.PerformAt, Urgent: job.Urgent, Header: job.Header}
	}
	results, err := q.target.Push(ctx, pushes...)
	if err == nil {
		return nil
	}
	if len(results) != len(pushes) { // the queue is unknown, or closed
		return err
	}
	return &PushError{pushes, results, err}
}

// PushError says which jobs of a push are not stored, or may not be. errors.Is finds the error of each.
type PushError struct {
	Pushes  []lowkiq.Push
	Results []Result // one for each push

	err error // of the push; a middleware may return it beside results without errors
}

const maxPushErrors = 3 // in the text of a PushError

// Error counts the jobs that are not stored, and names the first.
func (e *PushError) Error() string {
	var text strings.Builder
	failed := 0
	for i, r := range e.Results {
		if r.Err == nil {
			continue
		}
		if failed++; failed <= maxPushErrors {
			fmt.Fprintf(&text, "; id %.40q: %v", e.Pushes[i].ID, r.Err)
		}
	}
	if failed > maxPushErrors {
		fmt.Fprintf(&text, "; and %d more", failed-maxPushErrors)
	}
	if failed == 0 {
		return e.err.Error()
	}
	return fmt.Sprintf("%d of %d jobs are not stored%s", failed, len(e.Results), text.String())
}

// Unwrap returns the errors of the jobs that are not stored, and the error of the push.
func (e *PushError) Unwrap() []error {
	errs := []error{e.err}
	for _, r := range e.Results {
		if r.Err != nil {
			errs = append(errs, r.Err)
		}
	}
	return errs
}
