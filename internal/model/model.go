// Package model answers one question: what do the rules say of a shard, whatever its scripts do?
// It is section 4 of the design in plain Go, a specification: it was written from the rules, not from
// the scripts. The property test of queue holds the two against each other after each step. Times are
// unix microseconds. A Shard belongs to one goroutine.
package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Shard is what there is of a shard.
type Shard struct {
	Now      int64 // the time of the present step
	Payloads int   // most payloads waiting for an id
	Bytes    int   // most bytes waiting for an id

	Coalesce string         // of the queue's rules, as package rules has it
	Debounce rules.Debounce // the same, with its defaults

	Piece      int // most payloads of an id in one flight
	PieceBytes int // most bytes, but for one payload

	Waiting   map[string]*Job // what waits, outside flights
	Ready     []string        // ids due now, in order; also tombs
	Tombs     map[string]bool // deleted ids whose place in ready is left
	Stale     map[string]bool // scheduled ids whose place of before in ready is left
	Scheduled map[string]bool // waits for its due time
	Blocked   map[string]bool // waits for a person
	Suspects  []string        // ids in quarantine, in order
	Crashes   map[string]int  // ids in quarantine, also those in flight

	Flying map[string]*Job  // what handlers have
	Flight map[string]int64 // the number of an id's flight
	Seat   map[string]int   // the order in which pops took ids
	seats  int
	Parked map[string]*Job  // pushed while the id was in flight
	Since  map[string]int64 // when the first push came of ids that pushes put off, or did not long ago

	Morgue  map[string]*Job
	Replies map[string]Reply  // to calls, by token
	News    []News            // told since the caller last forgot it
	States  map[string]*State // by id
	Notes   map[string]string // of ids in flight: share and line
	From    map[string]int64  // by source: the number of the last delivery, or entry

	Imported map[string]*imported // by source, zero byte and id

	Journal           journal.Rule
	Runs              []string // how they ended, all of which the journal was told, oldest first
	Processed, Failed int64
	Pop               int64
	MaxCrashes        int
}

// Payload is soft while its score is known only to be the time of the step.
type Payload struct {
	Data  string // as stored, in its envelope
	Score float64
	Soft  bool
}

func (p Payload) equals(other Payload) bool {
	return BareOf(p.Data) == BareOf(other.Data)
}

// Reply is how a call has ended, and how long that is kept.
type Reply struct {
	Text string
	Keep time.Duration
}

// News is a reply that a channel was told.
type News struct{ Channel, Token, Text string }

// State is what a handler keeps of an id. When that was written is soft like a score.
type State struct {
	Data string
	At   int64
	Soft bool
}

// StoredOf is a payload as it is stored, but for who called.
func StoredOf(p lowkiq.Payload) string { return StoredWith(p, "") }

// StoredWith is a payload as it is stored, with the address of who called.
func StoredWith(p lowkiq.Payload, address string) string {
	return string(envelope.Wrap(p.Header, address, p.Data))
}

// Handed is a payload as its handler gets it, wrapped again: without the address.
func (p Payload) Handed() string {
	content, _ := envelope.Open(p.Data)
	return StoredOf(lowkiq.Payload{Header: content.Header, Data: []byte(content.Data)})
}

// Callers is how many of the payloads have an address.
func (j *Job) Callers() (n int) {
	for _, p := range j.Payloads {
		if content, _ := envelope.Open(p.Data); content.Address != "" {
			n++
		}
	}
	return n
}

// BareOf is what of a stored payload others are compared with: all but its headers.
func BareOf(stored string) string {
	content, ok := envelope.Open(stored)
	if !ok {
		return stored // one that was cut short is equal to itself alone
	}
	return string(envelope.Wrap("", content.Address, []byte(content.Data)))
}

// Job has its payloads in push order. Its due time is soft like a score.
type Job struct {
	Payloads []Payload
	Retry    int
	Err      string
	At       int64 // when it may run next
	Soft     bool
	Since    int64 // since when it waits, if it was put off without a failure; else 0, and it waits since At
	Group    bool  // its group has put it off last
}

// WaitsSince is since when the job waits.
func (j *Job) WaitsSince() int64 { return cmp.Or(j.Since, j.At) }

// NewShard is an empty shard with these limits of what waits for an id.
func NewShard(payloads, bytes int) *Shard {
	return &Shard{
		Payloads: payloads, Bytes: bytes, Piece: 2000, PieceBytes: 1 << 20,
		Waiting: map[string]*Job{}, Tombs: map[string]bool{}, Stale: map[string]bool{}, Scheduled: map[string]bool{}, Blocked: map[string]bool{},
		Crashes: map[string]int{}, Flying: map[string]*Job{}, Flight: map[string]int64{}, Seat: map[string]int{}, Parked: map[string]*Job{}, Since: map[string]int64{},
		Morgue: map[string]*Job{}, Replies: map[string]Reply{}, States: map[string]*State{}, Notes: map[string]string{}, From: map[string]int64{}, Imported: map[string]*imported{},
	}
}

