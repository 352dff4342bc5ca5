package verdict

import (
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// A payload may expire before a handler gets it, by its header expires, or else by the queue's rule. Expired payloads go to the
// morgue, or are dropped. The rest of their job goes back to the head of the line without a retry.

// Late returns the jobs with payloads that have expired by a time. [Decide] decides about them.
func (r *Rules) Late(jobs []lowkiq.Job, now time.Time) lowkiq.Failed {
	gone := lowkiq.Failed{}
	for i := range jobs {
		if places := r.expiredPlaces(&jobs[i], now); len(places) > 0 {
			gone[jobs[i].ID] = &expired{r.Expire.To, places, now}
		}
	}
	return gone
}

// HaveExpiry reports whether headers of payloads name a time when they expire.
func HaveExpiry(jobs []lowkiq.Job) bool {
	for i := range jobs {
		for k := range jobs[i].Payloads {
			if _, ok := jobs[i].Payloads[k].Header.Expires(); ok {
				return true
			}
		}
	}
	return false
}

// expiredPlaces returns the places of a job's payloads that have expired.
func (r *Rules) expiredPlaces(job *lowkiq.Job, now time.Time) (places []int) {
	for i := range job.Payloads {
		p := &job.Payloads[i]
		at, says := p.Header.Expires()
		if !says && r.Expire.After > 0 {
			at, says = waitingSince(job, p, now).Add(r.Expire.After), true
		}
		if says && !at.After(now) {
			places = append(places, i)
		}
	}
	return places
}

// waitingSince returns since when a payload waits. That is when its job began to wait, or its push if that came later. The score is the
// time of the push unless the pusher gave a score.
func waitingSince(job *lowkiq.Job, p *lowkiq.Payload, now time.Time) time.Time {
	if pushed := time.UnixMicro(int64(p.Score * 1e6)); p.Score >= lowkiq.MinPerformAt && !pushed.After(now) && pushed.After(job.WaitingSince) {
		return pushed
	}
	return job.WaitingSince
}

// expired is the failure of a job with expired payloads.
type expired struct {
	to     rules.ExpireTo
	places []int
	now    time.Time
}

func (e *expired) Error() string { return "expired: its time was over before a handler had it" }

func (e *expired) verdict(flight int64, job *lowkiq.Job) verdict {
	text := fmt.Sprintf("expired: was due at %s", job.WaitingSince.UTC().Format(time.RFC3339))
	b := protocol.Burial{Flight: flight, ID: job.ID, Policy: protocol.Bury, RetryCount: job.RetryCount, Expired: len(e.places)}
	if len(e.places) < len(job.Payloads) {
		b.Places = e.places
		text = fmt.Sprintf("%s; %d of %d payloads", text, len(e.places), len(job.Payloads))
	}
	if b.Error = text; e.to == rules.ExpireDrop {
		b.Policy = protocol.Drop
	}
	return verdict{burial: b, err: e}
}
