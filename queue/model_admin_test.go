package queue_test

import (
	"cmp"
	"slices"

	"github.com/lowkiq/lowkiq/queue/browse"
)

// What people do, in the model.

func (m *model) isIn(place browse.State, id string) bool {
	switch place {
	case browse.StateRetry:
		return m.scheduled[id] && m.waiting[id].retry >= 0
	case browse.StateBlocked:
		return m.blocked[id]
	case browse.StateFailed:
		job := m.waiting[id]
		return job != nil && job.retry >= 0 && !m.blocked[id] && m.flying[id] == nil
	}
	return true
}

// failures lists the ids that have failed and wait for an attempt: their turn has come, or comes
// later.
func (m *model) failures() (ids []string) {
	for _, id := range machineIDs {
		if m.isIn(browse.StateFailed, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// unplace takes an id from where it waits, except from the ready list and quarantine.
func (m *model) unplace(id string) (was bool) {
	was = m.scheduled[id] || m.blocked[id]
	delete(m.scheduled, id)
	delete(m.blocked, id)
	return was
}

func (m *model) remove(id string) {
	home, busy := m.wait(id)
	delete(home, id)
	if busy || m.unplace(id) && !m.stale[id] {
		return
	}
	delete(m.stale, id)
	if slices.Contains(m.suspects, id) {
		m.suspects = without(m.suspects, id)
		delete(m.crashes, id)
		return
	}
	m.tombs[id] = true
}

func (m *model) delete(place browse.State, id string) int {
	home, _ := m.wait(id)
	if home[id] == nil || !m.isIn(place, id) {
		return 0
	}
	m.remove(id)
	return 1
}

func (m *model) kill(place browse.State, id string) int {
	home, _ := m.wait(id)
	job := home[id]
	if job == nil || !m.isIn(place, id) {
		return 0
	}
	m.entomb(id, job.payloads, job.retry, job.err)
	m.remove(id)
	return 1
}

func (m *model) killOldest(place browse.State, id string) int {
	home, busy := m.wait(id)
	job := home[id]
	if job == nil || !m.isIn(place, id) || busy || !m.scheduled[id] && !m.blocked[id] {
		return 0
	}
	if len(job.payloads) == 1 {
		return m.kill(place, id)
	}
	k := job.smallest()
	m.entomb(id, job.payloads[k:k+1], job.retry, job.err)
	job.payloads = slices.Delete(job.payloads, k, k+1)
	m.revive(id, job)
	return 1
}

// revive makes a job that waits, or comes back, fresh and due now. It keeps its place
// if it is due already; an id in quarantine stays there.
func (m *model) revive(id string, job *modelJob) {
	home, busy := m.wait(id)
	old := home[id]
	home[id] = m.dueNow(job)
	switch {
	case busy:
	case old == nil:
		m.arrive(id)
	case m.unplace(id):
		m.lineUp(id)
	}
}

func (m *model) requeue(id string) int {
	dead := m.morgue[id]
	if dead == nil {
		return 0
	}
	delete(m.morgue, id)
	home, _ := m.wait(id)
	if job := home[id]; job != nil {
		for _, p := range job.payloads {
			dead.put(p) // pushed after what was buried
		}
		dead.err = cmp.Or(dead.err, job.err)
	}
	m.revive(id, dead)
	return 1
}

func (m *model) unblock(id string) int {
	if !m.blocked[id] {
		return 0
	}
	m.revive(id, m.waiting[id])
	return 1
}

func (m *model) runNow(id string) int {
	home, busy := m.wait(id)
	job := home[id]
	if job == nil || !(busy && job.at > m.now || m.scheduled[id]) {
		return 0
	}
	job.at, job.soft = m.now, true
	if !busy {
		delete(m.scheduled, id)
		m.lineUp(id)
	}
	return 1
}

func (m *model) deleteDead(id string) int {
	if m.morgue[id] == nil {
		return 0
	}
	delete(m.morgue, id)
	return 1
}

func failedJob(j *modelJob) bool { return j.retry >= 0 }
func freshJob(j *modelJob) bool  { return j.retry < 0 }

// pass lets time go by: what lies in the future comes closer.
func (m *model) pass(us int64) {
	for _, jobs := range []map[string]*modelJob{m.waiting, m.parked} {
		for _, job := range jobs {
			if job.at > m.now {
				job.at -= us
			}
		}
	}
}
