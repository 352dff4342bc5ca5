package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/queue"
)

// What a worker does, in the model.

// Due lists scheduled ids by due time, then id.
func (m *Shard) Due(keep func(*Job) bool) (ids []string) {
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

// Take pops up to n ids, or one if single.
func (m *Shard) Take(n int, single, slot bool) (ids []string, state queue.Quarantine) {
	m.Pop++
	due := m.Due(func(j *Job) bool { return j.At <= m.Now })
	for _, id := range due[:min(n, len(due))] {
		delete(m.Scheduled, id)
		m.lineUp(id)
	}
	for id := range m.Flying {
		if _, suspect := m.Crashes[id]; suspect {
			return nil, queue.QuarantineWait // while it runs nothing else does
		}
	}
	if len(m.Suspects) > 0 {
		id := m.Suspects[0]
		switch {
		case m.Crashes[id] > 0 && !slot:
			state = queue.QuarantineSlot
		case len(m.Flying) > 0:
			return nil, queue.QuarantineWait
		default:
			m.Suspects = m.Suspects[1:]
			m.fly(id)
			return []string{id}, queue.QuarantineTaken
		}
	}
	for left := n; len(m.Ready) > 0 && (left > 0 || len(ids) == 0); left-- {
		if left == 0 {
			left = n // there were entries of deleted jobs only
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
		m.fly(id)
		ids = append(ids, id)
	}
	return ids, state
}

func (m *Shard) fly(id string) {
	m.Flying[id], m.Flight[id] = m.Waiting[id], m.Pop
	if rest := m.Flying[id].cut(m.Piece, m.PieceBytes); rest != nil {
		m.Parked[id] = rest // as if it was pushed from now on
	}
	m.seats++
	m.Seat[id] = m.seats
	delete(m.Waiting, id)
}

// land takes an id out of its flight; answered: a handler had it and said something.
func (m *Shard) land(id string, number int64, answered bool) *Job {
	job := m.Flying[id]
	if job == nil || m.Flight[id] != number {
		return nil
	}
	delete(m.Flying, id)
	delete(m.Flight, id)
	delete(m.Notes, id)
	if answered {
		delete(m.Crashes, id)
	}
	return job
}

// reunite joins what was parked with the job that comes back. Its own retry count,
// due time and error, if it has one, win.
func (m *Shard) reunite(id string, job *Job) {
	if p := m.Parked[id]; p != nil {
		for _, payload := range p.Payloads {
			job.put(payload)
		}
		job.Err = cmp.Or(job.Err, p.Err)
		delete(m.Parked, id)
	}
	m.Waiting[id] = job
}

// unpark lets what was pushed during a flight wait by itself, since its own time.
func (m *Shard) unpark(id string) {
	job := m.Parked[id]
	if job == nil {
		return
	}
	delete(m.Parked, id)
	m.Waiting[id] = job
	m.enqueue(id)
}

func (m *Shard) Ack(number int64, id string) int { return m.done(number, queue.Answer{ID: id}, "") }

// done ends a job's flight, with what its handler has to say, and what the journal gets, if that is not empty: that
// counts once, as the ack does.
func (m *Shard) done(number int64, answer queue.Answer, line string) int {
	log := m.log(answer.ID)
	job := m.land(answer.ID, number, true)
	if job == nil {
		return 0
	}
	m.Processed++
	if line != "" {
		m.write(line, log)
	}
	m.unpark(answer.ID)
	m.keep(answer.ID, answer.State, answer.Stated)
	if answer.Callers > 0 {
		text := "done"
		if answer.Result != nil {
			text += "\n" + string(answer.Result)
		}
		m.tell(job.Payloads, text)
	}
	return 1
}

// keep replaces the state of an id, if stated; nil deletes it.
func (m *Shard) keep(id string, state []byte, stated bool) {
	switch {
	case stated && state == nil:
		delete(m.States, id)
	case stated:
		m.States[id] = &State{string(state), m.Now, true}
	}
}

// Note is what a handler says of a job that it has.
func (m *Shard) Note(n queue.Note) (taken bool) {
	if m.Flying[n.ID] == nil || m.Flight[n.ID] != n.Flight {
		return false
	}
	if n.Progress != 0 || n.Log != "" {
		share, line := fmt.Sprint(n.Progress), n.Log
		if was, noted := m.Notes[n.ID]; noted { // what is zero stays as it was
			wasShare, wasLine, _ := strings.Cut(was, "\n")
			if n.Progress == 0 {
				share = wasShare
			}
			line = journal.JoinLog(wasLine, line)
		}
		m.Notes[n.ID] = share + "\n" + line
	}
	m.keep(n.ID, n.State, n.State != nil)
	return true
}

// expire forgets states that are older than they are kept, of the oldest at most 100.
func (m *Shard) expire(after time.Duration) {
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

func (m *Shard) Nack(n queue.Nack) int {
	log := m.log(n.ID)
	job := m.land(n.ID, n.Flight, n.Kind != queue.Return)
	if job == nil {
		return 0
	}
	if n.Kind == queue.Retry {
		job.Retry, job.Err = n.RetryCount, n.Error
		m.Failed++
		m.run(journal.Run{ID: n.ID, Verdict: journal.Failed, RetryCount: n.RetryCount, Error: queue.Summary(n.Error), Ran: n.Ran}, log)
	}
	if n.Cancelled || n.Kind == queue.Postpone && !n.Limited {
		end := journal.Postponed
		if n.Cancelled {
			end = journal.Cancelled
		}
		m.run(journal.Run{ID: n.ID, Verdict: end, RetryCount: n.RetryCount, Error: queue.Summary(n.Error), Ran: n.Ran}, log)
	}
	m.reunite(n.ID, job)
	if n.Kind == queue.Return {
		m.toHead(n.ID)
		return 1
	}
	if job.Since = job.WaitsSince(); n.Kind == queue.Retry {
		job.Since = 0
	}
	job.Group = n.Kind == queue.Postpone && (n.Limited || n.Group)
	job.At, job.Soft = m.Now+n.Delay.Microseconds(), true
	if n.Kind == queue.Hold {
		job.At, job.Soft = queue.HeldAt.UnixMicro(), false
	}
	if job.Retry < 0 && job.At > m.Now {
		delete(m.Since, n.ID) // it waits for that
	}
	m.enqueue(n.ID)
	return 1
}

func (m *Shard) toHead(id string) {
	if _, suspect := m.Crashes[id]; suspect {
		m.Suspects = slices.Insert(m.Suspects, 0, id)
	} else {
		m.Ready = slices.Insert(m.Ready, 0, id)
	}
}

func (m *Shard) Bury(b queue.Burial) int {
	log := m.log(b.ID)
	job := m.land(b.ID, b.Flight, true)
	if job == nil {
		return 0
	}
	end, told := journal.Exhausted, "deleted"
	if b.Cancelled {
		end = journal.Cancelled
	} else if b.Expired > 0 {
		end, told = journal.Expired, "expired"
	}
	m.run(journal.Run{ID: b.ID, Verdict: end, RetryCount: b.RetryCount, Error: queue.Summary(b.Error), Ran: b.Ran}, log)
	if b.Policy != queue.Drop && b.Expired == 0 && !(b.Cancelled && b.Policy == queue.Bury) {
		m.Failed++
	}
	if b.Expired > 0 && b.Places != nil {
		m.cut(&b, job)
		return 1
	}
	switch b.Policy {
	case queue.Drop:
		m.tell(job.Payloads, told)
		m.unpark(b.ID)
	case queue.Block:
		job.Retry, job.Err, job.At, job.Soft, job.Since = b.RetryCount, b.Error, m.Now, true, 0
		m.reunite(b.ID, job)
		m.Blocked[b.ID] = true
	case queue.Bury:
		m.entomb(b.ID, job.Payloads, b.RetryCount, b.Error)
		m.unpark(b.ID)
	case queue.Skip:
		k := job.smallest()
		m.entomb(b.ID, job.Payloads[k:k+1], b.RetryCount, b.Error)
		job.Payloads = slices.Delete(job.Payloads, k, k+1)
		if len(job.Payloads) == 0 {
			m.unpark(b.ID)
			return 1
		}
		job.Err = b.Error
		m.reunite(b.ID, m.dueNow(job))
		m.Ready = append(m.Ready, b.ID)
	}
	return 1
}

// cut ends those payloads of a job that have expired, and puts the rest back to the head.
func (m *Shard) cut(b *queue.Burial, job *Job) {
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
	if job.Payloads = rest; b.Policy == queue.Drop {
		m.tell(gone, "expired")
	} else if len(gone) > 0 {
		m.entomb(b.ID, gone, b.RetryCount, b.Error)
	}
	if len(rest) == 0 {
		m.unpark(b.ID)
		return
	}
	m.reunite(b.ID, job)
	m.toHead(b.ID)
}

func (m *Shard) entomb(id string, payloads []Payload, retry int, err string) {
	dead := m.Morgue[id]
	if dead == nil {
		dead = &Job{}
		m.Morgue[id] = dead
	}
	for _, p := range payloads {
		dead.put(p)
	}
	m.tell(payloads, "buried\n"+err)
	dead.Retry, dead.Err, dead.At, dead.Soft = retry, cmp.Or(err, dead.Err), m.Now, true
}

// Recover puts everything in flight back to the head, in the order in which the pops
// took it.
func (m *Shard) Recover(cause queue.Cause) (back, buried int) {
	ids := make([]string, 0, len(m.Flying))
	for id := range m.Flying {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(x, y string) int {
		return m.Seat[x] - m.Seat[y]
	})
	for _, id := range slices.Backward(ids) {
		if cause == queue.Seize && m.judge(id, len(ids) == 1) {
			buried += len(m.Flying[id].Payloads)
			m.entomb(id, m.Flying[id].Payloads, m.Flying[id].Retry, fmt.Sprintf("crash: its worker died %d times while it ran alone", m.Crashes[id]))
			m.land(id, m.Flight[id], true)
			m.unpark(id)
			continue
		}
		m.reunite(id, m.land(id, m.Flight[id], false))
		m.toHead(id)
	}
	m.Pop = 0
	return len(ids), buried
}

// log is what was noted of an id in its flight.
func (m *Shard) log(id string) string {
	_, log, _ := strings.Cut(m.Notes[id], "\n")
	return log
}

// run remembers how a run ended, if the journal is to have it.
func (m *Shard) run(r journal.Run, log string) {
	if r.Verdict == journal.Crashed || m.Journal.Keeps(r.Verdict, r.ID) {
		m.write(string(r.Append(nil)), log)
	}
}

// write adds a line to the journal. What was noted before the run ended comes before what its line has.
func (m *Shard) write(line, log string) {
	runs, err := journal.Parse(line, "", time.Time{})
	if err != nil {
		panic(err)
	}
	for _, r := range runs {
		r.Log = journal.JoinLog(log, r.Log)
		m.Runs = append(m.Runs, Sketch([]journal.Run{r}))
	}
}

// judge puts an id in quarantine, or counts a crash that nobody else can have caused.
func (m *Shard) judge(id string, alone bool) (poison bool) {
	if _, suspect := m.Crashes[id]; !suspect {
		m.Crashes[id] = 0
		return false
	}
	if alone {
		m.Crashes[id]++
		m.run(journal.Run{ID: id, Verdict: journal.Crashed, RetryCount: m.Flying[id].Retry, Error: "its worker died while it ran alone"}, m.log(id))
		return m.MaxCrashes > 0 && m.Crashes[id] >= m.MaxCrashes
	}
	return false
}

func (m *Shard) AckAll(acks []queue.Acks) (n int) {
	stateFor := time.Duration(0)
	for _, a := range acks {
		for i, id := range a.IDs {
			answer := queue.Answer{ID: id}
			if k := slices.IndexFunc(a.Answers, func(of queue.Answer) bool { return of.ID == id }); k >= 0 {
				answer = a.Answers[k]
			}
			_, from := a.Runs.Cut(i)
			line, _ := from.Cut(1)
			n += m.done(a.Flight, answer, line.Text())
		}
		for i := range a.Answers {
			stateFor = a.Answers[i].StateFor
		}
	}
	if stateFor > 0 {
		m.expire(stateFor)
	}
	return n
}

// Sketch shows runs without their times and instances.
func Sketch(list []journal.Run) string {
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
