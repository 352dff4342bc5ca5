package workflow

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// The kinds of messages of programs and of the handler itself.
const (
	kindStart    = "start"
	kindAdd      = "add"
	kindClose    = "close"
	kindCancel   = "cancel"
	kindRest     = "rest"     // members that did not fit into the follow-ups of a run; it has an id of its own
	kindDeadline = "deadline" // the time of the workflow is over
	kindForget   = "forget"   // the state has been kept for long enough
)

// message is a payload of the id of a workflow, unless it is the end of a member.
type message struct {
	Kind   string `json:"kind"`
	Digest string `json:"digest,omitempty"` // of a start or an add; equal requests have equal digests
	Call   string `json:"call,omitempty"`   // of a start; calls of equal requests differ
	// Jobs are the members of a start or an add. Their After has places in Jobs. The members of a rest have serials.
	Jobs       []member `json:"jobs,omitempty"`
	Done       *push    `json:"done,omitempty"`
	Dead       *push    `json:"dead,omitempty"`
	DeadlineMs int64    `json:"deadline_ms,omitempty"` // after the start; 0 for none
	Open       bool     `json:"open,omitempty"`
	Began      int64    `json:"began,omitempty"`   // which start a timer or a rest belongs to; see state.Began
	Changed    int64    `json:"changed,omitempty"` // state.Changed when a forget has left
}

// push is a push in the form in which its queue stores it.
type push struct {
	Queue string `json:"q"`
	ID    string `json:"i"`
	Data  []byte `json:"d,omitempty"`
	Score string `json:"s,omitempty"`
	At    int64  `json:"at,omitempty"` // us, 0 for at once
}

// member is a push of a workflow.
type member struct {
	push
	Serial int    `json:"m,omitempty"` // from 1, in the order in which the workflow got its members
	Name   string `json:"n,omitempty"` // for people
	After  []int  `json:"after,omitempty"`
}

// state is what the handler keeps of a workflow.
type state struct {
	Version  int      `json:"v"`
	Digest   string   `json:"digest"`
	Call     string   `json:"call,omitempty"` // that started it
	Began    int64    `json:"began"`          // ms, by Redis's clock
	Changed  int64    `json:"changed"`
	Ended    int64    `json:"ended,omitempty"`
	Total    int      `json:"total"`
	Done     int      `json:"done"`
	Dead     serials  `json:"dead,omitempty"`      // dead members with serials below maxSerials
	MoreDead int      `json:"more_dead,omitempty"` // other dead members
	Names    []string `json:"names,omitempty"`     // "<serial> <name>" of some dead members, the first that died
	Open     bool     `json:"open,omitempty"`      // members may be added

	Cancelled bool `json:"cancelled,omitempty"`
	Dropped   int  `json:"dropped,omitempty"`   // members that waited when it was cancelled
	Late      bool `json:"late,omitempty"`      // the deadline came first
	ToldDead  bool `json:"told_dead,omitempty"` // OnDead was pushed
	Timer     bool `json:"timer,omitempty"`     // a forget is on its way

	OnDone  *push    `json:"on_done,omitempty"`
	OnDead  *push    `json:"on_dead,omitempty"`
	Waiting []member `json:"waiting,omitempty"` // their After has the serials that are not done
	Left    []member `json:"left,omitempty"`    // for people: queues, ids and names of some named members that have left and are not done
	Adds    []string `json:"adds,omitempty"`    // digests of the last adds
}

// Bounds of a state. Together they stay below lowkiq.MaxStateBytes.
const (
	maxWaitingBytes = 48 << 10 // of members that wait, and of the pushes Done and Dead
	maxNameBytes    = 3 << 10  // of the names of dead members
	maxLeftBytes    = 2 << 10  // of named members that have left
	maxSerials      = 32 << 10 // members whose death is known by serial, with a bit for each
	maxAdds         = 200
)

// stateVersion is the form of states of this release.
const stateVersion = 1

