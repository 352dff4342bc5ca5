package node

import (
	"errors"
	"math"
	"math/rand/v2"
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

// plainError is the default of Config.FormatError.
func plainError(err error) string { return err.Error() }

// verdict is what becomes of one job after a handler call.
type verdict struct {
	done     bool
	nack     queue.Nack   // if it goes back
	burial   queue.Burial // if it ran out of retries
	exhausts bool
	err      error
}

// decide turns a handler's answer into verdicts, one per job of the batch.
func decide(rules *QueueConfig, format func(error) string, batch *lowkiq.Batch, answer error) []verdict {
	verdicts := make([]verdict, len(batch.Jobs))
	var failed lowkiq.Failed
	perID := errors.As(answer, &failed)
	for i := range batch.Jobs {
		job := &batch.Jobs[i]
		err := answer
		if perID {
			err = failed[job.ID]
		}
		verdicts[i] = decideJob(rules, format, batch.Flight, job, err)
	}
	return verdicts
}

// decideJob is the verdict on one job.
func decideJob(rules *QueueConfig, format func(error) string, flight int64, job *lowkiq.Job, err error) verdict {
	if err == nil {
		return verdict{done: true}
	}
	var postpone lowkiq.Postpone
	if errors.As(err, &postpone) {
		return verdict{nack: queue.Nack{Flight: flight, ID: job.ID, Kind: queue.Postpone, Delay: max(0, postpone.After)}, err: err}
	}
	count := job.RetryCount + 1
	// Lowkiq's rule: a job whose retry count has reached the limit is exhausted.
	if count >= max(0, rules.MaxRetryCount) {
		return verdict{exhausts: true, err: err, burial: queue.Burial{
			Flight: flight, ID: job.ID, Policy: rules.Exhausted, RetryCount: count, Error: format(err)}}
	}
	return verdict{err: err, nack: queue.Nack{
		Flight: flight, ID: job.ID, Kind: queue.Retry, RetryCount: count, Delay: max(0, rules.RetryIn(count)), Error: format(err)}}
}

// outcome is the verdicts on a batch, sorted by what is to be sent to Redis.
type outcome struct {
	done      []lowkiq.Job
	nacks     []queue.Nack
	burials   []queue.Burial
	exhausted []exhausted
}

type exhausted struct {
	job lowkiq.Job
	err error
}

func outcomeOf(batch *lowkiq.Batch, verdicts []verdict) (all outcome) {
	for i, v := range verdicts {
		switch {
		case v.done:
			all.done = append(all.done, batch.Jobs[i])
		case v.exhausts:
			all.burials = append(all.burials, v.burial)
			all.exhausted = append(all.exhausted, exhausted{batch.Jobs[i], v.err})
		default:
			all.nacks = append(all.nacks, v.nack)
		}
	}
	return all
}
