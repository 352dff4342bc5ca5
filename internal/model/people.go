package model

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Actions of people, in the model.

// inState reports whether an action on a state concerns an id.
func (m *Shard) inState(place browse.State, id string) bool {
	switch place {
	case browse.StateRetry:
		return m.Scheduled[id] && m.Waiting[id].Retry >= 0 && !m.IsHeld(id)
	case browse.StateHeld:
		return m.IsHeld(id)
	case browse.StateBlocked:
		return m.Blocked[id]
	case browse.StateFailed:
		job := m.Waiting[id]
		return job != nil && job.Retry >= 0 && !m.Blocked[id] && m.InFlight[id] == nil && !m.IsHeld(id)
	}
	return true
}

// IsHeld reports whether an id waits to be released.
func (m *Shard) IsHeld(id string) bool {
	return m.Scheduled[id] && m.Waiting[id].isHeld()
}

// PostponedSince returns the waiting ids that were put off and are not held, and since when they wait.
func (m *Shard) PostponedSince() map[string]int64 {
	since := map[string]int64{}
	for id, job := range m.Waiting {
		if job.Since > 0 && !m.Blocked[id] && !m.IsHeld(id) {
			since[id] = job.Since
		}
	}
	return since
}

func (j *Job) isHeld() bool { return j.At == protocol.HeldAt.UnixMicro() }