// keepFor is how long a workflow is kept after its last change, once it has ended or has pushed Dead.
const keepFor = 7 * 24 * time.Hour

// event is a payload of the id of a workflow: a message, or the end of a member.
type event struct {
	message
	serial int    // of the member that has ended; 0 for a message
	began  int64  // of its workflow; an earlier workflow may have had the same id
	end    string // as lua/lib/tell.lua has it
	name   string
}

// parseEvent parses a payload.
func parseEvent(text []byte) (e event, err error) {
	if len(text) > 0 && text[0] == '{' {
		if err := json.Unmarshal(text, &e.message); err != nil {
			return e, fmt.Errorf("not a message of a workflow: %w", err)
		}
		return e, nil
	}
	if words := strings.SplitN(string(text), " ", 4); len(words) == 4 {
		e.end, e.name = words[0], words[3]
		e.serial, _ = strconv.Atoi(words[1])
		e.began, _ = strconv.ParseInt(words[2], 36, 64)
	}
	if e.serial < 1 {
		return e, fmt.Errorf("not the end of a member: %.40q", text)
	}
	return e, nil
}

// words returns the words of a member in its address.
func (m *member) words(began int64) string {
	return fmt.Sprintf("%d %s %s", m.Serial, strconv.FormatInt(began, 36), m.Name)
}

// outcome is what follows from events.
type outcome struct {
	state   *state // nil deletes it
	members []member
	pushes  []push
	// refused says, by place, why events are not taken. Nothing has happened then, and they must not come again.
	refused map[int]error
}

// step returns what follows from the events of workflow id. s is its state, nil if there is none; step may change it.
// An event comes once, and the events of an id may come in any order.
func step(id string, s *state, events []event, now time.Time) (o outcome) {
	for i := range events {
		if err := checkEvent(s, &events[i]); err != nil {
			if o.refused == nil {
				o.refused = map[int]error{}
			}
			o.refused[i] = err
		}
		if s == nil && events[i].Kind == kindStart { // later events are for it
			s = newState(&events[i].message, now)
			o.addMembers(s, events[i].Jobs)
			if events[i].DeadlineMs > 0 {
				o.pushes = append(o.pushes, timer(id, kindDeadline, s, now.Add(time.Duration(events[i].DeadlineMs)*time.Millisecond)))
			}
			continue
		}
		if o.refused[i] == nil && o.apply(s, &events[i], now) {
			s = nil
		}
	}
	if len(o.refused) > 0 {
		return outcome{refused: o.refused}
	}
	o.settle(id, s, now)
	o.state = s
	return o
}

// checkEvent returns why an event cannot be taken.
func checkEvent(s *state, e *event) error {
	switch {
	case e.Kind == kindAdd && s == nil:
		return ErrUnknown
	case e.Kind == kindAdd && !slices.Contains(s.Adds, e.Digest):
		if !s.Open {
			return ErrClosed
		}
		waiting := slices.Clone(s.Waiting)
		for _, m := range e.Jobs {
			if len(m.After) > 0 {
				waiting = append(waiting, m)
			}
		}
		return checkWaiting(waiting, s.OnDone, s.OnDead)
	}
	return nil
}

func newState(m *message, now time.Time) *state {
	ms := now.UnixMilli()
	return &state{Version: stateVersion, Digest: m.Digest, Call: m.Call, Began: ms, Changed: ms, Open: m.Open, OnDone: m.Done, OnDead: m.Dead}
}

