package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Steps of a worker, in the model.

// DueIDs returns the scheduled ids for whose jobs keep returns true, by due time, then by id.
func (m *Shard) DueIDs(keep func(*Job) bool) (ids []string) {
	for id := range m.Scheduled {
		if keep(m.Waiting[id]) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(x, y string) int {
		if a, b := m.Waiting[x].At, m.Waiting[y].At; a != b {
			return int(max(-1, min(1, a-b)))
		}
		return strings.Compare(x, y)
	})
	return ids
}

// PopIDs pops at most n ids, or at most one id if single is true. slot says that the worker holds its node's quarantine
// slot. If suspects is false, it pops no id in quarantine.
func (m *Shard) PopIDs(n int, single, slot, suspects bool) (ids []string, state protocol.Quarantine) {
	m.PopNumber++
	due := m.DueIDs(func(j *Job) bool { return j.At <= m.Now })
	for _, id := range due[:min(n, len(due))] {
		delete(m.Scheduled, id)
		m.joinReady(id)
	}
	for id := range m.InFlight {
		if _, suspect := m.Crashes[id]; suspect {
			return nil, protocol.QuarantineWait // an id in quarantine runs alone
		}
	}
	if suspects && len(m.Suspects) > 0 {
		id := m.Suspects[0]
		switch {
		case m.Crashes[id] > 0 && !slot:
			state = protocol.QuarantineSlot
		case len(m.InFlight) > 0:
			return nil, protocol.QuarantineWait
		default:
			m.Suspects = m.Suspects[1:]
			m.startFlight(id)
			return []string{id}, protocol.QuarantineTaken
		}
	}
	for line, _ := m.Line(); len(ids) < min(n, len(line)) && m.isLined(line[len(ids)]); {
		if single && len(ids) == 1 {
			return ids, state
		}
		m.startFlight(line[len(ids)])
		ids = append(ids, line[len(ids)])
	}
	for left := n - len(ids); len(m.Ready) > 0 && (left > 0 || len(ids) == 0); left-- {
		if left == 0 {
			left = n // all were tombstones
		}
		id := m.Ready[0]
		if m.Tombs[id] {
			m.Ready = m.Ready[1:]
			delete(m.Tombs, id)
			continue
		}
		if m.Stale[id] {
			m.Ready = m.Ready[1:]
			delete(m.Stale, id)
			continue
		}
		if single && len(ids) == 1 {
			break
		}
		m.Ready = m.Ready[1:]
		m.startFlight(id)
		ids = append(ids, id)
	}
	return ids, state
}

// startFlight moves a waiting job into the present flight. If it has too many payloads, the rest is parked, as if it
// had been pushed during the flight.
func (m *Shard) startFlight(id string) {
	m.InFlight[id], m.FlightOf[id] = m.Waiting[id], m.PopNumber
	if rest := m.InFlight[id].splitOff(m.MaxPiece, m.MaxPieceBytes); rest != nil {
		m.Parked[id] = rest
	}
	if m.Urgent[id] != nil {
		m.Urgent[id] = &urgency{Again: m.Parked[id] != nil}
	}
	m.popped++
	m.PopOrder[id] = m.popped
	delete(m.Waiting, id)
}

// endFlight takes an id out of its flight and returns its job, nil if it is not in the flight of this number. answered
// says that the worker has survived it, which ends its quarantine.
func (m *Shard) endFlight(id string, number int64, answered bool) *Job {
	job := m.InFlight[id]
	if job == nil || m.FlightOf[id] != number {
		return nil
	}
	delete(m.InFlight, id)
	delete(m.FlightOf, id)
	delete(m.Notes, id)
	if answered {
		delete(m.Crashes, id)
	}
	return job
}

// mergeParked lets a job wait again, together with the payloads that were parked meanwhile. Its retry count, its due
// time and its error, if any, stay.
func (m *Shard) mergeParked(id string, job *Job) {
	if p := m.Parked[id]; p != nil {
		for _, payload := range p.Payloads {
			job.addPayload(payload)
		}
		job.Err = cmp.Or(job.Err, p.Err)
		delete(m.Parked, id)
	}
	m.Waiting[id] = job
}

