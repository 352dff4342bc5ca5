package runner

import (
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// A payload's time may be over before a handler has it: by its header expires, or else by the queue's rule. That is judged
// last of all before the call, as a batch may have waited for its turn. Payloads that have expired go to the morgue, or are
// forgotten; what is left of their job goes back to the head of the line, and no retry is spent.

// expire takes what has expired out of a batch. It reports whether anything is left, and whether Redis was told.
func (r *Runner) expire(batch *lowkiq.Batch, t *turn) (left, asked bool) {
	gone := r.late(batch)
	return r.without(gone, batch, t), len(gone) > 0
}

// late are the jobs of a batch of which payloads have expired.
func (r *Runner) late(batch *lowkiq.Batch) lowkiq.Failed {
	all := r.queue.rules()
	if all.Expire.After == 0 && !timed(batch.Jobs) {
		return nil
	}
	return all.Late(batch.Jobs, r.process.RedisTime(r.process.Now()))
}

// Late are the jobs of which payloads have expired by a time; [Decide] says what becomes of them.
func (r *Rules) Late(jobs []lowkiq.Job, now time.Time) lowkiq.Failed {
	gone := lowkiq.Failed{}
	for i := range jobs {
		if places := r.expired(&jobs[i], now); len(places) > 0 {
			gone[jobs[i].ID] = &expired{r.Expire.To, places, now}
		}
	}
	return gone
}

// timed reports whether payloads of a batch say when they expire.
func timed(jobs []lowkiq.Job) bool {
	for i := range jobs {
		for k := range jobs[i].Payloads {
			if _, ok := jobs[i].Payloads[k].Header.Expires(); ok {
				return true
			}
		}
	}
	return false
}

// expired are the places of the payloads of a job whose time is over.
func (r *Rules) expired(job *lowkiq.Job, now time.Time) (places []int) {
	for i := range job.Payloads {
		p := &job.Payloads[i]
		at, says := p.Header.Expires()
		if !says && r.Expire.After > 0 {
			at, says = from(job, p, now).Add(r.Expire.After), true
		}
		if says && !at.After(now) {
			places = append(places, i)
		}
	}
	return places
}

// from is since when a payload waits: since its job does, or since its push if that came later, which its score says if
// the pusher gave none.
func from(job *lowkiq.Job, p *lowkiq.Payload, now time.Time) time.Time {
	if pushed := time.UnixMicro(int64(p.Score * 1e6)); p.Score >= lowkiq.MinPerformAt && !pushed.After(now) && pushed.After(job.WaitingSince) {
		return pushed
	}
	return job.WaitingSince
}

// expired is the failure of a job of which payloads have.
type expired struct {
	to     rules.ExpireTo
	places []int
	now    time.Time
}

func (e *expired) Error() string { return "expired: its time was over before a handler had it" }

func (e *expired) verdict(flight int64, job *lowkiq.Job) verdict {
	text := fmt.Sprintf("expired: was due at %s", job.WaitingSince.UTC().Format(time.RFC3339))
	b := queue.Burial{Flight: flight, ID: job.ID, Policy: queue.Bury, RetryCount: job.RetryCount, Expired: len(e.places)}
	if len(e.places) < len(job.Payloads) {
		b.Places = e.places
		text = fmt.Sprintf("%s; %d of %d payloads", text, len(e.places), len(job.Payloads))
	}
	if b.Error = text; e.to == rules.ExpireDrop {
		b.Policy = queue.Drop
	}
	return verdict{burial: b, err: e}
}