// apply applies an event. It returns true if the state is to be deleted.
func (o *outcome) apply(s *state, e *event, now time.Time) (forget bool) {
	switch {
	case s == nil || e.Kind == kindStart: // a start for the second time, or what is left of a workflow that is forgotten
		return false
	case e.Kind == kindForget:
		if e.Began == s.Began {
			if e.Changed == s.Changed { // not the time now, which is an estimate
				return true
			}
			s.Timer = false
		}
		return false
	case e.Kind == kindAdd && slices.Contains(s.Adds, e.Digest):
		return false
	case e.Kind == kindAdd:
		s.Adds = append(s.Adds, e.Digest)
		s.Adds = s.Adds[max(0, len(s.Adds)-maxAdds):]
		o.addMembers(s, e.Jobs)
	case s.Ended != 0:
		return false
	case e.Kind == kindClose:
		s.Open = false
	case e.Kind == kindCancel:
		s.Cancelled, s.Open = true, false
	case e.Kind == kindDeadline && e.Began == s.Began:
		s.Late = true
	case e.serial == 0 || e.began != s.Began:
		return false
	case e.end == "done":
		o.endDone(s, e)
	default:
		s.endDead(e)
	}
	s.Changed = now.UnixMilli()
	return false
}

// addMembers takes members. Those that wait for no other leave at once.
func (o *outcome) addMembers(s *state, jobs []member) {
	first := s.Total + 1
	s.Total += len(jobs)
	for i, m := range jobs {
		m.Serial = first + i
		if len(m.After) == 0 {
			o.addLeaving(s, m)
			continue
		}
		after := make([]int, len(m.After))
		for k, place := range m.After {
			after[k] = first + place
		}
		m.After = after
		s.Waiting = append(s.Waiting, m)
	}
}

// endDone counts a member that is done. Members that waited for it alone leave.
func (o *outcome) endDone(s *state, e *event) {
	switch {
	case s.Dead.remove(e.serial): // it was requeued
		s.Names = slices.DeleteFunc(s.Names, func(label string) bool { return serialOf(label) == e.serial })
	case s.running() == 0 && s.MoreDead > 0:
		s.MoreDead--
	}
	s.Done++
	s.Left = slices.DeleteFunc(s.Left, func(m member) bool { return m.Serial == e.serial })
	var kept []member
	for _, m := range s.Waiting {
		if m.After = slices.DeleteFunc(slices.Clone(m.After), func(of int) bool { return of == e.serial }); len(m.After) > 0 {
			kept = append(kept, m)
			continue
		}
		m.After = nil
		o.addLeaving(s, m)
	}
	s.Waiting = kept
}

// addLeaving adds a member that leaves. The state keeps its place if its name does not say it.
func (o *outcome) addLeaving(s *state, m member) {
	o.members = append(o.members, m)
	if m.Name == m.Queue+"/"+m.ID {
		return
	}
	size := 0
	for _, one := range append(slices.Clone(s.Left), m) {
		size += len(`{"q":"","i":"","m":12345678,"n":""},`) + len(one.Queue) + storedBytes(one.ID) + storedBytes(one.Name)
	}
	if size <= maxLeftBytes {
		s.Left = append(s.Left, member{push: push{Queue: m.Queue, ID: m.ID}, Serial: m.Serial, Name: m.Name})
	}
}

// endDead counts a member that has ended otherwise. A member that was requeued may die again. If its serial is too large to
// be known, it counts twice, so OnDead may come too early. Done stays exact.
func (s *state) endDead(e *event) {
	switch {
	case e.serial >= maxSerials:
		if s.running() > 0 {
			s.MoreDead++
		}
	case s.Dead.add(e.serial):
		label := fmt.Sprintf("%d %s", e.serial, e.name)
		size := storedBytes(label)
		for _, label := range s.Names {
			size += storedBytes(label)
		}
		if size <= maxNameBytes {
			s.Names = append(s.Names, label)
		}
	}
}

// serials is a set of serials. Bit n%8 of byte n/8 says whether it has n.
type serials []byte

// add adds n and reports whether it is new.
func (b *serials) add(n int) bool {
	if missing := n/8 + 1 - len(*b); missing > 0 {
		*b = append(*b, make([]byte, missing)...)
	}
	was := (*b)[n/8]
	(*b)[n/8] |= 1 << (n % 8)
	return (*b)[n/8] != was
}

