package rubyqueue

import (
	"cmp"
	"slices"
	"strings"
)

// Job is what an entry comes to.
type Job struct {
	At       float64 // due, or buried, seconds since 1970
	Retries  float64 // -1 = never failed
	Error    *string
	Payloads []Payload // in order of score, then bytes
}

// Rules are those by which a flight becomes a job again.
type rules struct {
	minimumScore bool // of equal payloads the smaller score stays
	flightWins   bool // the flight's due time and retry count hold, and not those of what was pushed meanwhile
	pushedBack   bool // a row that the failure pushed back holds
	buried       bool // a payload that the failure buried is not in flight any more
}

var allRules = rules{true, true, true, true}

// Settle says which job an entry is. A flight becomes a job as Ruby's restore makes it one: its due time
// and retry count hold, and so does its error if it has one; its payloads are united with those that wait.
// Of equal payloads the minimum of the scores holds.
//
// Ruby ends a failed flight in three transactions: it pushes ids back, buries payloads, and clears the
// flight. A process that died between them left the flight and what it had done. That is told by evidence
// alone, and in doubt everything is kept:
//
//   - a row that waits with an error and with the retry count of the flight and one, or 0, is what the failure
//     pushed back: its due time, retry count and error hold;
//   - the oldest payload in flight is dropped as buried if it lies in the morgue and does not wait, was not
//     buried before the flight was due, and either the row pushed back has the retry count 0 and the morgue's
//     error, or nothing was pushed back and there is no other payload in flight.
func Settle(e *Entry) Job { return allRules.settle(e) }

func (r rules) settle(e *Entry) Job {
	if e.Flight == nil {
		return jobOf(e.Waiting, e.Waiting.Payloads)
	}
	f, w := e.Flight, e.Waiting
	flight := f.Payloads
	settled := r.pushedBack && w != nil && w.Error != nil && (w.Retries == 0 || w.Retries == f.Retries+1)
	if r.buried && f.Buried && len(flight) > 0 && !waits(w, flight[0]) && f.BuriedAt >= f.At &&
		(settled && w.Retries == 0 && same(w.Error, f.BuriedError) || !settled && f.Count() == 1) {
		flight = flight[1:]
	}
	if w == nil {
		return jobOf(&f.Row, flight)
	}
	job := jobOf(w, r.unite(w.Payloads, flight))
	if !settled && r.flightWins && len(flight) > 0 {
		job.At, job.Retries = f.At, f.Retries
		if f.Error != nil {
			job.Error = f.Error
		}
	}
	return job
}

func jobOf(r *Row, payloads []Payload) Job { return Job{r.At, r.Retries, r.Error, payloads} }

func waits(w *Row, p Payload) bool {
	return w != nil && slices.ContainsFunc(w.Payloads, func(one Payload) bool { return string(one.Data) == string(p.Data) })
}

func same(a, b *string) bool { return a != nil && b != nil && *a == *b }

// unite returns both piles as one, in Redis's order.
func (r rules) unite(waiting, flight []Payload) []Payload {
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
