package model

import (
	"cmp"
	"fmt"
	"slices"
)

// What comes from another system, in the model.

// Entry is what a source keeps of one id. Its payloads are as they are stored, lowest score first, equal ones once.
type Entry struct {
	Number    int64
	ID        string
	Payloads  []Payload
	Retry     int
	At        int64 // when it is due, or was buried; 0: now
	Err       string
	Morgue    bool
	Refused   bool // by the caller
	ManyParts bool // it is not sent at once: that equal payloads count once is not seen
}

// More verdicts.
const (
	Behind  Verdict = "behind"
	Refused Verdict = "refused"
)

// imported is what is remembered of an id of which a source's entry was refused.
type imported struct {
	taken int64 // entries up to this number are in
	open  int64 // this one was refused; 0: none is open
}

// Import takes an entry in, unless that was done before, or an earlier one of its id was refused.
func (m *Shard) Import(source string, e *Entry) Verdict {
	field := source + "\x00" + e.ID
	state := m.Imported[field]
	switch {
	case state == nil && e.Number <= m.From[source], state != nil && e.Number <= state.taken:
		return Before
	case state != nil && state.open > 0 && e.Number > state.open:
		m.From[source] = max(m.From[source], e.Number)
		return Behind
	case state == nil:
		state = &imported{taken: e.Number - 1}
	}
	verdict := Refused
	switch {
	case e.Refused:
	case e.Morgue:
		verdict = m.inter(e)
	default:
		verdict = m.takeIn(e)
	}
	switch {
	case verdict != Stored:
		m.Imported[field] = &imported{state.taken, e.Number}
	case e.Number < m.From[source]:
		m.Imported[field] = &imported{e.Number, 0}
	default:
		delete(m.Imported, field)
	}
	m.From[source] = max(m.From[source], e.Number)
	return verdict
}

// ImportState shows what is remembered of ids, by source and id.
func (m *Shard) ImportState() map[string]string {
	text := map[string]string{}
	for field, state := range m.Imported {
		text[field] = fmt.Sprint(state.taken, state.open)
	}
	return text
}

// beyond is the limit that an entry exceeds with what waits for its id; "": none.
func (m *Shard) beyond(e *Entry, there *Job) Verdict {
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
	case n > m.Payloads:
		return TooMany
	case size > m.Bytes:
		return TooManyByte
	}
	return ""
}

// takeIn makes an entry and what waits for its id one job. The entry wins.
func (m *Shard) takeIn(e *Entry) Verdict {
	home, busy := m.wait(e.ID)
	there := home[e.ID]
	if verdict := m.beyond(e, there); verdict != "" {
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
			delete(m.Since, e.ID) // no push moves its time
		}
	}()
	if busy {
		job.Retry = -1
	}
	if there == nil {
		if !busy {
			m.arrive(e.ID)
		}
		return Stored
	}
	for _, p := range there.Payloads {
		job.put(p)
	}
	job.Err = cmp.Or(job.Err, there.Err)
	if busy {
		return Stored
	}
	switch {
	case m.Blocked[e.ID]:
		job.Retry, job.At, job.Soft, job.Err = there.Retry, there.At, there.Soft, cmp.Or(there.Err, job.Err)
	case suspect, m.Scheduled[e.ID] && there.held():
		job.At, job.Soft, job.Since, job.Group = there.At, there.Soft, there.Since, there.Group
	case job.At > m.Now && !m.Scheduled[e.ID]: // it leaves its place in ready
		m.Scheduled[e.ID], m.Stale[e.ID] = true, true
	case job.At <= m.Now && m.Scheduled[e.ID]:
		delete(m.Scheduled, e.ID)
		m.lineUp(e.ID)
		job.Since, job.Group = there.Since, there.Group
	case job.At <= m.Now:
		job.At, job.Soft, job.Since, job.Group = there.At, there.Soft, there.Since, there.Group
	}
	return Stored
}

// inter takes an entry into the morgue. What was buried last says when and why that was.
func (m *Shard) inter(e *Entry) Verdict {
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
		dead.put(p)
	}
	dead.Retry, dead.Err, dead.At, dead.Soft = last.Retry, cmp.Or(last.Err, dead.Err), last.At, last.Soft
	return Stored
}
