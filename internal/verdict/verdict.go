// Package verdict decides what a handler's answer means for each job of its batch: done, back to the
// queue with or without a retry, or buried. It does no I/O. The runner of a node and the queues of
// lowkiqtest decide by it.
package verdict

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Rules has the rules of a queue, and the functions of a program that change its answers.
type Rules struct {
	rules.Rules
	RetryFunc   func(count int) time.Duration // in place of the rule retry_in; may be nil
	FormatError func(error) string
	// Encode returns results and states in their stored form. nil stores them unchanged.
	Encode func([]byte) ([]byte, error)
	Decode func([]byte) ([]byte, error) // of payloads that the rule then passes on; nil leaves them unchanged
}

// retryIn is the delay before the next attempt.
func (r *Rules) retryIn(count int) time.Duration {
	if r.RetryFunc != nil {
		return r.RetryFunc(count)
	}
	return r.RetryIn.Delay(count)
}

// verdict is the decision about a job after a handler call.
type verdict struct {
	done     bool
	nack     protocol.Nack   // of a job that goes back
	burial   protocol.Burial // of a job that is out of retries, has expired or was cancelled; else without a policy
	exhausts bool            // the job is out of retries
	err      error
}

// decideJobs turns a handler's answer into a verdict for each job of the batch.
func decideJobs(rules *Rules, batch *lowkiq.Batch, answer error) []verdict {
	verdicts := make([]verdict, len(batch.Jobs))
	for i, err := range PerJob(batch.Jobs, answer) {
		verdicts[i] = decideJob(rules, batch.Flight, &batch.Jobs[i], err)
	}
	return verdicts
}

// errUnexplained is the failure of a job that was named as failed without an error.
var errUnexplained = errors.New("handler named it as failed, without an error")

// PerJob returns the error of each job by an answer, nil for done. Jobs that a [lowkiq.Failed] does not
// name are done, unless the Failed is joined with other errors, because these may be about any job. All
// jobs fail if the Failed names an id that is not among them.
func PerJob(jobs []lowkiq.Job, answer error) []error {
	errs := make([]error, len(jobs))
	failed, rest := splitFailed(answer)
	whole := answer
	if failed != nil { // an answer about an id, such as Bury, says nothing of other ids
		whole = nil
		if rest {
			whole = errors.New(answer.Error())
		}
	}
	for i := range errs {
		errs[i] = whole
	}
	left := len(failed)
	for i := range jobs {
		err, ok := failed[jobs[i].ID]
		switch {
		case !ok:
			continue
		case err == nil:
			err = errUnexplained
		}
		errs[i] = err
		left--
	}
	if left > 0 {
		unknownID := fmt.Errorf("handler named ids as failed that are not in the batch, so all of it counts as failed: %v", answer) //nolint:errorlint // as above
		for i := range errs {
			errs[i] = unknownID
		}
	}
	return errs
}

// splitFailed returns the Failed in an answer, or nil. rest reports whether there are other errors beside it.
func splitFailed(answer error) (failed lowkiq.Failed, rest bool) {
	if failed, ok := answer.(lowkiq.Failed); ok { //nolint:errorlint // a Failed within a Failed does not count
		if failed == nil {
			failed = lowkiq.Failed{}
		}
		return failed, false
	}
	switch wrapper := answer.(type) { //nolint:errorlint // this is the unwrapping
	case interface{ Unwrap() error }:
		return splitFailed(wrapper.Unwrap())
	case interface{ Unwrap() []error }:
		errs := wrapper.Unwrap()
		for _, err := range errs {
			if failed, rest := splitFailed(err); failed != nil {
				return failed, rest || len(errs) > 1
			}
		}
	}
	return nil, false
}

// NamesJobs reports whether an answer tells the jobs of its batch apart.
func NamesJobs(answer error) bool {
	failed, _ := splitFailed(answer)
	return failed != nil
}