// ReleaseHeld makes held ids due, unless held returns true for them.
func (m *Shard) ReleaseHeld(held func(id string) bool) (released int) {
	var ids []string
	for id := range m.Scheduled {
		if m.IsHeld(id) && !held(id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(x, y string) int { // jobs that have not failed first
		return cmp.Or(cmp.Compare(min(0, m.Waiting[x].Retry), min(0, m.Waiting[y].Retry)), cmp.Compare(x, y))
	})
	for _, id := range ids {
		m.makeDue(id)
	}
	return len(ids)
}

// MakeGroupsDue makes the ids due that their groups have put off.
func (m *Shard) MakeGroupsDue() (released int) {
	var ids []string
	for id := range m.Scheduled {
		if job := m.Waiting[id]; job.Group && job.Since > 0 && !m.IsHeld(id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(x, y string) int {
		return cmp.Or(cmp.Compare(m.Waiting[x].Since, m.Waiting[y].Since), cmp.Compare(x, y))
	})
	for _, id := range ids {
		m.makeDue(id)
	}
	return len(ids)
}

// makeDue makes a waiting id due now.
func (m *Shard) makeDue(id string) {
	m.Waiting[id].At, m.Waiting[id].Soft = m.Now, true
	delete(m.Scheduled, id)
	m.joinReady(id)
}

// FailedIDs returns the ids that have failed and wait for another attempt, now or later.
func (m *Shard) FailedIDs() (ids []string) {
	for _, id := range slices.Sorted(maps.Keys(m.Waiting)) {
		if m.inState(browse.StateFailed, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// leaveState takes an id out of Scheduled and Blocked, and reports whether it was in either.
func (m *Shard) leaveState(id string) (was bool) {
	was = m.Scheduled[id] || m.Blocked[id]
	delete(m.Scheduled, id)
	delete(m.Blocked, id)
	return was
}

// removeJob deletes the waiting job of an id. In the line a tombstone stays.
func (m *Shard) removeJob(id string) {
	home, busy := m.placeOf(id)
	delete(home, id)
	if busy {
		if m.Urgent[id] != nil {
			m.Urgent[id].Again = false
		}
		return
	}
	gone := m.leaveState(id) || m.isLined(id)
	delete(m.Urgent, id)
	if slices.Contains(m.Suspects, id) {
		m.Suspects = removeID(m.Suspects, id)
		delete(m.Crashes, id)
		gone = true
	}
	m.Tombs[id] = !gone || m.Stale[id]
	delete(m.Stale, id)
	if !m.Tombs[id] {
		delete(m.Tombs, id)
	}
}

// DeleteJob deletes the waiting job of an id in a state.
func (m *Shard) DeleteJob(place browse.State, id string) int {
	home, _ := m.placeOf(id)
	if home[id] == nil || !m.inState(place, id) {
		return 0
	}
	m.sendReplies(home[id].Payloads, "deleted")
	m.removeJob(id)
	return 1
}

// BuryWaiting moves the waiting job of an id in a state to the morgue.
func (m *Shard) BuryWaiting(place browse.State, id string) int {
	home, _ := m.placeOf(id)
	job := home[id]
	if job == nil || !m.inState(place, id) {
		return 0
	}
	m.addToMorgue(id, job.Payloads, job.Retry, job.Err)
	m.removeJob(id)
	return 1
}

// BuryOldest moves the payload with the smallest score to the morgue and makes the rest of the job due.
func (m *Shard) BuryOldest(place browse.State, id string) int {
	home, busy := m.placeOf(id)
	job := home[id]
	if job == nil || !m.inState(place, id) || busy || !m.Scheduled[id] && !m.Blocked[id] {
		return 0
	}
	if len(job.Payloads) == 1 {
		return m.BuryWaiting(place, id)
	}
	k := job.lowestIndex()
	m.addToMorgue(id, job.Payloads[k:k+1], job.Retry, job.Err)
	job.Payloads = slices.Delete(job.Payloads, k, k+1)
	since, group := job.Since, job.Group
	m.reviveJob(id, job)
	job.Since, job.Group = since, group
	return 1
}

// reviveJob makes a job due now, as if it had not failed. An id that is due already keeps its place, and an id in
// quarantine stays there.
func (m *Shard) reviveJob(id string, job *Job) {
	home, busy := m.placeOf(id)
	old := home[id]
	home[id] = m.makeFresh(job)
	switch {
	case busy:
	case old == nil:
		m.enqueueNew(id)
	case m.leaveState(id) || m.isLined(id):
		m.joinReady(id)
	}
}

// RequeueDead takes the job of an id out of the morgue. It merges with the waiting job.
func (m *Shard) RequeueDead(id string) int {
	dead := m.Morgue[id]
	if dead == nil {
		return 0
	}
	delete(m.Morgue, id)
	home, _ := m.placeOf(id)
	if job := home[id]; job != nil {
		for _, p := range job.Payloads {
			dead.addPayload(p) // pushed after the buried payloads
		}
		dead.Err = cmp.Or(dead.Err, job.Err)
	}
	m.reviveJob(id, dead)
	return 1
}

// UnblockID makes the job of a blocked id fresh and due now.
func (m *Shard) UnblockID(id string) int {
	if !m.Blocked[id] {
		return 0
	}
	m.reviveJob(id, m.Waiting[id])
	return 1
}

// RunNow makes a scheduled or failed id, or the parked payloads of an id, due now. Held ids stay held.
func (m *Shard) RunNow(id string) int {
	home, busy := m.placeOf(id)
	job := home[id]
	if job == nil || !(busy && job.At > m.Now || m.Scheduled[id]) || m.IsHeld(id) {
		return 0
	}
	if !busy {
		m.makeDue(id)
	}
	job.At, job.Soft = m.Now, true
	return 1
}

// DeleteDead deletes an id from the morgue. No caller is told, because the burial was the end of its payloads.
func (m *Shard) DeleteDead(id string) int {
	if m.Morgue[id] == nil {
		return 0
	}
	delete(m.Morgue, id)
	return 1
}

// TrimMorgue deletes the ids buried first until at most keep are left, and the ids buried longer than age ago. A keep
// or age of 0 is no bound. It returns the number of deleted payloads.
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

// FailedJob and FreshJob select the jobs of the keys retry and due for [Shard.DueIDs].
func FailedJob(j *Job) bool { return j.Retry >= 0 }
func FreshJob(j *Job) bool  { return j.Retry < 0 }

// PassTime lets us microseconds go by. Future due times come closer, states and buried jobs grow older, and jobs that
// were put off have waited for longer.
func (m *Shard) PassTime(us int64) {
	for _, jobs := range []map[string]*Job{m.Waiting, m.Parked} {
		for _, job := range jobs {
			if job.At > m.Now && job.At < protocol.HeldAt.UnixMicro() {
				job.At -= us
				if job.Since != 0 {
					job.Since -= us
				}
			}
		}
	}
	for _, state := range m.States {
		state.At -= us
	}
	for id := range m.PutOffSince {
		m.PutOffSince[id] -= us
	}
	for _, job := range m.Morgue {
		job.At -= us
	}
}

// CountJobs counts the jobs by state, as lua/stats.lua does from the lengths of the lists.
func (m *Shard) CountJobs() protocol.Counts {
	c := protocol.Counts{InFlight: len(m.InFlight), Blocked: len(m.Blocked)}
	for id := range m.Scheduled {
		switch {
		case m.IsHeld(id):
			c.Held++
		case m.Waiting[id].Retry >= 0:
			c.Retry++
		default:
			c.Scheduled++
		}
	}
	c.Ready = len(m.Waiting) - c.Blocked - c.Scheduled - c.Retry - c.Held
	c.Failed = len(m.FailedIDs())
	return c
}

// AnySoft reports whether the due time of a scheduled id is soft. The order of the due ids is then unknown.
func (m *Shard) AnySoft() bool {
	for id := range m.Scheduled {
		if m.Waiting[id].Soft {
			return true
		}
	}
	return false
}

// DeadInOrder returns the ids in the morgue in the order of their last burial, then by id.
func (m *Shard) DeadInOrder() (ids []string) {
	ids = slices.Sorted(maps.Keys(m.Morgue))
	slices.SortStableFunc(ids, func(x, y string) int { return cmp.Compare(m.Morgue[x].At, m.Morgue[y].At) })
	return ids
}
