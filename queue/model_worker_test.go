package queue_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	. "github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// What a worker does, in the model.

// due lists scheduled ids by due time, then id.
func (m *model) due(keep func(*modelJob) bool) (ids []string) {
	for id := range m.scheduled {
		if keep(m.waiting[id]) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(x, y string) int {
		if a, b := m.waiting[x].at, m.waiting[y].at; a != b {
			return int(max(-1, min(1, a-b)))
		}
		return strings.Compare(x, y)
	})
	return ids
}

// take pops up to n ids, or one if single.
func (m *model) take(n int, single, slot bool) (ids []string, state Quarantine) {
	m.pop++
	due := m.due(func(j *modelJob) bool { return j.at <= m.now })
	for _, id := range due[:min(n, len(due))] {
		delete(m.scheduled, id)
		m.lineUp(id)
	}
	for id := range m.flying {
		if _, suspect := m.crashes[id]; suspect {
			return nil, QuarantineWait // while it runs nothing else does
		}
	}
	if len(m.suspects) > 0 {
		id := m.suspects[0]
		switch {
		case m.crashes[id] > 0 && !slot:
			state = QuarantineSlot
		case len(m.flying) > 0:
			return nil, QuarantineWait
		default:
			m.suspects = m.suspects[1:]
			m.fly(id)
			return []string{id}, QuarantineTaken
		}
	}
	for left := n; len(m.ready) > 0 && (left > 0 || len(ids) == 0); left-- {
		if left == 0 {
			left = n // there were entries of deleted jobs only
		}
		id := m.ready[0]
		if m.tombs[id] {
			m.ready = m.ready[1:]
			delete(m.tombs, id)
			continue
		}
		if m.stale[id] {
			m.ready = m.ready[1:]
			delete(m.stale, id)
			continue
		}
		if single && len(ids) == 1 {
			break
		}
		m.ready = m.ready[1:]
		m.fly(id)
		ids = append(ids, id)
	}
	return ids, state
}

func (m *model) fly(id string) {
	m.flying[id], m.flight[id] = m.waiting[id], m.pop
	if rest := m.flying[id].cut(m.piece, m.pieceBytes); rest != nil {
		m.parked[id] = rest // as if it was pushed from now on
	}
	m.seats++
	m.seat[id] = m.seats
	delete(m.waiting, id)
}

// land takes an id out of its flight; answered: a handler had it and said something.
func (m *model) land(id string, number int64, answered bool) *modelJob {
	job := m.flying[id]
	if job == nil || m.flight[id] != number {
		return nil
	}
	delete(m.flying, id)
	delete(m.flight, id)
	if answered {
		delete(m.crashes, id)
	}
	return job
}

// reunite joins what was parked with the job that comes back. Its own retry count,
// due time and error, if it has one, win.
func (m *model) reunite(id string, job *modelJob) {
	if p := m.parked[id]; p != nil {
		for _, payload := range p.payloads {
			job.put(payload)
		}
		job.err = cmp.Or(job.err, p.err)
		delete(m.parked, id)
	}
	m.waiting[id] = job
}

// unpark lets what was pushed during a flight wait by itself: due at the latest of its
// own time and the end of the flight.
func (m *model) unpark(id string) {
	job := m.parked[id]
	if job == nil {
		return
	}
	delete(m.parked, id)
	if job.at <= m.now {
		job.at, job.soft = m.now, true
	}
	m.waiting[id] = job
	m.enqueue(id)
}

func (m *model) ack(number int64, id string) int {
	if m.land(id, number, true) == nil {
		return 0
	}
	m.processed++
	m.unpark(id)
	return 1
}

func (m *model) nack(n Nack) int {
	job := m.land(n.ID, n.Flight, n.Kind != Return)
	if job == nil {
		return 0
	}
	if n.Kind == Retry {
		job.retry, job.err = n.RetryCount, n.Error
		m.failed++
		m.note(n.ID, browse.AttemptFailed, n.RetryCount, n.Error)
	}
	m.reunite(n.ID, job)
	if n.Kind == Return {
		m.toHead(n.ID)
		return 1
	}
	job.at, job.soft = m.now+n.Delay.Microseconds(), true
	m.enqueue(n.ID)
	return 1
}

func (m *model) toHead(id string) {
	if _, suspect := m.crashes[id]; suspect {
		m.suspects = slices.Insert(m.suspects, 0, id)
	} else {
		m.ready = slices.Insert(m.ready, 0, id)
	}
}

func (m *model) bury(b Burial) int {
	job := m.land(b.ID, b.Flight, true)
	if job == nil {
		return 0
	}
	m.failed++
	m.note(b.ID, browse.AttemptExhausted, b.RetryCount, b.Error)
	switch b.Policy {
	case Block:
		job.retry, job.err, job.at, job.soft = b.RetryCount, b.Error, m.now, true
		m.reunite(b.ID, job)
		m.blocked[b.ID] = true
	case Bury:
		m.entomb(b.ID, job.payloads, b.RetryCount, b.Error)
		m.unpark(b.ID)
	case Skip:
		k := job.smallest()
		m.entomb(b.ID, job.payloads[k:k+1], b.RetryCount, b.Error)
		job.payloads = slices.Delete(job.payloads, k, k+1)
		if len(job.payloads) == 0 {
			m.unpark(b.ID)
			return 1
		}
		job.err = b.Error
		m.reunite(b.ID, m.dueNow(job))
		m.ready = append(m.ready, b.ID)
	}
	return 1
}

func (m *model) entomb(id string, payloads []modelPayload, retry int, err string) {
	dead := m.morgue[id]
	if dead == nil {
		dead = &modelJob{}
		m.morgue[id] = dead
	}
	for _, p := range payloads {
		dead.put(p)
	}
	dead.retry, dead.err, dead.at, dead.soft = retry, cmp.Or(err, dead.err), m.now, true
}

// recover puts everything in flight back to the head, in the order in which the pops
// took it.
func (m *model) recover(cause Cause) (back, buried int) {
	ids := make([]string, 0, len(m.flying))
	for id := range m.flying {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(x, y string) int {
		return m.seat[x] - m.seat[y]
	})
	for _, id := range slices.Backward(ids) {
		if cause == Seize && m.judge(id, len(ids) == 1) {
			buried += len(m.flying[id].payloads)
			m.entomb(id, m.flying[id].payloads, m.flying[id].retry, fmt.Sprintf("crash: its worker died %d times while it ran alone", m.crashes[id]))
			m.land(id, m.flight[id], true)
			m.unpark(id)
			continue
		}
		m.reunite(id, m.land(id, m.flight[id], false))
		m.toHead(id)
	}
	m.pop = 0
	return len(ids), buried
}

// note remembers an attempt that came to nothing, as one of the last 64.
func (m *model) note(id string, verdict browse.Verdict, retry int, text string) {
	first, _, _ := strings.Cut(text, "\n")
	m.attempts = slices.Insert(m.attempts, 0, sketch([]browse.Attempt{{ID: id, Verdict: verdict, RetryCount: retry, Error: first}}))
	m.attempts = m.attempts[:min(len(m.attempts), 64)]
}

// judge puts an id in quarantine, or counts a crash that nobody else can have caused.
func (m *model) judge(id string, alone bool) (poison bool) {
	if _, suspect := m.crashes[id]; !suspect {
		m.crashes[id] = 0
		return false
	}
	if alone {
		m.crashes[id]++
		m.note(id, browse.AttemptCrashed, m.flying[id].retry, "its worker died while it ran alone")
		return m.maxCrashes > 0 && m.crashes[id] >= m.maxCrashes
	}
	return false
}