// decideJob returns the verdict on a job.
func decideJob(rules *Rules, flight int64, job *lowkiq.Job, err error) verdict {
	if err == nil {
		return verdict{done: true}
	}
	if run := (*cancelledRun)(nil); errors.As(err, &run) {
		return run.verdict(flight, job)
	}
	if late := (*expired)(nil); errors.As(err, &late) {
		return late.verdict(flight, job)
	}
	if l := (*AtLimit)(nil); errors.As(err, &l) {
		return verdict{err: err, nack: l.Nack(flight, job)}
	}
	count := job.RetryCount + 1
	var bury lowkiq.Bury
	if errors.As(err, &bury) {
		if places, ok := buriedPlaces(&bury, len(job.Payloads)); ok {
			return verdict{exhausts: true, err: err, burial: protocol.Burial{
				Flight: flight, ID: job.ID, Policy: protocol.Bury, Places: places, RetryCount: count, Error: rules.FormatError(err)}}
		}
		err = fmt.Errorf("the handler buries the payloads at %v of a job that has %d: %s", bury.Payloads, len(job.Payloads), bury.Error())
	}
	var postpone lowkiq.Postpone
	if errors.As(err, &postpone) {
		return verdict{nack: protocol.Nack{Flight: flight, ID: job.ID, Kind: protocol.Postpone, RetryCount: job.RetryCount, Delay: boundDelay(postpone.After), Error: postpone.Reason,
			Group: errors.As(err, new(*groupStopped))}, err: err}
	}
	var l lowkiq.Throttle
	if errors.As(err, &l) {
		return verdict{nack: protocol.Nack{Flight: flight, ID: job.ID, Kind: protocol.Postpone, RetryCount: job.RetryCount, Delay: boundDelay(l.For), Error: l.Error()}, err: err}
	}
	// As in Ruby's Lowkiq, a job whose retry count has reached the limit is exhausted.
	if count >= max(0, rules.MaxRetryCount) {
		return verdict{exhausts: true, err: err, burial: protocol.Burial{
			Flight: flight, ID: job.ID, Policy: rules.Exhausted, RetryCount: count, Error: rules.FormatError(err)}}
	}
	return verdict{err: err, nack: protocol.Nack{
		Flight: flight, ID: job.ID, Kind: protocol.Retry, RetryCount: count, Delay: boundDelay(rules.retryIn(count)), Error: rules.FormatError(err)}}
}

// buriedPlaces returns the places of the payloads to bury, nil for all n. ok is false if the answer names a payload that the
// job does not have.
func buriedPlaces(bury *lowkiq.Bury, n int) (places []int, ok bool) {
	places = slices.Compact(slices.Sorted(slices.Values(bury.Payloads)))
	switch {
	case len(places) == 0 || len(places) == n && places[0] == 0 && places[n-1] == n-1:
		return nil, true
	case places[0] < 0 || places[len(places)-1] >= n:
		return nil, false
	}
	return places, true
}

// Outcome is the decision about the jobs of a batch, sorted by the requests to Redis that it takes.
type Outcome struct {
	Done      []lowkiq.Job
	Nacks     []protocol.Nack
	Burials   []protocol.Burial
	Exhausted []lowkiq.Ended // jobs that are not tried again
	Buried    []lowkiq.Ended // jobs with the payloads that go to the morgue, for any reason
}

// Expired returns how many payloads have expired.
func (o *Outcome) Expired() (n int) {
	for i := range o.Burials {
		n += o.Burials[i].Expired
	}
	return n
}

// Retries returns the nacks of jobs that failed.
func (o *Outcome) Retries() (failed []protocol.Nack) {
	for _, n := range o.Nacks {
		if n.Kind == protocol.Retry {
			failed = append(failed, n)
		}
	}
	return failed
}

// FailedForGood returns the burials of jobs that failed for the last time: jobs that go to the morgue, and jobs that wait
// for a person. Jobs that people bury and jobs that have expired did not fail.
func (o *Outcome) FailedForGood() (buried, blocked []protocol.Burial) {
	for i := range o.Burials {
		switch b := o.Burials[i]; {
		case b.Policy == protocol.Drop || b.Cancelled || b.Expired > 0:
		case b.Policy == protocol.Block:
			blocked = append(blocked, b)
		default:
			buried = append(buried, b)
		}
	}
	return buried, blocked
}

// Decide returns what a handler's answer means for each job of its batch.
func Decide(rules *Rules, batch *lowkiq.Batch, answer error) (all Outcome) {
	for i, v := range decideJobs(rules, batch, answer) {
		switch {
		case v.done:
			all.Done = append(all.Done, batch.Jobs[i])
		case v.burial.Policy != "":
			all.Burials = append(all.Burials, v.burial)
			if v.exhausts {
				ended := lowkiq.Ended{Job: batch.Jobs[i], Err: v.err}
				if v.burial.Places != nil {
					ended.Payloads = v.burial.ToMorgue(ended.Payloads)
				}
				all.Exhausted = append(all.Exhausted, ended)
			}
			if payloads := v.burial.ToMorgue(batch.Jobs[i].Payloads); len(payloads) > 0 {
				gone := lowkiq.Ended{Job: batch.Jobs[i], Err: v.err}
				gone.Payloads = payloads
				all.Buried = append(all.Buried, gone)
			}
		default:
			all.Nacks = append(all.Nacks, v.nack)
		}
	}
	return all
}

// PanicError is the failure of a handler that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }
