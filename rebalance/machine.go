package rebalance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// The first byte of a Raft log entry.
const (
	// commandRecord is the first entry of every log: the record id as uvarint, then the
	// assignment to start from, which is taken as acknowledged by everyone.
	commandRecord byte = iota + 1
	commandAssign      // an assignment
	commandDelta       // what differs from the assignment before; see deltaEntry
)

// state is what the log says. It is never changed, only replaced.
type state struct {
	record     uint64
	assignment *Assignment
	since      map[string][]uint64 // by queue and shard index: the Raft index of its last move, 0 if seeded
}

// machine is Raft's state machine. Raft calls it from its own goroutines, so it only
// stores the state and publishes the assignment; it never calls back into Raft.
//
// What it cannot read, because a later release wrote it or it is damaged, is never
// skipped: the state would be another one than the others'. It stops there, and the
// agent drops the server.
type machine struct {
	publish func(*Assignment)  // must not block
	stopped func()             // must not block; called when it stops
	refuse  func([]byte) error // for tests: an older release; nil = none
	state   atomic.Pointer[state]
	why     atomic.Pointer[error] // why it has stopped; nil = it has not
}

var _ raft.FSM = (*machine)(nil)

func newMachine(publish func(*Assignment)) *machine {
	m := &machine{publish: publish, stopped: func() {}}
	m.state.Store(&state{assignment: &Assignment{}})
	return m
}

// Apply takes a committed entry. It returns an error for one that cannot be read, and
// for all after it.
func (m *machine) Apply(log *raft.Log) any {
	if err := m.unread(); err != nil {
		return err
	}
	next, err := m.next(log.Data, log.Index)
	if err != nil {
		return m.stop(fmt.Errorf("apply entry %d: %w", log.Index, err))
	}
	m.store(next)
	return nil
}

// next returns the state after an entry.
func (m *machine) next(data []byte, index uint64) (*state, error) {
	if m.refuse != nil {
		if err := m.refuse(data); err != nil {
			return nil, err
		}
	}
	return m.state.Load().apply(data, index)
}

// stop ends the machine's work for good.
func (m *machine) stop(why error) error {
	m.why.Store(&why)
	m.stopped()
	return why
}

// unread is what the machine could not read, nil if it has read everything.
func (m *machine) unread() error {
	if why := m.why.Load(); why != nil {
		return *why
	}
	return nil
}

func (m *machine) store(next *state) {
	m.state.Store(next)
	if next.record != 0 {
		m.publish(next.assignment)
	}
}

// apply returns the state after a log entry.
func (s *state) apply(data []byte, index uint64) (*state, error) {
	if len(data) == 0 {
		return nil, errShort
	}
	switch command, rest := data[0], data[1:]; command {
	case commandRecord:
		return s.applyRecord(rest, index)
	case commandAssign:
		return s.applyAssignment(rest, index)
	case commandDelta:
		return s.applyDelta(rest, index)
	default:
		return nil, fmt.Errorf("unknown command %d", command)
	}
}

func (s *state) applyRecord(data []byte, index uint64) (*state, error) {
	id, n := binary.Uvarint(data)
	switch {
	case n <= 0 || id == 0:
		return nil, fmt.Errorf("record entry %.20x has no id", data)
	case s.record != 0:
		return nil, fmt.Errorf("record %d in the log of record %d", id, s.record)
	}
	return (&state{record: id, assignment: s.assignment}).place(data[n:], index, 0)
}

func (s *state) applyAssignment(data []byte, index uint64) (*state, error) {
	if s.record == 0 {
		return nil, errors.New("assignment before the record id")
	}
	return s.place(data, index, index)
}

func (s *state) applyDelta(data []byte, index uint64) (*state, error) {
	if s.record == 0 {
		return nil, errors.New("delta before the record id")
	}
	next, err := s.assignment.delta(data)
	switch {
	case err != nil:
		return nil, err
	case next == nil:
		return s, nil // of another assignment: it changes nothing
	}
	return s.put(next, index, index), nil
}

// place returns the state with the assignment in data; what it changes has moved at
// the given index.
func (s *state) place(data []byte, index, moved uint64) (*state, error) {
	next := new(Assignment)
	if err := next.UnmarshalBinary(data); err != nil {
		return nil, err
	}
	return s.put(next, index, moved), nil
}

func (s *state) put(next *Assignment, index, moved uint64) *state {
	next.Generation = Generation{s.record, index}
	next.since = s.moved(next, moved)
	return &state{record: s.record, assignment: next, since: next.since}
}

// moved returns since when the shards of next are where they are, if those that
// differ from s moved at the index.
func (s *state) moved(next *Assignment, index uint64) map[string][]uint64 {
	all := make(map[string][]uint64, len(next.Queues))
	for _, q := range next.Queues {
		was, since := s.assignment.placement(q.Queue), make([]uint64, len(q.Owners))
		for i, owner := range q.Owners {
			since[i] = index
			if i < len(was) && s.assignment.name(was[i]) == next.name(owner) {
				since[i] = s.since[q.Queue][i]
			}
		}
		all[q.Queue] = since
	}
	return all
}

// planned reports whether any shard was moved under this record.
func (s *state) planned() bool {
	for _, since := range s.since {
		if slices.ContainsFunc(since, func(index uint64) bool { return index > 0 }) {
			return true
		}
	}
	return false
}

// acknowledged returns the assignment without those shards of the deaf nodes that
// they were given after the generation they have applied.
func (s *state) acknowledged(applied map[string]Generation) *Assignment {
	if len(applied) == 0 {
		return s.assignment
	}
	kept := *s.assignment
	kept.Queues = make([]Placement, len(s.assignment.Queues))
	for k, q := range s.assignment.Queues {
		owners := make([]int32, len(q.Owners))
		for i, owner := range q.Owners {
			owners[i] = owner
			generation, deaf := applied[s.assignment.name(owner)]
			if deaf && generation.Compare(Generation{s.record, s.since[q.Queue][i]}) < 0 && s.since[q.Queue][i] > 0 {
				owners[i] = None
			}
		}
		kept.Queues[k] = Placement{q.Queue, owners}
	}
	return &kept
}

// recordEntry returns the first entry of a log; a nil seed assigns nothing.
func recordEntry(id uint64, seed *Assignment) []byte {
	if seed == nil {
		seed = &Assignment{}
	}
	data, _ := seed.AppendBinary(binary.AppendUvarint([]byte{commandRecord}, id)) // it never fails
	return data
}

// assignEntry returns the entry that replaces the assignment.
func assignEntry(next *Assignment) []byte {
	data, _ := next.AppendBinary([]byte{commandAssign}) // it never fails
	return data
}

// Snapshot returns the state, which nobody changes while it is written.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.unread(); err != nil {
		return nil, err // the log has gone on
	}
	return m.state.Load(), nil
}

// Restore replaces the state by a snapshot's.
func (m *machine) Restore(snapshot io.ReadCloser) error {
	data, err := io.ReadAll(snapshot)
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	next := new(state)
	if err := next.decode(data); err != nil {
		return m.stop(err)
	}
	m.store(next)
	return nil
}

// Persist writes the state to a snapshot.
func (s *state) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s.encode()); err != nil {
		_ = sink.Cancel() // the write's error says more
		return fmt.Errorf("write snapshot: %w", err)
	}
	return sink.Close()
}

// Release has nothing to free.
func (s *state) Release() {}

// encode writes the record id, the assignment with its length, and since when each
// shard is where it is, in the assignment's order.
func (s *state) encode() []byte {
	assignment, _ := s.assignment.MarshalBinary() // it never fails
	b := binary.AppendUvarint([]byte{assignmentVersion}, s.record)
	b = appendString(b, string(assignment))
	for _, q := range s.assignment.Queues {
		for _, index := range s.since[q.Queue] {
			b = binary.AppendUvarint(b, index)
		}
	}
	return b
}

func (s *state) decode(data []byte) error {
	if len(data) == 0 || data[0] != assignmentVersion {
		return fmt.Errorf("decode snapshot: unknown version in %d bytes, want version %d", len(data), assignmentVersion)
	}
	r := reader{rest: data[1:]}
	next := state{record: r.uvarint(), assignment: new(Assignment), since: map[string][]uint64{}}
	if err := next.assignment.UnmarshalBinary([]byte(r.string())); err != nil {
		return fmt.Errorf("decode snapshot: %w", err)
	}
	for _, q := range next.assignment.Queues {
		since := make([]uint64, len(q.Owners))
		for i := range since {
			since[i] = r.uvarint()
		}
		next.since[q.Queue] = since
	}
	next.assignment.since = next.since
	if r.err == nil && len(r.rest) > 0 {
		r.err = fmt.Errorf("%d bytes too many", len(r.rest))
	}
	if r.err != nil {
		return fmt.Errorf("decode snapshot: %w", r.err)
	}
	*s = next
	return nil
}
