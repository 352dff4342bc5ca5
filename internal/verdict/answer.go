package verdict

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Reports are what a handler has reported about the jobs of its batch besides done or failed.
type Reports struct {
	Answers map[string]lowkiq.Answered // results and states, by id
	Notes   map[string]time.Time       // ids with notes, which end with their jobs
	// FollowUps has follow-ups by id, as their queues store them; see Rules.AddFollowUps.
	FollowUps map[string][]protocol.FollowUp
}

// Stored returns the answers that Redis stores with the ends of jobs: results for callers, follow-ups, and states,
// which Redis keeps for stateFor. It returns nil in queues that use none of them.
func (r Reports) Stored(jobs []lowkiq.Job, stateFor time.Duration) (answers []protocol.Answer) {
	for i := range jobs {
		job := &jobs[i]
		if job.Callers == 0 && r.Answers == nil && r.Notes == nil && r.FollowUps == nil {
			continue
		}
		answer := r.Answers[job.ID]
		_, noted := r.Notes[job.ID]
		then := r.FollowUps[job.ID]
		if job.Callers == 0 && !answer.Stated && !noted && then == nil {
			continue // a result is for callers
		}
		bytes := 0
		for k := range job.Payloads {
			bytes += len(job.Payloads[k].Data) + len(job.Payloads[k].Header)
		}
		answers = append(answers, protocol.Answer{
			ID: job.ID, Callers: job.Callers, Bytes: bytes, Result: answer.Result, State: answer.State, SetState: answer.Stated, Then: then,
			HasNotes: noted, StateFor: stateFor,
		})
	}
	return answers
}

// ErrNoStates is the error of a state in a queue that keeps none.
var ErrNoStates = errors.New("the handler answered with a state, and the queue keeps none: its rule state says how long they are kept")

// CheckAnswers joins an answer with the errors of the results and states that came with it. It
// replaces these by their stored form; only the caller may use the map.
func (r *Rules) CheckAnswers(batch *lowkiq.Batch, answers map[string]lowkiq.Answered, answer error) error {
	failed, ids := lowkiq.Failed{}, map[string]bool{}
	for i := range batch.Jobs {
		ids[batch.Jobs[i].ID] = true
	}
	for id, one := range answers {
		switch {
		case !ids[id]:
			return joinErrors(answer, fmt.Errorf("the handler answered about id %.40q, which is not in the batch, so all of it counts as failed", id))
		case one.Stated && r.State == 0:
			return joinErrors(answer, ErrNoStates)
		}
		if r.Encode != nil {
			var err error
			if one, err = encodeAnswer(r.Encode, one); err != nil {
				failed[id] = fmt.Errorf("encode its answer: %w", err)
				continue
			}
			answers[id] = one
		}
		switch {
		case len(one.Then) > lowkiq.MaxFollowUps:
			failed[id] = fmt.Errorf("it has %d follow-ups, at most %d are allowed", len(one.Then), lowkiq.MaxFollowUps)
		case len(one.Result) > lowkiq.MaxResultBytes:
			failed[id] = fmt.Errorf("its result is %d bytes, at most %d are allowed", len(one.Result), lowkiq.MaxResultBytes)
		case len(one.State) > lowkiq.MaxStateBytes:
			failed[id] = fmt.Errorf("its state is %d bytes, at most %d are allowed", len(one.State), lowkiq.MaxStateBytes)
		}
	}
	if len(failed) == 0 {
		return answer
	}
	return mergeFailures(batch, answer, failed)
}

// encodeAnswer returns an answer in its stored form, made by the codec of the queue's payloads, which may be secret.
func encodeAnswer(encode func([]byte) ([]byte, error), one lowkiq.Answered) (_ lowkiq.Answered, err error) {
	defer func() {
		if value := recover(); value != nil { // a panic of user code must not end the process
			err = &PanicError{value, debug.Stack()}
		}
	}()
	var err1, err2 error
	if one.Result != nil {
		one.Result, err1 = encode(one.Result)
		one.Result = nonNil(one.Result)
	}
	if one.State != nil {
		one.State, err2 = encode(one.State)
		one.State = nonNil(one.State)
	}
	return one, errors.Join(err1, err2)
}

// nonNil returns data that is not nil. nil means no result or no state, and a codec may make it of zero bytes.
func nonNil(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}

// EncodeNote puts the state of a note into its stored form, or returns why the queue cannot keep it.
func (r *Rules) EncodeNote(note *lowkiq.Note) error {
	if note.State == nil {
		return nil
	}
	if r.State == 0 {
		return ErrNoStates
	}
	if r.Encode == nil {
		return nil
	}
	one, err := encodeAnswer(r.Encode, lowkiq.Answered{State: note.State})
	if err != nil {
		return fmt.Errorf("encode its state: %w", err)
	}
	note.State = one.State
	return nil
}

// joinErrors adds a failure of the whole batch to its handler's answer.
func joinErrors(answer, err error) error {
	if answer == nil {
		return err
	}
	return errors.Join(answer, err)
}
