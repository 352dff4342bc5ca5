package model

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// What people do, in the model.

func (m *Shard) isIn(place browse.State, id string) bool {
	switch place {
	case browse.StateRetry:
		return m.Scheduled[id] && m.Waiting[id].Retry >= 0 && !m.Held(id)
	case browse.StateHeld:
		return m.Held(id)
	case browse.StateBlocked:
		return m.Blocked[id]
	case browse.StateFailed:
		job := m.Waiting[id]
		return job != nil && job.Retry >= 0 && !m.Blocked[id] && m.Flying[id] == nil && !m.Held(id)
	}
	return true
}

// Held reports whether an id waits to be released.
func (m *Shard) Held(id string) bool {
	return m.Scheduled[id] && m.Waiting[id].held()
}

// Postponed are ids that were put off, wait, and are not held: since when.
func (m *Shard) Postponed() map[string]int64 {
	since := map[string]int64{}
	for id, job := range m.Waiting {
		if job.Since > 0 && !m.Blocked[id] && !m.Held(id) {
			since[id] = job.Since
		}
	}
	return since
}

func (j *Job) held() bool { return j.At == queue.HeldAt.UnixMicro() }

// Release lets ids go on that nobody holds any more.
func (m *Shard) Release(held func(id string) bool) (released int) {
	var ids []string
	for id := range m.Scheduled {
		if m.Held(id) && !held(id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(x, y string) int { // the fresh ones first
		return cmp.Or(cmp.Compare(min(0, m.Waiting[x].Retry), min(0, m.Waiting[y].Retry)), cmp.Compare(x, y))
	})
	for _, id := range ids {
		m.due(id)
	}
	return len(ids)
}

// Regroup lets ids ask again that their groups have put off.
func (m *Shard) Regroup() (released int) {
	var ids []string
	for id := range m.Scheduled {
		if job := m.Waiting[id]; job.Group && job.Since > 0 && !m.Held(id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(x, y string) int {
		return cmp.Or(cmp.Compare(m.Waiting[x].Since, m.Waiting[y].Since), cmp.Compare(x, y))
	})
	for _, id := range ids {
		m.due(id)
	}
	return len(ids)
}

// due makes a waiting id due now.
func (m *Shard) due(id string) {
	m.Waiting[id].At, m.Waiting[id].Soft = m.Now, true
	delete(m.Scheduled, id)
	m.lineUp(id)
}

// Failures lists the ids that have failed and wait for an attempt: their turn has come, or comes
// later.
func (m *Shard) Failures() (ids []string) {
	for _, id := range slices.Sorted(maps.Keys(m.Waiting)) {
		if m.isIn(browse.StateFailed, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// unplace takes an id from where it waits, except from the ready list and quarantine.
func (m *Shard) unplace(id string) (was bool) {
	was = m.Scheduled[id] || m.Blocked[id]
	delete(m.Scheduled, id)
	delete(m.Blocked, id)
	return was
}

func (m *Shard) remove(id string) {
	home, busy := m.wait(id)
	delete(home, id)
	if busy || m.unplace(id) && !m.Stale[id] {
		return
	}
	delete(m.Stale, id)
	if slices.Contains(m.Suspects, id) {
		m.Suspects = without(m.Suspects, id)
		delete(m.Crashes, id)
		return
	}
	m.Tombs[id] = true
}

func (m *Shard) Delete(place browse.State, id string) int {
	home, _ := m.wait(id)
	if home[id] == nil || !m.isIn(place, id) {
		return 0
	}
	m.tell(home[id].Payloads, "deleted")
	m.remove(id)
	return 1
}

func (m *Shard) Kill(place browse.State, id string) int {
	home, _ := m.wait(id)
	job := home[id]
	if job == nil || !m.isIn(place, id) {
		return 0
	}
	m.entomb(id, job.Payloads, job.Retry, job.Err)
	m.remove(id)
	return 1
}

func (m *Shard) KillOldest(place browse.State, id string) int {
	home, busy := m.wait(id)
	job := home[id]
	if job == nil || !m.isIn(place, id) || busy || !m.Scheduled[id] && !m.Blocked[id] {
		return 0
	}
	if len(job.Payloads) == 1 {
		return m.Kill(place, id)
	}
	k := job.smallest()
	m.entomb(id, job.Payloads[k:k+1], job.Retry, job.Err)
	job.Payloads = slices.Delete(job.Payloads, k, k+1)
	since, group := job.Since, job.Group
	m.revive(id, job)
	job.Since, job.Group = since, group
	return 1
}

// revive makes a job that waits, or comes back, fresh and due now. It keeps its place
// if it is due already; an id in quarantine stays there.
func (m *Shard) revive(id string, job *Job) {
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

func (m *Shard) Requeue(id string) int {
	dead := m.Morgue[id]
	if dead == nil {
		return 0
	}
	delete(m.Morgue, id)
	home, _ := m.wait(id)
	if job := home[id]; job != nil {
		for _, p := range job.Payloads {
			dead.put(p) // pushed after what was buried
		}
		dead.Err = cmp.Or(dead.Err, job.Err)
	}
	m.revive(id, dead)
	return 1
}

func (m *Shard) Unblock(id string) int {
	if !m.Blocked[id] {
		return 0
	}
	m.revive(id, m.Waiting[id])
	return 1
}

func (m *Shard) RunNow(id string) int {
	home, busy := m.wait(id)
	job := home[id]
	if job == nil || !(busy && job.At > m.Now || m.Scheduled[id]) || m.Held(id) {
		return 0
	}
	if !busy {
		m.due(id)
	}
	job.At, job.Soft = m.Now, true
	return 1
}

func (m *Shard) DeleteDead(id string) int {
	if m.Morgue[id] == nil {
		return 0
	}
	delete(m.Morgue, id)
	return 1
}

// TrimMorgue forgets the ids buried first until not more than keep are left, and those buried longer than age ago. 0: any
// number, however long ago. It returns how many payloads that were.
func (m *Shard) TrimMorgue(keep int, age time.Duration) (payloads int) {
	for _, id := range m.DeadInOrder() {
		old := age > 0 && m.Morgue[id].At <= m.Now-age.Microseconds()
		if !old && (keep == 0 || len(m.Morgue) <= keep) {
			return payloads
		}
		payloads += len(m.Morgue[id].Payloads)
		delete(m.Morgue, id)
	}
	return payloads
}

func FailedJob(j *Job) bool { return j.Retry >= 0 }
func FreshJob(j *Job) bool  { return j.Retry < 0 }

// Pass lets time go by: what lies in the future comes closer, and states and what is buried grow older.
func (m *Shard) Pass(us int64) {
	for _, jobs := range []map[string]*Job{m.Waiting, m.Parked} {
		for _, job := range jobs {
			if job.At > m.Now && job.At < queue.HeldAt.UnixMicro() {
				job.At -= us
			}
		}
	}
	for _, state := range m.States {
		state.At -= us
	}
	for id := range m.Since {
		m.Since[id] -= us
	}
	for _, job := range m.Morgue {
		job.At -= us
	}
}

func (m *Shard) Counts() queue.Counts {
	c := queue.Counts{InFlight: len(m.Flying), Blocked: len(m.Blocked)}
	for id := range m.Scheduled {
		switch {
		case m.Held(id):
			c.Held++
		case m.Waiting[id].Retry >= 0:
			c.Retry++
		default:
			c.Scheduled++
		}
	}
	c.Ready = len(m.Waiting) - c.Blocked - c.Scheduled - c.Retry - c.Held
	c.Failed = len(m.Failures())
	return c
}

func (m *Shard) AnySoft() bool {
	for id := range m.Scheduled {
		if m.Waiting[id].Soft {
			return true
		}
	}
	return false
}

func (m *Shard) DeadInOrder() (ids []string) {
	ids = slices.Sorted(maps.Keys(m.Morgue))
	slices.SortStableFunc(ids, func(x, y string) int { return cmp.Compare(m.Morgue[x].At, m.Morgue[y].At) })
	return ids
}
