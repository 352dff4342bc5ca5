package runner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// DefaultRetryIn is Lowkiq's delay: count^4 + 15 + rand(30) * (count+1) seconds, where
// count is 0 after the first failure.
func DefaultRetryIn(count int) time.Duration {
	seconds := math.Pow(float64(count), 4) + 15 + rand.Float64()*30*float64(count+1)
	return time.Duration(min(seconds, longestRetry) * float64(time.Second))
}

// longestRetry keeps large counts within a time.Duration: a hundred years, in seconds.
const longestRetry = 100 * 365 * 24 * 3600

// delay keeps what users ask for within what timers and due times can hold.
func delay(d time.Duration) time.Duration { return min(max(d, 0), longestRetry*time.Second) }

// verdict is what becomes of one job after a handler call.
type verdict struct {
	done     bool
	nack     queue.Nack   // if it goes back
	burial   queue.Burial // if it has a policy: it ran out of retries, or a person asks for it
	exhausts bool         // it ran out of retries
	err      error
}

// decide turns a handler's answer into verdicts, one per job of the batch.
func decide(rules *Rules, batch *lowkiq.Batch, answer error) []verdict {
	verdicts := make([]verdict, len(batch.Jobs))
	for i, err := range perJob(batch.Jobs, answer) {
		verdicts[i] = decideJob(rules, batch.Flight, &batch.Jobs[i], err)
	}
	return verdicts
}

// errUnexplained is the failure of a job that was named as failed without an error.
var errUnexplained = errors.New("handler named it as failed, without an error")

// perJob is what an answer says of each job, nil for done. The jobs that a [lowkiq.Failed] does not
// name are done, unless it is joined with other errors: then it is unknown which jobs these are
// about. Likewise all fail if it names an id that is not among them.
func perJob(jobs []lowkiq.Job, answer error) []error {
	errs := make([]error, len(jobs))
	failed, rest := named(answer)
	whole := answer
	if failed != nil { // what it says of one id, to bury it say, is not said of the others
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
		stranger := fmt.Errorf("handler named ids as failed that are not in the batch, so all of it counts as failed: %v", answer) //nolint:errorlint // as above
		for i := range errs {
			errs[i] = stranger
		}
	}
	return errs
}

// named finds the Failed in an answer, nil if there is none. rest says that there are other errors
// beside it.
func named(answer error) (failed lowkiq.Failed, rest bool) {
	if failed, ok := answer.(lowkiq.Failed); ok { //nolint:errorlint // a Failed within a Failed is none of ours
		if failed == nil {
			failed = lowkiq.Failed{}
		}
		return failed, false
	}
	switch wrapper := answer.(type) { //nolint:errorlint // this is the unwrapping
	case interface{ Unwrap() error }:
		return named(wrapper.Unwrap())
	case interface{ Unwrap() []error }:
		errs := wrapper.Unwrap()
		for _, err := range errs {
			if failed, rest := named(err); failed != nil {
				return failed, rest || len(errs) > 1
			}
		}
	}
	return nil, false
}

// decideJob is the verdict on one job.
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
	if l := (*limited)(nil); errors.As(err, &l) {
		return l.verdict(flight, job)
	}
	count := job.RetryCount + 1
	var bury lowkiq.Bury
	if errors.As(err, &bury) {
		return verdict{exhausts: true, err: err, burial: queue.Burial{
			Flight: flight, ID: job.ID, Policy: queue.Bury, RetryCount: count, Error: rules.FormatError(err)}}
	}
	var postpone lowkiq.Postpone
	if errors.As(err, &postpone) {
		return verdict{nack: queue.Nack{Flight: flight, ID: job.ID, Kind: queue.Postpone, RetryCount: job.RetryCount, Delay: delay(postpone.After), Error: postpone.Reason,
			Group: errors.As(err, new(*groupStopped))}, err: err}
	}
	var l lowkiq.Limit
	if errors.As(err, &l) {
		return verdict{nack: queue.Nack{Flight: flight, ID: job.ID, Kind: queue.Postpone, RetryCount: job.RetryCount, Delay: delay(l.For), Error: l.Error()}, err: err}
	}
	// Lowkiq's rule: a job whose retry count has reached the limit is exhausted.
	if count >= max(0, rules.MaxRetryCount) {
		return verdict{exhausts: true, err: err, burial: queue.Burial{
			Flight: flight, ID: job.ID, Policy: rules.Exhausted, RetryCount: count, Error: rules.FormatError(err)}}
	}
	return verdict{err: err, nack: queue.Nack{
		Flight: flight, ID: job.ID, Kind: queue.Retry, RetryCount: count, Delay: delay(rules.RetryIn(count)), Error: rules.FormatError(err)}}
}

