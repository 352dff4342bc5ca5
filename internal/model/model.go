// Package model answers one question: what do the rules say of a shard, whatever its scripts do?
//
// It is section 4 of the design in plain Go, a specification that was written from the rules and not from the
// scripts. The property test of queue/protocol compares the model with Redis after each step. Package lowkiqtest
// uses it as a queue without Redis. Times are unix microseconds. A Shard must not be used by two goroutines at once.
//
// Redis scripts read the clock themselves, so the model does not know the exact time of a step. Scores and times
// that the model took from Now are soft, until ResolveSoft replaces them by the real values.
package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Shard is the state of a shard.
type Shard struct {
	Now         int64 // the time of the present step
	MaxPayloads int   // of an id that wait
	MaxBytes    int   // of these payloads

	Coalesce string         // the queue's rule, as in package rules
	Debounce rules.Debounce // the queue's rule, with its defaults

	MaxPiece      int // payloads of an id in a flight
	MaxPieceBytes int // bytes of these payloads, unless a payload alone is larger

	Waiting   map[string]*Job // jobs outside of flights
	Ready     []string        // ids due now, in order; also tombstones
	Tombs     map[string]bool // deleted ids that are still in Ready
	Stale     map[string]bool // ids that wait elsewhere and still have an entry in Ready
	Urgent    map[string]*urgency
	Scheduled map[string]bool // ids that wait for their due time
	Blocked   map[string]bool // ids that wait for a person
	Suspects  []string        // ids in quarantine that wait, in order
	Crashes   map[string]int  // crashes of ids in quarantine, also of those in flight

	InFlight    map[string]*Job  // jobs in flights
	FlightOf    map[string]int64 // the number of an id's flight
	PopOrder    map[string]int   // grows with each id that a pop took
	popped      int              // the last value in PopOrder
	Parked      map[string]*Job  // payloads that were pushed while their id was in flight
	PutOffSince map[string]int64 // the first push of ids that pushes put off now, or did not long ago

	Morgue     map[string]*Job
	Replies    map[string]Reply  // to calls, by token
	Messages   []Message         // published since the caller emptied it
	States     map[string]*State // by id
	Notes      map[string]string // of ids in flight: share, newline, lines of log
	LastNumber map[string]int64  // by source: the number of the last delivery or import

	Imported map[string]*importState // by source, zero byte and id

	Journal           journal.Rule
	Runs              []string // the ends of runs that the journal got, oldest first
	Processed, Failed int64
	PopNumber         int64
	MaxCrashes        int
}

// Payload is a pushed payload. It is soft if its score is the time of its step, which is not exactly known yet.
type Payload struct {
	Data  string // as stored, in its envelope
	Score float64
	Soft  bool
}

func (p Payload) equals(other Payload) bool {
	return ComparedPart(p.Data) == ComparedPart(other.Data)
}

// Reply is the reply to a call, and how long it is kept.
type Reply struct {
	Text string
	Keep time.Duration
}

// Message is a reply as it was published on a channel.
type Message struct{ Channel, Token, Text string }

// State is the state that a handler keeps of an id. At is when it was written; Soft says whether At is soft.
type State struct {
	Data string
	At   int64
	Soft bool
}

// Envelope returns a payload as it is stored without a caller.
func Envelope(p lowkiq.Payload) string { return EnvelopeTo(p, "") }

// EnvelopeTo returns a payload as it is stored with the address of a caller.
func EnvelopeTo(p lowkiq.Payload, address string) string {
	return string(envelope.Wrap(p.Header, address, p.Data))
}

// AsHandled returns the payload as it would be stored without its caller, which a handler does not see.
func (p Payload) AsHandled() string {
	content, _ := envelope.Open(p.Data)
	return Envelope(lowkiq.Payload{Header: content.Header, Data: []byte(content.Data)})
}

// CountCallers returns the number of payloads with the address of a caller.
func (j *Job) CountCallers() (n int) {
	for _, p := range j.Payloads {
		if content, _ := envelope.Open(p.Data); content.Address != "" {
			n++
		}
	}
	return n
}

// ComparedPart returns the part of a stored payload that decides whether payloads are equal: all but its headers.
func ComparedPart(stored string) string {
	content, ok := envelope.Open(stored)
	if !ok {
		return stored // a payload that was cut short equals only itself
	}
	return string(envelope.Wrap("", content.Address, []byte(content.Data)))
}

// Job has its payloads in push order.
type Job struct {
	Payloads []Payload
	Retry    int // failures minus 1; -1 if it has not failed
	Err      string
	At       int64 // when it may run next
	Soft     bool  // At is soft
	Since    int64 // since when it waits, if it was put off without a failure; 0 if it waits since At
	Group    bool  // its group was the last to put it off
}

// WaitsSince returns the time since which the job waits.
func (j *Job) WaitsSince() int64 { return cmp.Or(j.Since, j.At) }