// Size is the bytes of all payloads.
func (j *Job) Size() (n int) {
	for _, p := range j.Payloads {
		n += len(p.Data)
	}
	return n
}

// put adds a payload. Of equal ones the smaller score stays, and the headers of the older one.
func (j *Job) put(p Payload) (added bool) {
	for i := range j.Payloads {
		if old := j.Payloads[i]; old.equals(p) {
			if p.Score < old.Score {
				p.Data = old.Data
				j.Payloads = append(slices.Delete(j.Payloads, i, i+1), p)
			}
			return false
		}
	}
	j.Payloads = append(j.Payloads, p)
	return true
}

// smallest is the place of the payload with the smallest score, the first of equals.
func (j *Job) smallest() int {
	k := 0
	for i, p := range j.Payloads {
		if p.Score < j.Payloads[k].Score {
			k = i
		}
	}
	return k
}

// InOrder are the payloads as a handler gets them.
func (j *Job) InOrder() []Payload {
	sorted := slices.Clone(j.Payloads)
	slices.SortStableFunc(sorted, func(x, y Payload) int {
		switch {
		case x.Score < y.Score:
			return -1
		case x.Score > y.Score:
			return 1
		}
		return 0
	})
	return sorted
}

// cut leaves a piece of a job, the lowest payloads, and returns the rest as a fresh job; nil if
// there is none.
func (j *Job) cut(most, room int) (rest *Job) {
	sorted := j.InOrder()
	n, size := 1, len(sorted[0].Data)
	for n < len(sorted) && n < most && size+len(sorted[n].Data) <= room {
		size += len(sorted[n].Data)
		n++
	}
	if n == len(sorted) {
		return nil
	}
	rest = &Job{Retry: -1, At: j.WaitsSince() + 1, Soft: j.Soft} // it has its own place in the line
	var piece []Payload
	for _, p := range j.Payloads {
		if slices.Contains(sorted[:n], p) {
			piece = append(piece, p)
		} else {
			rest.Payloads = append(rest.Payloads, p)
		}
	}
	j.Payloads = piece
	return rest
}

// dueNow makes the job fresh and due at the time of the step. Its last error stays.
func (m *Shard) dueNow(j *Job) *Job {
	j.Retry, j.At, j.Soft, j.Since, j.Group = -1, m.Now, true, 0, false
	return j
}

// wait returns what waits for an id and whether the id is in flight.
func (m *Shard) wait(id string) (home map[string]*Job, busy bool) {
	if m.Flying[id] != nil {
		return m.Parked, true
	}
	return m.Waiting, false
}

// enqueue puts an id that waits nowhere to its place.
func (m *Shard) enqueue(id string) {
	if m.Waiting[id].At <= m.Now {
		m.Ready = append(m.Ready, id)
	} else {
		m.Scheduled[id] = true
	}
}

// arrive is enqueue for an id that comes from outside: it may find its own tomb.
func (m *Shard) arrive(id string) {
	if m.Tombs[id] {
		delete(m.Tombs, id)
		if m.Waiting[id].At <= m.Now {
			return
		}
		m.Stale[id] = true
	}
	m.enqueue(id)
}

// lineUp lets an id that waited elsewhere wait in ready: where it once stood, if that place is
// left.
func (m *Shard) lineUp(id string) {
	if m.Stale[id] {
		delete(m.Stale, id)
		return
	}
	m.Ready = append(m.Ready, id)
}

func without(list []string, id string) []string {
	return slices.DeleteFunc(list, func(x string) bool { return x == id })
}

// Verdict is the answer to one pushed job.
type Verdict string

const (
	Stored      Verdict = "stored"
	Merged      Verdict = "merged"
	TooMany     Verdict = "too many payloads"
	TooManyByte Verdict = "too many bytes"
	Unsent      Verdict = "unsent"
	Before      Verdict = "delivered before"
)

// Push stores one payload; at 0 = now; full if an earlier payload of the id in the same push was
// refused; next are those of the id behind it there that nobody waits for.
func (m *Shard) Push(id string, p Payload, at int64, full bool, next ...Payload) (verdict Verdict) {
	home, _ := m.wait(id)
	later := m.putOff(id, at)
	before := home[id]
	if before != nil {
		verdict = m.coalesce(before, p, full, next)
	}
	if verdict == "" {
		verdict = m.store(id, p, max(at, later), full)
	}
	if later == 0 || verdict != Stored && verdict != Merged {
		return verdict
	}
	if before == nil {
		m.Since[id] = m.Now
	}
	home[id].At, home[id].Soft = later, true
	return verdict
}

// putOff is until when a push at a time puts its id off; 0: it does not.
func (m *Shard) putOff(id string, at int64) int64 {
	home, busy := m.wait(id)
	job, quiet := home[id], m.Debounce.Quiet.Microseconds()
	switch {
	case quiet <= 0:
		return 0
	case at != 0:
		if job == nil {
			delete(m.Since, id) // it waits for that time
		}
		return 0
	case job == nil:
		return m.Now + quiet
	}
	first, there := m.Since[id]
	if !there || !busy && (!m.Scheduled[id] || job.Retry >= 0 || m.Held(id)) {
		return 0
	}
	return max(m.Now, job.At, min(m.Now+quiet, first+m.Debounce.Most.Microseconds()))
}