// Outcome is what becomes of the jobs of a batch, sorted by what is to be sent to Redis.
type Outcome struct {
	Done      []lowkiq.Job
	Nacks     []queue.Nack
	Burials   []queue.Burial
	Exhausted []lowkiq.Ended // jobs that are not tried again
	Buried    []lowkiq.Ended // jobs with the payloads that go to the morgue, whatever the reason
}

// expired is how many payloads the burials are about whose time was over.
func (o *Outcome) expired() (n int) {
	for i := range o.Burials {
		n += o.Burials[i].Expired
	}
	return n
}

// retries are the nacks of jobs that failed.
func (o *Outcome) retries() (failed []queue.Nack) {
	for _, n := range o.Nacks {
		if n.Kind == queue.Retry {
			failed = append(failed, n)
		}
	}
	return failed
}

// failedForGood are the burials of jobs that failed for the last time: those that go to the morgue, and those that wait for a
// person. What people bury and what has expired did not fail.
func (o *Outcome) failedForGood() (buried, blocked []queue.Burial) {
	for i := range o.Burials {
		switch b := o.Burials[i]; {
		case b.Policy == queue.Drop || b.Cancelled || b.Expired > 0:
		case b.Policy == queue.Block:
			blocked = append(blocked, b)
		default:
			buried = append(buried, b)
		}
	}
	return buried, blocked
}

// Decide is what a handler's answer means for each job of its batch.
func Decide(rules *Rules, batch *lowkiq.Batch, answer error) (all Outcome) {
	for i, v := range decide(rules, batch, answer) {
		switch {
		case v.done:
			all.Done = append(all.Done, batch.Jobs[i])
		case v.burial.Policy != "":
			all.Burials = append(all.Burials, v.burial)
			if v.exhausts {
				all.Exhausted = append(all.Exhausted, lowkiq.Ended{Job: batch.Jobs[i], Err: v.err})
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

// Decoded wraps a handler so that it gets decoded payloads and states. One that cannot be decoded
// fails its job only.
func Decoded(decode func([]byte) ([]byte, error), next lowkiq.Handler) lowkiq.Handler {
	return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
		failed := lowkiq.Failed{}
		good := *batch
		good.Jobs = nil
		for _, job := range batch.Jobs {
			payloads := slices.Clone(job.Payloads)
			var err error
			for i := range payloads {
				if payloads[i].Data, err = decode(payloads[i].Data); err != nil {
					break
				}
			}
			if err == nil && job.State != nil {
				if job.State, err = decode(job.State); err != nil {
					err = fmt.Errorf("its state: %w", err)
				}
				job.State = some(job.State)
			}
			if err != nil {
				failed[job.ID] = err
				continue
			}
			job.Payloads = payloads
			good.Jobs = append(good.Jobs, job)
		}
		if len(good.Jobs) == 0 {
			return failed
		}
		return merged(&good, next.Handle(ctx, &good), failed)
	})
}

// merged joins the answer for the decoded part of a batch with the failures of the rest.
func merged(part *lowkiq.Batch, answer error, failed lowkiq.Failed) error {
	if len(failed) == 0 {
		return answer
	}
	for i, err := range perJob(part.Jobs, answer) {
		if err != nil {
			failed[part.Jobs[i].ID] = err
		}
	}
	return failed
}