// releaseParked makes the parked payloads of an id a job of their own, due at their own time.
func (m *Shard) releaseParked(id string) {
	job := m.Parked[id]
	if job == nil {
		m.endUrgency(id)
		return
	}
	delete(m.Parked, id)
	m.Waiting[id] = job
	if u := m.Urgent[id]; u != nil && !u.Again {
		delete(m.Urgent, id)
	}
	m.enqueueID(id)
}

// finishJob ends a job as done, with the answer of its handler and a line for the journal, if that is not empty. It
// does nothing if the job is not in the flight.
func (m *Shard) finishJob(number int64, answer protocol.Answer, line string) int {
	log := m.notesOf(answer.ID)
	job := m.endFlight(answer.ID, number, true)
	if job == nil {
		return 0
	}
	m.Processed++
	if line != "" {
		m.writeLine(line, log)
	}
	m.releaseParked(answer.ID)
	m.setState(answer.ID, answer.State, answer.SetState)
	if answer.Callers > 0 {
		text := "done"
		if answer.Result != nil {
			text += "\n" + string(answer.Result)
		}
		m.sendReplies(job.Payloads, text)
	}
	return 1
}

// setState replaces the state of an id if set is true. A nil state deletes it.
func (m *Shard) setState(id string, state []byte, set bool) {
	switch {
	case set && state == nil:
		delete(m.States, id)
	case set:
		m.States[id] = &State{string(state), m.Now, true}
	}
}

// AddNote stores a note of a handler about a job in flight. It returns false if the job is not in that flight.
func (m *Shard) AddNote(n protocol.Note) (taken bool) {
	if m.InFlight[n.ID] == nil || m.FlightOf[n.ID] != n.Flight {
		return false
	}
	if n.Progress != 0 || n.Log != "" {
		share, line := fmt.Sprint(n.Progress), n.Log
		if was, noted := m.Notes[n.ID]; noted { // zero fields of the note change nothing
			wasShare, wasLine, _ := strings.Cut(was, "\n")
			if n.Progress == 0 {
				share = wasShare
			}
			line = journal.JoinLog(wasLine, line)
		}
		m.Notes[n.ID] = share + "\n" + line
	}
	m.setState(n.ID, n.State, n.State != nil)
	return true
}

// expireStates deletes the oldest states that were written longer than after ago, at most 100.
func (m *Shard) expireStates(after time.Duration) {
	var old []string
	for id, state := range m.States {
		if state.At <= m.Now-after.Microseconds() {
			old = append(old, id)
		}
	}
	slices.SortFunc(old, func(x, y string) int { return cmp.Compare(m.States[x].At, m.States[y].At) })
	for _, id := range old[:min(len(old), 100)] {
		delete(m.States, id)
	}
}

// NackJob puts a job back.
func (m *Shard) NackJob(n protocol.Nack) int {
	log := m.notesOf(n.ID)
	limited := n.Kind == protocol.Postpone && n.Limited
	job := m.endFlight(n.ID, n.Flight, n.Kind != protocol.Return && !limited)
	if job == nil {
		return 0
	}
	if n.Kind == protocol.Retry {
		job.Retry, job.Err = n.RetryCount, n.Error
		m.Failed++
		m.journalRun(journal.Run{ID: n.ID, Verdict: journal.Failed, RetryCount: n.RetryCount, Error: protocol.Summary(n.Error), Ran: n.Ran}, log)
	}
	if n.Cancelled || n.Kind == protocol.Postpone && !n.Limited {
		end := journal.Postponed
		if n.Cancelled {
			end = journal.Cancelled
		}
		m.journalRun(journal.Run{ID: n.ID, Verdict: end, RetryCount: n.RetryCount, Error: protocol.Summary(n.Error), Ran: n.Ran}, log)
	}
	m.mergeParked(n.ID, job)
	_, suspect := m.Crashes[n.ID]
	switch {
	case n.Kind == protocol.Return:
		m.putAtHead(n.ID)
		return 1
	case suspect && limited:
		m.Suspects = append(m.Suspects, n.ID)
		return 1
	}
	if job.Since = job.WaitsSince(); n.Kind == protocol.Retry {
		job.Since = 0
	}
	job.Group = n.Kind == protocol.Postpone && (n.Limited || n.Group)
	job.At, job.Soft = m.Now+n.Delay.Microseconds(), true
	if n.Kind == protocol.Hold {
		job.At, job.Soft = protocol.HeldAt.UnixMicro(), false
	}
	if job.Retry < 0 && job.At > m.Now {
		delete(m.PutOffSince, n.ID) // it waits for the delay
	}
	m.enqueueID(n.ID)
	return 1
}

