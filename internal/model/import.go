package model

import (
	"cmp"
	"fmt"
	"slices"
)

// Imports from another system, in the model.

// ImportEntry is the job of an id in the other system. Its payloads are as they are stored, lowest score first, each
// payload once.
type ImportEntry struct {
	Number    int64
	ID        string
	Payloads  []Payload
	Retry     int
	At        int64 // when it is due, or was buried; 0 for now
	Err       string
	Morgue    bool // it is in the morgue
	Refused   bool // the caller has refused it
	ManyParts bool // it is sent in parts, so limits count payloads that equal waiting payloads twice
}

// Verdicts of imports.
const (
	Behind  Verdict = "behind"
	Refused Verdict = "refused"
)

// importState is remembered of an id after an entry of it was refused.
type importState struct {
	taken int64 // entries up to this number are stored
	open  int64 // the number of the refused entry; 0 if it has been stored since
}

// ImportEntry stores an entry, unless it was stored before, or an earlier entry of its id was refused.
func (m *Shard) ImportEntry(source string, e *ImportEntry) Verdict {
	field := source + "\x00" + e.ID
	state := m.Imported[field]
	switch {
	case state == nil && e.Number <= m.LastNumber[source], state != nil && e.Number <= state.taken:
		return Before
	case state != nil && state.open > 0 && e.Number > state.open:
		m.LastNumber[source] = max(m.LastNumber[source], e.Number)
		return Behind
	case state == nil:
		state = &importState{taken: e.Number - 1}
	}
	verdict := Refused
	switch {
	case e.Refused:
	case e.Morgue:
		verdict = m.importBuried(e)
	default:
		verdict = m.importJob(e)
	}
	switch {
	case verdict != Stored:
		m.Imported[field] = &importState{state.taken, e.Number}
	case e.Number < m.LastNumber[source]:
		m.Imported[field] = &importState{e.Number, 0}
	default:
		delete(m.Imported, field)
	}
	m.LastNumber[source] = max(m.LastNumber[source], e.Number)
	return verdict
}

// ImportState returns the remembered state of ids as text, by source and id.
func (m *Shard) ImportState() map[string]string {
	text := map[string]string{}
	for field, state := range m.Imported {
		text[field] = fmt.Sprint(state.taken, state.open)
	}
	return text
}

// exceededLimit returns the limit that an entry exceeds together with the waiting job of its id, "" if none.
func (m *Shard) exceededLimit(e *ImportEntry, there *Job) Verdict {
	n, size := len(e.Payloads), (&Job{Payloads: e.Payloads}).Size()
	if there != nil {
		for _, p := range e.Payloads {
			if !e.ManyParts && slices.ContainsFunc(there.Payloads, p.equals) {
				n, size = n-1, size-len(p.Data)
			}
		}
		n, size = n+len(there.Payloads), size+there.Size()
	}
	switch {
	case n > m.MaxPayloads:
		return TooMany
	case size > m.MaxBytes:
		return TooManyByte
	}
	return ""
}

// importJob merges an entry with the waiting job of its id. Retry count, error and due time are those of the entry.
func (m *Shard) importJob(e *ImportEntry) Verdict {
	home, busy := m.placeOf(e.ID)
	there := home[e.ID]
	if verdict := m.exceededLimit(e, there); verdict != "" {
		return verdict
	}
	job := &Job{Payloads: slices.Clone(e.Payloads), Retry: e.Retry, Err: e.Err, At: e.At}
	if e.At <= m.Now {
		job.At, job.Soft = m.Now, true
	}
	home[e.ID] = job
	_, suspect := m.Crashes[e.ID]
	defer func() {
		if job.At > m.Now && !(there != nil && !busy && (suspect || m.Blocked[e.ID])) {
			delete(m.PutOffSince, e.ID) // pushes do not move its due time
		}
	}()
	if busy {
		job.Retry = -1
	}
	if there == nil {
		if !busy {
			m.enqueueNew(e.ID)
		}
		return Stored
	}
	for _, p := range there.Payloads {
		job.addPayload(p)
	}
	job.Err = cmp.Or(job.Err, there.Err)
	if busy {
		return Stored
	}
	switch {
	case m.Blocked[e.ID]:
		job.Retry, job.At, job.Soft, job.Err = there.Retry, there.At, there.Soft, cmp.Or(there.Err, job.Err)
	case suspect, m.Scheduled[e.ID] && there.isHeld():
		job.At, job.Soft, job.Since, job.Group = there.At, there.Soft, there.Since, there.Group
	case job.At > m.Now && m.isLined(e.ID):
		m.Scheduled[e.ID], m.Urgent[e.ID] = true, &urgency{}
	case job.At > m.Now && !m.Scheduled[e.ID]: // it leaves its place in ready
		m.Scheduled[e.ID], m.Stale[e.ID] = true, true
	case job.At <= m.Now && m.Scheduled[e.ID]:
		delete(m.Scheduled, e.ID)
		m.joinReady(e.ID)
		job.Since, job.Group = there.Since, there.Group
	case job.At <= m.Now:
		job.At, job.Soft, job.Since, job.Group = there.At, there.Soft, there.Since, there.Group
		if m.isLined(e.ID) {
			m.Urgent[e.ID].After = 0
		}
	}
	return Stored
}

// importBuried stores an entry in the morgue. Retry count, error and time are those of the later burial.
func (m *Shard) importBuried(e *ImportEntry) Verdict {
	last := Job{Retry: e.Retry, Err: e.Err, At: e.At}
	if e.At == 0 || e.At > m.Now {
		last.At, last.Soft = m.Now, true
	}
	dead := m.Morgue[e.ID]
	switch {
	case dead == nil:
		dead = &Job{}
		m.Morgue[e.ID] = dead
	case dead.At > last.At:
		last = Job{Retry: dead.Retry, Err: cmp.Or(dead.Err, last.Err), At: dead.At, Soft: dead.Soft}
	}
	for _, p := range e.Payloads {
		dead.addPayload(p)
	}
	dead.Retry, dead.Err, dead.At, dead.Soft = last.Retry, cmp.Or(last.Err, dead.Err), last.At, last.Soft
	return Stored
}