// NewShard returns an empty shard with limits for the waiting payloads of an id.
func NewShard(payloads, bytes int) *Shard {
	return &Shard{
		MaxPayloads: payloads, MaxBytes: bytes, MaxPiece: 2000, MaxPieceBytes: 1 << 20,
		Waiting: map[string]*Job{}, Tombs: map[string]bool{}, Stale: map[string]bool{}, Urgent: map[string]*urgency{}, Scheduled: map[string]bool{}, Blocked: map[string]bool{},
		Crashes: map[string]int{}, InFlight: map[string]*Job{}, FlightOf: map[string]int64{}, PopOrder: map[string]int{}, Parked: map[string]*Job{}, PutOffSince: map[string]int64{},
		Morgue: map[string]*Job{}, Replies: map[string]Reply{}, States: map[string]*State{}, Notes: map[string]string{}, LastNumber: map[string]int64{}, Imported: map[string]*importState{},
	}
}

// Size returns the bytes of all payloads.
func (j *Job) Size() (n int) {
	for _, p := range j.Payloads {
		n += len(p.Data)
	}
	return n
}

// addPayload adds a payload. If an equal payload is there, they merge, with the smaller score and the headers
// of the older payload.
func (j *Job) addPayload(p Payload) (added bool) {
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

// lowestIndex returns the index of the payload with the smallest score. Of equal scores it is the first.
func (j *Job) lowestIndex() int {
	k := 0
	for i, p := range j.Payloads {
		if p.Score < j.Payloads[k].Score {
			k = i
		}
	}
	return k
}

// InOrder returns the payloads in the order of their delivery to a handler.
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

// splitOff leaves the payloads with the smallest scores in the job, within the given bounds. It returns the rest
// as a new job, nil if there is no rest.
func (j *Job) splitOff(maxPayloads, maxBytes int) (rest *Job) {
	sorted := j.InOrder()
	n, size := 1, len(sorted[0].Data)
	for n < len(sorted) && n < maxPayloads && size+len(sorted[n].Data) <= maxBytes {
		size += len(sorted[n].Data)
		n++
	}
	if n == len(sorted) {
		return nil
	}
	rest = &Job{Retry: -1, At: j.WaitsSince() + 1, Soft: j.Soft} // behind the piece in the line
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

// makeFresh makes the job due at the time of the step, as if it had not failed. Its last error stays.
func (m *Shard) makeFresh(j *Job) *Job {
	j.Retry, j.At, j.Soft, j.Since, j.Group = -1, m.Now, true, 0, false
	return j
}

// placeOf returns the map where new payloads of an id wait, and whether the id is in flight.
func (m *Shard) placeOf(id string) (home map[string]*Job, busy bool) {
	if m.InFlight[id] != nil {
		return m.Parked, true
	}
	return m.Waiting, false
}

// enqueueID puts an id into the line, or schedules it if it is due later.
func (m *Shard) enqueueID(id string) {
	if m.Waiting[id].At <= m.Now {
		m.joinReady(id)
	} else {
		m.Scheduled[id] = true
	}
}

// enqueueNew is enqueueID for an id that comes from outside. If its tombstone is still in the line, the id takes
// that place.
func (m *Shard) enqueueNew(id string) {
	if m.Tombs[id] {
		delete(m.Tombs, id)
		if m.Waiting[id].At <= m.Now {
			return
		}
		m.Stale[id] = true
	}
	m.enqueueID(id)
}

// joinReady puts a due id into the line, at its place if it has one there.
func (m *Shard) joinReady(id string) {
	if !m.takeSeat(id) {
		m.Ready = append(m.Ready, id)
	}
}

func removeID(list []string, id string) []string {
	return slices.DeleteFunc(list, func(x string) bool { return x == id })
}

// Verdict is the answer to a pushed job.
type Verdict string

const (
	Stored      Verdict = "stored"
	Merged      Verdict = "merged"
	TooMany     Verdict = "too many payloads"
	TooManyByte Verdict = "too many bytes"
	Unsent      Verdict = "unsent"
	Before      Verdict = "delivered before"
)

// Undelayed as the due time of a push means now. The push is not put off by debounce.
const Undelayed = -1

// PushPayload stores a payload that is due at a time, 0 for now. full says that an earlier payload of the id in the
// same push was refused. next has the later payloads of the id in the same push that belong to no call.
func (m *Shard) PushPayload(id string, p Payload, at int64, full bool, next ...Payload) (verdict Verdict) {
	home, _ := m.placeOf(id)
	later := m.debounceUntil(id, at)
	before := home[id]
	if before != nil {
		verdict = m.coalescePush(before, p, full, next)
	}
	if verdict == "" {
		verdict = m.storePayload(id, p, max(at, later), full)
	}
	if later == 0 || verdict != Stored && verdict != Merged {
		return verdict
	}
	if before == nil {
		m.PutOffSince[id] = m.Now
	}
	home[id].At, home[id].Soft = later, true
	return verdict
}

// debounceUntil returns the time until which a push puts its id off, 0 if it does not. at is the due time of the
// push, 0 for now.
func (m *Shard) debounceUntil(id string, at int64) int64 {
	home, busy := m.placeOf(id)
	job, quiet := home[id], m.Debounce.Quiet.Microseconds()
	switch {
	case quiet <= 0:
		return 0
	case at != 0:
		if job == nil {
			delete(m.PutOffSince, id) // it waits for its own time
		}
		return 0
	case job == nil:
		return m.Now + quiet
	}
	first, there := m.PutOffSince[id]
	if !there || !busy && (!m.Scheduled[id] || job.Retry >= 0 || m.IsHeld(id)) {
		return 0
	}
	return max(m.Now, job.At, min(m.Now+quiet, first+m.Debounce.Most.Microseconds()))
}

// ForgetPushes runs after a push. It forgets the first pushes of ids that have long been due.
func (m *Shard) ForgetPushes() {
	for id, first := range m.PutOffSince {
		if m.Debounce.Quiet > 0 && first <= m.Now-(m.Debounce.Most+time.Minute).Microseconds() {
			delete(m.PutOffSince, id)
		}
	}
}

// storePayload is PushPayload without the queue's rules of pushes.
func (m *Shard) storePayload(id string, p Payload, at int64, full bool) Verdict {
	home, busy := m.placeOf(id)
	job := home[id]
	if job == nil {
		job = &Job{Payloads: []Payload{p}, Retry: -1, At: at}
		if at <= 0 {
			m.makeFresh(job)
		}
		home[id] = job
		if !busy {
			m.enqueueNew(id)
		}
		return Stored
	}
	equal := slices.ContainsFunc(job.Payloads, p.equals)
	switch {
	case equal:
		job.addPayload(p)
		return Merged
	case full:
		return Unsent
	case len(job.Payloads) >= m.MaxPayloads:
		return TooMany
	case job.Size()+len(p.Data) > m.MaxBytes:
		return TooManyByte
	}
	job.addPayload(p)
	return Stored
}

// maxCoalesced is the maximum number of waiting payloads that a push searches for a payload to replace.
const maxCoalesced = 32

// coalescePush applies the queue's rule to a push whose id has waiting payloads. It returns "" if the rule lets the
// payload be stored as usual.
func (m *Shard) coalescePush(job *Job, p Payload, full bool, next []Payload) Verdict {
	called := func(p Payload) bool { content, _ := envelope.Open(p.Data); return content.Address != "" }
	switch {
	case called(p):
		return ""
	case m.Coalesce == rules.CoalesceOnce:
		return Merged
	case m.Coalesce != rules.CoalesceLatest:
		return ""
	case len(job.Payloads) > maxCoalesced || len(job.Payloads) > 1 && job.Size() > m.MaxPieceBytes:
		// There are too many payloads to look through, so the push joins them. If the push comes again, a later
		// payload of it may have replaced this payload, which must not come back.
		if n := len(next); n > 0 && next[n-1].Score >= p.Score && slices.ContainsFunc(job.Payloads, next[n-1].equals) {
			return Merged
		}
		return ""
	}
	newest := -1
	for i, old := range job.Payloads {
		if !called(old) && (newest < 0 || old.Score >= job.Payloads[newest].Score) {
			newest = i
		}
	}
	var stays, equal bool
	if newest >= 0 {
		was := job.Payloads[newest]
		equal = was.equals(p)
		stays = p.Score < was.Score || equal && (p.Soft || p.Score == was.Score)
		// If the push comes again, the payload that replaced this payload waits already.
		for _, later := range slices.Backward(next) {
			if !equal && later.equals(was) {
				stays = stays || later.Score >= p.Score
				break
			}
		}
	}
	left := &Job{}
	for i, old := range job.Payloads {
		if called(old) || stays && i == newest {
			left.Payloads = append(left.Payloads, old)
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
	case len(left.Payloads) >= m.MaxPayloads:
		return TooMany
	}
	if left.Size()+len(p.Data) > m.MaxBytes {
		return TooManyByte
	}
	job.Payloads = append(left.Payloads, p)
	return verdict
}

// DeliverPayload stores a payload unless the source's delivery of this number, or a later delivery, was stored
// before.
func (m *Shard) DeliverPayload(source string, number int64, id string, p Payload, at int64) Verdict {
	if number <= m.LastNumber[source] {
		return Before
	}
	verdict := m.storePayload(id, p, at, false)
	if verdict == Stored || verdict == Merged {
		m.LastNumber[source] = number
	}
	return verdict
}

// sendReplies stores and publishes a reply for each payload that has a caller.
func (m *Shard) sendReplies(payloads []Payload, text string) {
	for _, p := range payloads {
		content, _ := envelope.Open(p.Data)
		if to, ok := envelope.ParseAddress(content.Address); ok {
			m.Replies[to.Token] = Reply{text, to.Keep}
			m.Messages = append(m.Messages, Message{to.Channel, to.Token, text})
		}
	}
}

// String shows the job, with its payloads in the order of [Job.InOrder].
func (j *Job) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "retry %d, %q, at %d, since %d:", j.Retry, j.Err, j.At, j.Since)
	for _, p := range j.InOrder() {
		fmt.Fprintf(&b, " %.30q %v", p.Data, p.Score)
	}
	return b.String()
}

// ResolveSoft replaces soft times and scores by those of the real job, if they are within the step, which began at
// lo and ended at hi.
func (j *Job) ResolveSoft(real *Job, lo, hi int64) {
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