// putAtHead puts an id at the head of the line, or of the quarantine if it is suspect. An urgent id goes to its place
// among the urgent ids.
func (m *Shard) putAtHead(id string) {
	if _, suspect := m.Crashes[id]; suspect {
		m.Suspects = slices.Insert(m.Suspects, 0, id)
	} else if !m.takeSeat(id) {
		m.Ready = slices.Insert(m.Ready, 0, id)
	}
}

// BuryJob ends a job that has no retries left or has expired, by its policy.
func (m *Shard) BuryJob(b protocol.Burial) int {
	log := m.notesOf(b.ID)
	job := m.endFlight(b.ID, b.Flight, b.Expired == 0 || b.Places == nil)
	if job == nil {
		return 0
	}
	end, told := journal.Exhausted, "deleted"
	if b.Cancelled {
		end = journal.Cancelled
	} else if b.Expired > 0 {
		end, told = journal.Expired, "expired"
	}
	m.journalRun(journal.Run{ID: b.ID, Verdict: end, RetryCount: b.RetryCount, Error: protocol.Summary(b.Error), Ran: b.Ran}, log)
	if b.Policy != protocol.Drop && b.Expired == 0 && !b.Cancelled {
		m.Failed++
	}
	if b.Places != nil {
		m.endSome(&b, job)
		return 1
	}
	switch b.Policy {
	case protocol.Drop:
		m.sendReplies(job.Payloads, told)
		m.releaseParked(b.ID)
	case protocol.Block:
		job.Retry, job.Err, job.At, job.Soft, job.Since = b.RetryCount, b.Error, m.Now, true, 0
		m.mergeParked(b.ID, job)
		m.Blocked[b.ID] = true
	case protocol.Bury:
		m.addToMorgue(b.ID, job.Payloads, b.RetryCount, b.Error)
		m.releaseParked(b.ID)
	case protocol.Skip:
		k := job.lowestIndex()
		m.addToMorgue(b.ID, job.Payloads[k:k+1], b.RetryCount, b.Error)
		job.Payloads = slices.Delete(job.Payloads, k, k+1)
		if len(job.Payloads) == 0 {
			m.releaseParked(b.ID)
			return 1
		}
		job.Err = b.Error
		m.mergeParked(b.ID, m.makeFresh(job))
		m.joinReady(b.ID)
	}
	return 1
}

// endSome ends the payloads of a job at the burial's places, and puts the rest back at the head.
func (m *Shard) endSome(b *protocol.Burial, job *Job) {
	order := make([]int, len(job.Payloads))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(job.Payloads[i].Score, job.Payloads[j].Score) })
	var gone, rest []Payload
	for i, p := range job.Payloads {
		if slices.Contains(b.Places, slices.Index(order, i)) {
			gone = append(gone, p)
		} else {
			rest = append(rest, p)
		}
	}
	if job.Payloads = rest; b.Policy == protocol.Drop {
		m.sendReplies(gone, "expired")
	} else if len(gone) > 0 {
		m.addToMorgue(b.ID, gone, b.RetryCount, b.Error)
	}
	if len(rest) == 0 {
		delete(m.Crashes, b.ID)
		m.releaseParked(b.ID)
		return
	}
	m.mergeParked(b.ID, job)
	m.putAtHead(b.ID)
}

// addToMorgue buries payloads of an id and tells their callers.
func (m *Shard) addToMorgue(id string, payloads []Payload, retry int, err string) {
	dead := m.Morgue[id]
	if dead == nil {
		dead = &Job{}
		m.Morgue[id] = dead
	}
	for _, p := range payloads {
		dead.addPayload(p)
	}
	m.sendReplies(payloads, "buried\n"+err)
	dead.Retry, dead.Err, dead.At, dead.Soft = retry, cmp.Or(err, dead.Err), m.Now, true
}

