package rubyqueue

import (
	"cmp"
	"slices"
	"strings"
)

// Job is the job that an entry stands for.
type Job struct {
	At       float64 // the due time, or the time of the burial, in seconds since 1970
	Retries  float64 // -1 = never failed
	Error    *string
	Payloads []Payload // in order of score, then bytes
}

// rules say how a flight becomes a job again. Tests switch off each rule by itself.
type rules struct {
	minimumScore bool // of equal payloads the smaller score is kept
	flightWins   bool // the due time and retry count of the flight win over those of a later push
	pushedBack   bool // a row that the failure pushed back wins
	buried       bool // a payload that the failure buried is no longer in flight
}

var allRules = rules{true, true, true, true}

// SettleEntry returns the job that an entry stands for. It turns a flight into a job as Ruby's restore does. The job gets
// the due time, the retry count and the error, if any, of the flight. Its payloads are united with the waiting payloads.
// Of equal payloads it keeps the smaller score.
//
// Ruby ends a failed flight in three transactions: it pushes ids back, buries payloads, and clears the flight. A process
// that died between them has left the flight and a part of that work. SettleEntry can tell only from the data which
// transactions were done. In doubt it keeps everything.
//
// The failure has pushed the id back if a row waits that has an error and whose retry count is 0 or one more than that of
// the flight. Then the due time, the retry count and the error of that row win.
//
// The failure has buried the oldest payload of the flight, which is then dropped, if all of this holds:
//
//   - It lies in the morgue, and does not wait.
//   - It was not buried before the flight was due.
//   - Either the row was pushed back with the retry count 0 and has the same error as the morgue, or nothing was pushed
//     back and the flight has no other payload.
func SettleEntry(e *Entry) Job { return allRules.settleEntry(e) }

func (r rules) settleEntry(e *Entry) Job {
	if e.Flight == nil {
		return jobOf(e.Waiting, e.Waiting.Payloads)
	}
	f, w := e.Flight, e.Waiting
	flight := f.Payloads
	settled := r.pushedBack && w != nil && w.Error != nil && (w.Retries == 0 || w.Retries == f.Retries+1)
	if r.buried && f.Buried && len(flight) > 0 && !isWaiting(w, flight[0]) && f.BuriedAt >= f.At &&
		(settled && w.Retries == 0 && equalTexts(w.Error, f.BuriedError) || !settled && f.Count() == 1) {
		flight = flight[1:]
	}
	if w == nil {
		return jobOf(&f.Row, flight)
	}
	job := jobOf(w, r.unitePiles(w.Payloads, flight))
	if !settled && r.flightWins && len(flight) > 0 {
		job.At, job.Retries = f.At, f.Retries
		if f.Error != nil {
			job.Error = f.Error
		}
	}
	return job
}

func jobOf(r *Row, payloads []Payload) Job { return Job{r.At, r.Retries, r.Error, payloads} }

func isWaiting(w *Row, p Payload) bool {
	return w != nil && slices.ContainsFunc(w.Payloads, func(one Payload) bool { return string(one.Data) == string(p.Data) })
}

func equalTexts(a, b *string) bool { return a != nil && b != nil && *a == *b }

// unitePiles returns the payloads of both piles in the order of Redis.
func (r rules) unitePiles(waiting, flight []Payload) []Payload {
	at := make(map[string]int, len(waiting)+len(flight))
	all := make([]Payload, 0, len(waiting)+len(flight))
	for _, p := range slices.Concat(waiting, flight) {
		switch i, twice := at[string(p.Data)]; {
		case !twice:
			at[string(p.Data)] = len(all)
			all = append(all, p)
		case r.minimumScore:
			all[i].Score = min(all[i].Score, p.Score)
		}
	}
	slices.SortFunc(all, func(a, b Payload) int {
		return cmp.Or(cmp.Compare(a.Score, b.Score), strings.Compare(string(a.Data), string(b.Data)))
	})
	return all
}