// remove removes n and reports whether it was there.
func (b serials) remove(n int) bool {
	if n/8 >= len(b) || b[n/8]&(1<<(n%8)) == 0 {
		return false
	}
	b[n/8] &^= 1 << (n % 8)
	return true
}

func (b serials) count() (n int) {
	for _, some := range b {
		n += bits.OnesCount8(some)
	}
	return n
}

// storedBytes returns the size of a label in a state. JSON has six bytes for some characters.
func storedBytes(label string) int {
	size := len(label) + len(`"",`)
	for _, c := range []byte(label) {
		switch c {
		case '<', '>', '&':
			size += 5
		case '"', '\\':
			size++
		}
	}
	return size
}

func serialOf(label string) int {
	number, _, _ := strings.Cut(label, " ")
	n, _ := strconv.Atoi(number)
	return n
}

// dead returns the number of members that have ended and are not done.
func (s *state) dead() int { return s.Dead.count() + s.MoreDead }

// running returns the number of members that have left and have not ended.
func (s *state) running() int { return s.Total - s.Done - s.dead() - len(s.Waiting) }

// settle adds the pushes that are due in the state after the events.
func (o *outcome) settle(id string, s *state, now time.Time) {
	if s == nil {
		return
	}
	if s.Ended == 0 {
		switch {
		case s.Cancelled:
			s.end(now)
		case !s.Open && s.Done == s.Total:
			if s.OnDone != nil {
				o.pushes = append(o.pushes, *s.OnDone)
			}
			s.end(now)
		case !s.ToldDead && (s.Late || !s.Open && s.running() == 0):
			if s.ToldDead = true; s.OnDead != nil {
				o.pushes = append(o.pushes, *s.OnDead)
			}
			s.OnDead = nil
		}
	}
	if (s.Ended != 0 || s.ToldDead) && !s.Timer {
		s.Timer = true
		o.pushes = append(o.pushes, timer(id, kindForget, s, time.UnixMilli(s.Changed).Add(keepFor)))
	}
}

// end ends a workflow. What waits is dropped.
func (s *state) end(now time.Time) {
	s.Ended, s.Dropped = now.UnixMilli(), len(s.Waiting)
	s.Open, s.OnDone, s.OnDead, s.Waiting, s.Left = false, nil, nil, nil, nil
}

// timer returns a push that comes back as a message at a time. An id that waits for its time takes its later payloads along,
// so a timer has an id of its own.
func timer(id, kind string, s *state, at time.Time) push {
	text, _ := json.Marshal(message{Kind: kind, Began: s.Began, Changed: s.Changed}) // plain strings and numbers always marshal
	return push{Queue: protocol.Workflows, ID: helperID(kind, s.Began, 0, id), Data: text, At: at.UnixMicro()}
}

// helperID returns an id for a timer or a rest of a workflow. No workflow has an id with a space.
func helperID(kind string, began int64, serial int, workflow string) string {
	return fmt.Sprintf("%s %d %d %s", kind, began, serial, workflow)
}

// ofHelper returns the workflow of the id of a timer or a rest.
func ofHelper(id string) (workflow string, ok bool) {
	words := strings.Split(id, " ")
	return words[len(words)-1], len(words) == 4
}

// checkWaiting returns an error if members that wait and the pushes Done and Dead are too much for a state.
func checkWaiting(waiting []member, done, dead *push) error {
	size := 0
	for _, one := range []any{waiting, done, dead} {
		text, err := json.Marshal(one)
		if err != nil {
			return err
		}
		size += len(text)
	}
	// A place becomes a serial, which is longer.
	for _, m := range waiting {
		size += 7 * (len(m.After) + 1)
	}
	if size > maxWaitingBytes {
		return fmt.Errorf("%w: members with after, and the pushes done and dead, have %d bytes together, at most %d are allowed; let the push done of a workflow start the next workflow",
			ErrTooLarge, size, maxWaitingBytes)
	}
	return nil
}
