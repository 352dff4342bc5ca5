package queue_test

import (
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
)

// model is section 4 of the design for one shard, in plain Go. It is a specification:
// it was written from the rules, not from the scripts. Times are unix microseconds.
type model struct {
	now      int64 // the time of the present step
	payloads int   // most payloads waiting for an id
	bytes    int   // most bytes waiting for an id

	piece      int // most payloads of an id in one flight
	pieceBytes int // most bytes, but for one payload

	waiting   map[string]*modelJob // what waits, outside flights
	ready     []string             // ids due now, in order; also tombs
	tombs     map[string]bool      // deleted ids whose place in ready is left
	stale     map[string]bool      // scheduled ids whose place of before in ready is left
	scheduled map[string]bool      // waits for its due time
	blocked   map[string]bool      // waits for a person
	suspects  []string             // ids in quarantine, in order
	crashes   map[string]int       // ids in quarantine, also those in flight

	flying map[string]*modelJob // what handlers have
	flight map[string]int64     // the number of an id's flight
	seat   map[string]int       // the order in which pops took ids
	seats  int
	parked map[string]*modelJob // pushed while the id was in flight

	morgue            map[string]*modelJob
	attempts          []string // that came to nothing, newest first
	processed, failed int64
	pop               int64
	maxCrashes        int
}

// modelPayload is soft while its score is known only to be the time of the step.
type modelPayload struct {
	data  string // as stored, in its envelope
	score float64
	soft  bool
}

func (p modelPayload) equals(other modelPayload) bool {
	return bareOf(p.data) == bareOf(other.data)
}

// storedOf is a payload as it is stored.
func storedOf(p lowkiq.Payload) string { return string(envelope.Wrap(p.Header, p.Data)) }

// bareOf is what of a stored payload others are compared with.
func bareOf(stored string) string {
	_, data, _ := envelope.Open(stored)
	return data
}

// modelJob has its payloads in push order. Its due time is soft like a score.
type modelJob struct {
	payloads []modelPayload
	retry    int
	err      string
	at       int64
	soft     bool
}

func newModel(payloads, bytes int) *model {
	return &model{
		payloads: payloads, bytes: bytes, piece: 2000, pieceBytes: 1 << 20,
		waiting: map[string]*modelJob{}, tombs: map[string]bool{}, stale: map[string]bool{}, scheduled: map[string]bool{}, blocked: map[string]bool{},
		crashes: map[string]int{}, flying: map[string]*modelJob{}, flight: map[string]int64{}, seat: map[string]int{}, parked: map[string]*modelJob{},
		morgue: map[string]*modelJob{},
	}
}

func (j *modelJob) size() (n int) {
	for _, p := range j.payloads {
		n += len(p.data)
	}
	return n
}

// put adds a payload. Of equal ones the smaller score stays, and the headers of the older one.
func (j *modelJob) put(p modelPayload) (added bool) {
	for i := range j.payloads {
		if old := j.payloads[i]; old.equals(p) {
			if p.score < old.score {
				p.data = old.data
				j.payloads = append(slices.Delete(j.payloads, i, i+1), p)
			}
			return false
		}
	}
	j.payloads = append(j.payloads, p)
	return true
}

// smallest is the place of the payload with the smallest score, the first of equals.
func (j *modelJob) smallest() int {
	k := 0
	for i, p := range j.payloads {
		if p.score < j.payloads[k].score {
			k = i
		}
	}
	return k
}

func (j *modelJob) inOrder() []modelPayload {
	sorted := slices.Clone(j.payloads)
	slices.SortStableFunc(sorted, func(x, y modelPayload) int {
		switch {
		case x.score < y.score:
			return -1
		case x.score > y.score:
			return 1
		}
		return 0
	})
	return sorted
}

// cut leaves a piece of a job, the lowest payloads, and returns the rest as a fresh job; nil if
// there is none.
func (j *modelJob) cut(most, room int) (rest *modelJob) {
	sorted := j.inOrder()
	n, size := 1, len(sorted[0].data)
	for n < len(sorted) && n < most && size+len(sorted[n].data) <= room {
		size += len(sorted[n].data)
		n++
	}
	if n == len(sorted) {
		return nil
	}
	rest = &modelJob{retry: -1, at: j.at, soft: j.soft}
	var piece []modelPayload
	for _, p := range j.payloads {
		if slices.Contains(sorted[:n], p) {
			piece = append(piece, p)
		} else {
			rest.payloads = append(rest.payloads, p)
		}
	}
	j.payloads = piece
	return rest
}

// dueNow makes the job fresh and due at the time of the step. Its last error stays.
func (m *model) dueNow(j *modelJob) *modelJob {
	j.retry, j.at, j.soft = -1, m.now, true
	return j
}

// wait returns what waits for an id and whether the id is in flight.
func (m *model) wait(id string) (home map[string]*modelJob, busy bool) {
	if m.flying[id] != nil {
		return m.parked, true
	}
	return m.waiting, false
}

// enqueue puts an id that waits nowhere to its place.
func (m *model) enqueue(id string) {
	if m.waiting[id].at <= m.now {
		m.ready = append(m.ready, id)
	} else {
		m.scheduled[id] = true
	}
}

// arrive is enqueue for an id that comes from outside: it may find its own tomb.
func (m *model) arrive(id string) {
	if m.tombs[id] {
		delete(m.tombs, id)
		if m.waiting[id].at <= m.now {
			return
		}
		m.stale[id] = true
	}
	m.enqueue(id)
}

// lineUp lets an id that waited elsewhere wait in ready: where it once stood, if that place is
// left.
func (m *model) lineUp(id string) {
	if m.stale[id] {
		delete(m.stale, id)
		return
	}
	m.ready = append(m.ready, id)
}

func without(list []string, id string) []string {
	return slices.DeleteFunc(list, func(x string) bool { return x == id })
}

type verdict string

const (
	stored      verdict = "stored"
	merged      verdict = "merged"
	tooMany     verdict = "too many payloads"
	tooManyByte verdict = "too many bytes"
	unsent      verdict = "unsent"
)

// push stores one payload; at 0 = now; full if an earlier payload of the id in the same push was
// refused.
func (m *model) push(id string, p modelPayload, at int64, full bool) verdict {
	home, busy := m.wait(id)
	job := home[id]
	if job == nil {
		job = &modelJob{payloads: []modelPayload{p}, retry: -1, at: at}
		if at == 0 {
			m.dueNow(job)
		}
		home[id] = job
		if !busy {
			m.arrive(id)
		}
		return stored
	}
	equal := slices.ContainsFunc(job.payloads, p.equals)
	switch {
	case equal:
		job.put(p)
		return merged
	case full:
		return unsent
	case len(job.payloads) >= m.payloads:
		return tooMany
	case job.size()+len(p.data) > m.bytes:
		return tooManyByte
	}
	job.put(p)
	return stored
}