// Forget forgets, after a push, when others came that put off what is due long since.
func (m *Shard) Forget() {
	for id, first := range m.Since {
		if m.Debounce.Quiet > 0 && first <= m.Now-(m.Debounce.Most+time.Minute).Microseconds() {
			delete(m.Since, id)
		}
	}
}

// store is Push whatever the queue's rule of pushes is.
func (m *Shard) store(id string, p Payload, at int64, full bool) Verdict {
	home, busy := m.wait(id)
	job := home[id]
	if job == nil {
		job = &Job{Payloads: []Payload{p}, Retry: -1, At: at}
		if at == 0 {
			m.dueNow(job)
		}
		home[id] = job
		if !busy {
			m.arrive(id)
		}
		return Stored
	}
	equal := slices.ContainsFunc(job.Payloads, p.equals)
	switch {
	case equal:
		job.put(p)
		return Merged
	case full:
		return Unsent
	case len(job.Payloads) >= m.Payloads:
		return TooMany
	case job.Size()+len(p.Data) > m.Bytes:
		return TooManyByte
	}
	job.put(p)
	return Stored
}

// coalesced is how many payloads may wait for an id that a push looks through for one to replace.
const coalesced = 32

// coalesce is a push to an id for which something waits, by the queue's rule; "": the rule says nothing of it.
func (m *Shard) coalesce(job *Job, p Payload, full bool, next []Payload) Verdict {
	called := func(p Payload) bool { content, _ := envelope.Open(p.Data); return content.Address != "" }
	switch {
	case called(p):
		return ""
	case m.Coalesce == rules.CoalesceOnce:
		return Merged
	case m.Coalesce != rules.CoalesceLatest:
		return ""
	case len(job.Payloads) > coalesced || len(job.Payloads) > 1 && job.Size() > m.PieceBytes:
		// A push joins what is too much to look through, unless it comes again and something took the place of this one.
		if n := len(next); n > 0 && next[n-1].Score >= p.Score && slices.ContainsFunc(job.Payloads, next[n-1].equals) {
			return Merged
		}
		return ""
	}
	newest := -1
	for i, one := range job.Payloads {
		if !called(one) && (newest < 0 || one.Score >= job.Payloads[newest].Score) {
			newest = i
		}
	}
	var stays, equal bool
	if newest >= 0 {
		was := job.Payloads[newest]
		equal = was.equals(p)
		stays = p.Score < was.Score || equal && (p.Soft || p.Score == was.Score)
		// A push that comes again: what took the place of this one waits already.
		for _, one := range slices.Backward(next) {
			if !equal && one.equals(was) {
				stays = stays || one.Score >= p.Score
				break
			}
		}
	}
	left := &Job{}
	for i, one := range job.Payloads {
		if called(one) || stays && i == newest {
			left.Payloads = append(left.Payloads, one)
		}
	}
	verdict := Stored
	switch {
	case stays:
		job.Payloads = left.Payloads
		return Merged
	case equal:
		verdict = Merged
	case full:
		return Unsent
	case len(left.Payloads) >= m.Payloads:
		return TooMany
	}
	if left.Size()+len(p.Data) > m.Bytes {
		return TooManyByte
	}
	job.Payloads = append(left.Payloads, p)
	return verdict
}

// Deliver is Push of one payload, unless the source's delivery of this number was taken in before.
func (m *Shard) Deliver(source string, number int64, id string, p Payload, at int64) Verdict {
	if number <= m.From[source] {
		return Before
	}
	verdict := m.store(id, p, at, false)
	if verdict == Stored || verdict == Merged {
		m.From[source] = number
	}
	return verdict
}

// tell tells the callers of payloads how these have ended.
func (m *Shard) tell(payloads []Payload, text string) {
	for _, p := range payloads {
		content, _ := envelope.Open(p.Data)
		if to, ok := envelope.ParseAddress(content.Address); ok {
			m.Replies[to.Token] = Reply{text, to.Keep}
			m.News = append(m.News, News{to.Channel, to.Token, text})
		}
	}
}

// String shows payloads in the order in which a handler gets them.
func (j *Job) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "retry %d, %q, at %d, since %d:", j.Retry, j.Err, j.At, j.Since)
	for _, p := range j.InOrder() {
		fmt.Fprintf(&b, " %.30q %v", p.Data, p.Score)
	}
	return b.String()
}

// Harden replaces soft times by the real ones.
func (j *Job) Harden(real *Job, lo, hi int64) {
	if j.Soft && real.At-j.At >= 0 && real.At-j.At <= hi-lo {
		j.At, j.Soft = real.At, false
	}
	for i := range j.Payloads {
		p := &j.Payloads[i]
		for _, r := range real.Payloads {
			if p.Soft && r.Data == p.Data && r.Score >= float64(lo)/1e6 && r.Score <= float64(hi)/1e6 {
				p.Score, p.Soft = r.Score, false
			}
		}
	}
}