// RecoverFlights puts all jobs in flight back at the head, in the order of their pops. After a seizure each of them
// becomes suspect. A suspect that was alone in flight has crashed its worker, and may be buried.
func (m *Shard) RecoverFlights(cause protocol.Cause) (back, buried int) {
	ids := make([]string, 0, len(m.InFlight))
	for id := range m.InFlight {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(x, y string) int {
		return m.PopOrder[x] - m.PopOrder[y]
	})
	for _, id := range slices.Backward(ids) {
		if cause == protocol.Seize && m.judgeSuspect(id, len(ids) == 1) {
			buried += len(m.InFlight[id].Payloads)
			m.addToMorgue(id, m.InFlight[id].Payloads, m.InFlight[id].Retry, fmt.Sprintf("crash: its worker died %d times while it ran alone", m.Crashes[id]))
			m.endFlight(id, m.FlightOf[id], true)
			m.releaseParked(id)
			continue
		}
		m.mergeParked(id, m.endFlight(id, m.FlightOf[id], false))
		m.putAtHead(id)
	}
	m.PopNumber = 0
	return len(ids), buried
}

// notesOf returns the lines of log that were noted about an id in its flight.
func (m *Shard) notesOf(id string) string {
	_, log, _ := strings.Cut(m.Notes[id], "\n")
	return log
}

// journalRun adds a run to the journal, if the journal's rule keeps it.
func (m *Shard) journalRun(r journal.Run, log string) {
	if r.Verdict == journal.Crashed || m.Journal.Keeps(r.Verdict, r.ID) {
		m.writeLine(string(r.Append(nil)), log)
	}
}

// writeLine adds the runs of a line to the journal. log has the notes of the run, which come before the log of the
// line.
func (m *Shard) writeLine(line, log string) {
	runs, err := journal.Parse(line, "", time.Time{})
	if err != nil {
		panic(err)
	}
	for _, r := range runs {
		r.Log = journal.JoinLog(log, r.Log)
		m.Runs = append(m.Runs, SketchRuns([]journal.Run{r}))
	}
}

// judgeSuspect puts an id in quarantine. If it is in quarantine and was alone in flight, no other id can have caused
// the crash, so it counts a crash. It returns true if the id must be buried.
func (m *Shard) judgeSuspect(id string, alone bool) (poison bool) {
	if _, suspect := m.Crashes[id]; !suspect {
		m.Crashes[id] = 0
		return false
	}
	if alone {
		m.Crashes[id]++
		m.journalRun(journal.Run{ID: id, Verdict: journal.Crashed, RetryCount: m.InFlight[id].Retry, Error: "its worker died while it ran alone"}, m.notesOf(id))
		return m.MaxCrashes > 0 && m.Crashes[id] >= m.MaxCrashes
	}
	return false
}

// AckJobs ends jobs as done, with their answers and lines for the journal, and expires states.
func (m *Shard) AckJobs(acks []protocol.Acks) (n int) {
	stateFor := time.Duration(0)
	for _, a := range acks {
		for i, id := range a.IDs {
			answer := protocol.Answer{ID: id}
			if k := slices.IndexFunc(a.Answers, func(of protocol.Answer) bool { return of.ID == id }); k >= 0 {
				answer = a.Answers[k]
			}
			_, from := a.Runs.Cut(i)
			line, _ := from.Cut(1)
			n += m.finishJob(a.Flight, answer, line.Text())
		}
		for i := range a.Answers {
			stateFor = a.Answers[i].StateFor
		}
	}
	if stateFor > 0 {
		m.expireStates(stateFor)
	}
	return n
}

// SketchRuns returns runs as text, without their times and instances.
func SketchRuns(list []journal.Run) string {
	words := make([]string, len(list))
	for i, r := range list {
		words[i] = fmt.Sprintf("%s %s %d %q", r.ID, r.Verdict, r.RetryCount, r.Error)
		if r.Log != "" {
			words[i] += fmt.Sprintf(" log %q", r.Log)
		}
		if r.Result != nil {
			words[i] += fmt.Sprintf(" result %q", r.Result)
		}
	}
	return strings.Join(words, "; ")
}
