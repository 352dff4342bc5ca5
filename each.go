package lowkiq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Each returns a handler that decodes payloads from JSON and calls f for each of them. An empty payload, as
// of a recurring entry without a payload, is the zero value of P. See [EachWith].
func Each[P any](f func(ctx context.Context, id string, payload P) error) Handler {
	return EachWith(decodeJSON, f)
}

func decodeJSON(data []byte, value any) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, value)
}

// EachWith returns a handler that decodes payloads and calls f for each of them, one at a time.
//
// decode stores the value of data in the P that value points to, as json.Unmarshal does. The handler
// decodes all payloads of an id before it calls f for the first of them. A payload that cannot be decoded
// goes to the morgue with the error as its reason. The other payloads of that id come again at once, and
// this does not count as a retry.
//
// f gets the payloads of an id in order. An error is an answer about that id alone: f does not
// get the later payloads of the id in this batch, but those of the next id. All payloads of a
// failed id come again with the retry, so f must be idempotent. [Postpone], [Throttle] and [Bury] have their
// usual meaning for the id. A panic fails the whole batch. [JobFrom] returns the job of the payload.
//
// When ctx ends, f is not called again. An id is postponed if f has got none of its payloads. EachWith panics if decode or f
// is nil.
func EachWith[P any](decode func(data []byte, value any) error, f func(ctx context.Context, id string, payload P) error) Handler {
	if decode == nil || f == nil {
		panic("lowkiq: a nil decoder or function for payloads")
	}
	return eachHandler{func(p Payload) (payloadFunc, error) { return bindPayload(decode, p.Data, f) }}
}

// payloadFunc handles a payload that has been decoded.
type payloadFunc func(ctx context.Context, id string) error

func bindPayload[P any](decode func([]byte, any) error, data []byte, f func(context.Context, string, P) error) (payloadFunc, error) {
	var value P
	if err := decode(data, &value); err != nil {
		return nil, err
	}
	return func(ctx context.Context, id string) error { return f(ctx, id, value) }, nil
}

// eachHandler calls a function for each payload.
type eachHandler struct {
	// bind decodes a payload and returns the call for it. An error buries the payload, but a retryError
	// fails its id.
	bind func(Payload) (payloadFunc, error)
}

type retryError struct{ error }

// Handle answers about each id that is not done.
func (h eachHandler) Handle(ctx context.Context, batch *Batch) error {
	failed := Failed{}
	for i := range batch.Jobs {
		job := &batch.Jobs[i]
		if ctx.Err() != nil {
			failed[job.ID] = Postpone{Reason: fmt.Sprintf("not begun: %v", context.Cause(ctx))}
		} else if err := h.handleJob(ctx, batch, job); err != nil {
			failed[job.ID] = err
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}

// handleJob handles the payloads of an id.
func (h eachHandler) handleJob(ctx context.Context, batch *Batch, job *Job) (err error) {
	calls := make([]payloadFunc, len(job.Payloads))
	var bury Bury
	for i, p := range job.Payloads {
		calls[i], err = h.bind(p)
		switch retry := (*retryError)(nil); {
		case errors.As(err, &retry):
			return retry.error
		case err != nil:
			bury.Payloads = append(bury.Payloads, i)
			if bury.Reason == "" {
				bury.Reason = fmt.Sprintf("payload %d of %d: %v", i+1, len(job.Payloads), err)
			}
		}
	}
	if len(bury.Payloads) > 0 {
		return bury
	}
	for i, call := range calls {
		if i > 0 && ctx.Err() != nil {
			return fmt.Errorf("%d of %d payloads were handled: %w", i, len(calls), context.Cause(ctx))
		}
		if err := call(withJob(ctx, batch, job, i), job.ID); err != nil {
			return err
		}
	}
	return nil
}

// CurrentJob is the payload that a function of [Each], [EachWith] or a [Mux] handles, with its job.
type CurrentJob struct {
	ID           string
	Shard        Shard
	Fence        int64 // see Batch.Fence
	Score        float64
	Header       Header
	Attempt      int       // 1 for the first attempt
	LastError    string    // the text of the last failure; "" for none
	WaitingSince time.Time // see Job.WaitingSince
	Callers      int       // see Job.Callers

	batch *Batch
	state []byte // when the batch began
}

type jobKey struct{}

func withJob(ctx context.Context, batch *Batch, job *Job, payload int) context.Context {
	p := &job.Payloads[payload]
	return context.WithValue(ctx, jobKey{}, &CurrentJob{
		ID: job.ID, Shard: batch.Shard, Fence: batch.Fence, Score: p.Score, Header: p.Header,
		Attempt: job.RetryCount + 2, LastError: job.Error, WaitingSince: job.WaitingSince, Callers: job.Callers,
		batch: batch, state: job.State,
	})
}

// JobFrom returns the payload that is handled, with its job. It returns nil if ctx does not come from
// [Each], [EachWith] or a [Mux].
func JobFrom(ctx context.Context) *CurrentJob {
	job, _ := ctx.Value(jobKey{}).(*CurrentJob)
	return job
}

// State returns the state of the id, with the changes that this batch has made. nil means none.
func (j *CurrentJob) State() []byte {
	if now, ok := j.batch.Answers()[j.ID]; ok && now.Stated {
		return now.State
	}
	return j.state
}

// SetState sets the state of the id; see [Answer.State]. Redis keeps it once all payloads of the batch
// that belong to the id are done. If the id fails, its retry begins with the former state.
func (j *CurrentJob) SetState(data []byte) { j.batch.Answer(j.ID).State(data) }

// SetResult sets the result for the callers of the job; see [Answer.Result].
func (j *CurrentJob) SetResult(data []byte) { j.batch.Answer(j.ID).Result(data) }

// Note reports progress; see [Batch.Note].
func (j *CurrentJob) Note(ctx context.Context, note Note) error { return j.batch.Note(ctx, j.ID, note) }
