package rebalance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// The first byte of a Raft log entry.
const (
	// commandRecord is the first entry of every log: the record id as uvarint, then the
	// assignment to start from, which is taken as applied by every process.
	commandRecord byte = iota + 1
	commandAssign      // an assignment
	commandDelta       // what differs from the assignment before; see plan.AppendDelta
)

var errEmpty = errors.New("empty entry: ends too early")

// recordEntry returns the first entry of a log; a nil seed assigns nothing.
func recordEntry(id uint64, seed *plan.Assignment) []byte {
	if seed == nil {
		seed = &plan.Assignment{}
	}
	return seed.Append(binary.AppendUvarint([]byte{commandRecord}, id))
}

// assignEntry returns the entry that replaces the assignment.
func assignEntry(next *plan.Assignment) []byte { return next.Append([]byte{commandAssign}) }

// deltaEntry returns the entry that makes next of base.
func deltaEntry(base, next *plan.Assignment) []byte {
	return plan.AppendDelta([]byte{commandDelta}, base, next)
}

// planEntry returns the shorter of the two entries that make next of the assignment that base is.
func planEntry(base, next *plan.Assignment) []byte {
	whole, delta := assignEntry(next), deltaEntry(base, next)
	if len(delta) < len(whole) {
		return delta
	}
	return whole
}

// state is what the log says. It is never changed, only replaced.
type state struct {
	record     uint64
	assignment *plan.Assignment
}

// apply returns the state after a log entry.
func (s *state) apply(data []byte, index uint64) (*state, error) {
	if len(data) == 0 {
		return nil, errEmpty
	}
	switch command, rest := data[0], data[1:]; {
	case command == commandRecord:
		return s.applyRecord(rest, index)
	case command != commandAssign && command != commandDelta:
		return nil, fmt.Errorf("unknown command %d", command)
	case s.record == 0:
		return nil, errors.New("assignment before the record id")
	case command == commandDelta:
		next, err := s.assignment.ApplyDelta(rest)
		if err != nil {
			return nil, err
		}
		if next == nil {
			return s, nil // of another assignment: it changes nothing
		}
		return s.follow(s.record, next, index, index), nil
	default:
		next, err := plan.Decode(rest)
		if err != nil {
			return nil, err
		}
		return s.follow(s.record, next, index, index), nil
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
	seed, err := plan.Decode(data[n:])
	if err != nil {
		return nil, err
	}
	return s.follow(id, seed, index, 0), nil
}

// follow returns the state with the next assignment; what it changes has moved at the given index.
func (s *state) follow(record uint64, next *plan.Assignment, index, moved uint64) *state {
	next.Follow(s.assignment, plan.Generation{Record: record, Index: index}, moved)
	return &state{record, next}
}

// encode writes a snapshot: the version, the record id and the assignment's snapshot.
func (s *state) encode() []byte {
	return s.assignment.AppendSnapshot(binary.AppendUvarint([]byte{plan.Version}, s.record))
}

func decodeState(data []byte) (*state, error) {
	if len(data) == 0 || data[0] != plan.Version {
		return nil, fmt.Errorf("decode snapshot: unknown version in %d bytes, want version %d", len(data), plan.Version)
	}
	record, n := binary.Uvarint(data[1:])
	if n <= 0 {
		return nil, fmt.Errorf("decode snapshot: no record id in %d bytes", len(data))
	}
	assignment, err := plan.DecodeSnapshot(data[1+n:])
	if err != nil {
		return nil, fmt.Errorf("decode snapshot: %w", err)
	}
	return &state{record, assignment}, nil
}

// machine is Raft's state machine. Raft calls it from its own goroutines, so it only
// stores the state and publishes the assignment; it never calls back into Raft.
//
// What it cannot read, because a later release wrote it or it is damaged, is never
// skipped: the state would be another one than the others'. It stops there, and the
// agent drops the server.
type machine struct {
	publish func(*plan.Assignment) // must not block
	stopped func()                 // must not block; called when it stops
	refuse  func([]byte) error     // for tests: an older release; nil = none
	state   atomic.Pointer[state]
	why     atomic.Pointer[error] // why it has stopped; nil = it has not
}

var _ raft.FSM = (*machine)(nil)

func newMachine(publish func(*plan.Assignment)) *machine {
	m := &machine{publish: publish, stopped: func() {}}
	m.state.Store(&state{assignment: &plan.Assignment{}})
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

func (m *machine) store(next *state) {
	m.state.Store(next)
	if next.record != 0 {
		m.publish(next.assignment)
	}
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

// Snapshot returns the state, which never changes while it is written.
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
	next, err := decodeState(data)
	if err != nil {
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
