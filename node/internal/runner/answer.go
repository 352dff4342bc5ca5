package runner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// answers are what Redis is to store with the ends of these jobs: what their handler has said of
// them, and to whom it is to be told. nil in all queues that use neither.
func (q *Queue) answers(jobs []lowkiq.Job, said map[string]lowkiq.Answered) (answers []queue.Answer) {
	for i := range jobs {
		job := &jobs[i]
		if job.Callers == 0 && said == nil {
			continue
		}
		answer, ok := said[job.ID]
		if job.Callers == 0 && (!ok || !answer.Stated) {
			continue // a result is for callers
		}
		bytes := 0
		for k := range job.Payloads {
			bytes += len(job.Payloads[k].Data) + len(job.Payloads[k].Header)
		}
		answers = append(answers, queue.Answer{
			ID: job.ID, Called: job.Callers > 0, Result: answer.Result, State: answer.State, Stated: answer.Stated,
			StateFor: q.StateFor, Bytes: bytes,
		})
	}
	return answers
}

// Errors of answers that cannot be stored.
var (
	errNoStates = errors.New("the handler answered with a state, and the queue keeps none: its rule state says how long they are kept")
)

// objections says what is wrong with what a handler has said of its jobs, together with its answer.
func (q *Queue) objections(batch *lowkiq.Batch, said map[string]lowkiq.Answered, answer error) error {
	tooLong := lowkiq.Failed{}
	for id, one := range said {
		switch {
		case !slices.ContainsFunc(batch.Jobs, func(job lowkiq.Job) bool { return job.ID == id }):
			return join(answer, fmt.Errorf("the handler answered about id %.40q, which is not in the batch, so all of it counts as failed", id))
		case one.Stated && !q.States:
			return join(answer, errNoStates)
		case len(one.Result) > lowkiq.MaxResultBytes:
			tooLong[id] = fmt.Errorf("its result is %d bytes, at most %d are allowed", len(one.Result), lowkiq.MaxResultBytes)
		case len(one.State) > lowkiq.MaxStateBytes:
			tooLong[id] = fmt.Errorf("its state is %d bytes, at most %d are allowed", len(one.State), lowkiq.MaxStateBytes)
		}
	}
	if len(tooLong) == 0 {
		return answer
	}
	return merged(batch, answer, tooLong)
}

// join adds a failure of the whole batch to its handler's answer.
func join(answer, err error) error {
	if answer == nil {
		return err
	}
	return errors.Join(answer, err)
}
