package runner

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Spoken is what a handler has said of the jobs of its batch beside done or failed.
type Spoken struct {
	Answers map[string]lowkiq.Answered
	Noted   map[string]time.Time // ids with notes, which end with their jobs
}

// Answers are what Redis is to store with the ends of these jobs: what their handler has said of
// them, and to whom it is to be told. nil in all queues that use neither.
func (r *Rules) Answers(jobs []lowkiq.Job, said Spoken) (answers []queue.Answer) {
	for i := range jobs {
		job := &jobs[i]
		if job.Callers == 0 && said.Answers == nil && said.Noted == nil {
			continue
		}
		answer := said.Answers[job.ID]
		_, noted := said.Noted[job.ID]
		if job.Callers == 0 && !answer.Stated && !noted {
			continue // a result is for callers
		}
		bytes := 0
		for k := range job.Payloads {
			bytes += len(job.Payloads[k].Data) + len(job.Payloads[k].Header)
		}
		answers = append(answers, queue.Answer{
			ID: job.ID, Callers: job.Callers, Bytes: bytes, Result: answer.Result, State: answer.State, Stated: answer.Stated,
			Noted: noted, StateFor: r.StateFor,
		})
	}
	return answers
}

var errNoStates = errors.New("the handler answered with a state, and the queue keeps none: its rule state says how long they are kept")

// Objections says what is wrong with what a handler has said of its jobs, together with its answer. It
// puts results and states into the form in which they are stored; said is the caller's alone.
func (r *Rules) Objections(batch *lowkiq.Batch, said map[string]lowkiq.Answered, answer error) error {
	failed, ids := lowkiq.Failed{}, map[string]bool{}
	for i := range batch.Jobs {
		ids[batch.Jobs[i].ID] = true
	}
	for id, one := range said {
		switch {
		case !ids[id]:
			return join(answer, fmt.Errorf("the handler answered about id %.40q, which is not in the batch, so all of it counts as failed", id))
		case one.Stated && !r.States:
			return join(answer, errNoStates)
		}
		if r.Encode != nil {
			var err error
			if one, err = encoded(r.Encode, one); err != nil {
				failed[id] = fmt.Errorf("encode its answer: %w", err)
				continue
			}
			said[id] = one
		}
		switch {
		case len(one.Result) > lowkiq.MaxResultBytes:
			failed[id] = fmt.Errorf("its result is %d bytes, at most %d are allowed", len(one.Result), lowkiq.MaxResultBytes)
		case len(one.State) > lowkiq.MaxStateBytes:
			failed[id] = fmt.Errorf("its state is %d bytes, at most %d are allowed", len(one.State), lowkiq.MaxStateBytes)
		}
	}
	if len(failed) == 0 {
		return answer
	}
	return merged(batch, answer, failed)
}

// encoded is an answer as it is stored: by the codec of the queue's payloads, which may be secret.
func encoded(encode func([]byte) ([]byte, error), one lowkiq.Answered) (_ lowkiq.Answered, err error) {
	defer func() {
		if value := recover(); value != nil { // of user code: it must not end the process
			err = &PanicError{value, debug.Stack()}
		}
	}()
	var err1, err2 error
	if one.Result != nil {
		one.Result, err1 = encode(one.Result)
		one.Result = some(one.Result)
	}
	if one.State != nil {
		one.State, err2 = encode(one.State)
		one.State = some(one.State)
	}
	return one, errors.Join(err1, err2)
}

// some is never nil, which would be no result and no state: a codec may make that of zero bytes.
func some(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}

// Keepable gives a note's state the form in which it is stored, or says why it cannot be.
func (r *Rules) Keepable(note *lowkiq.Note) error {
	if note.State == nil {
		return nil
	}
	if !r.States {
		return errNoStates
	}
	if r.Encode == nil {
		return nil
	}
	one, err := encoded(r.Encode, lowkiq.Answered{State: note.State})
	if err != nil {
		return fmt.Errorf("encode its state: %w", err)
	}
	note.State = one.State
	return nil
}

// join adds a failure of the whole batch to its handler's answer.
func join(answer, err error) error {
	if answer == nil {
		return err
	}
	return errors.Join(answer, err)
}
