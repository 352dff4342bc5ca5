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
	commandDelta       // the difference from the assignment before; see plan.AppendDelta
)

var errEmpty = errors.New("empty entry: ends too early")

// recordEntry returns the first entry of a log. A nil seed assigns nothing.
func recordEntry(id uint64, seed *plan.Assignment) []byte {
	if seed == nil {
		seed = &plan.Assignment{}
	}
	return seed.Append(binary.AppendUvarint([]byte{commandRecord}, id))
}

// assignEntry returns the entry that replaces the assignment.
func assignEntry(next *plan.Assignment) []byte { return next.Append([]byte{commandAssign}) }

// deltaEntry returns the entry that turns the assignment base into next.
func deltaEntry(base, next *plan.Assignment) []byte {
	return plan.AppendDelta([]byte{commandDelta}, base, next)
}

// planEntry returns the shorter entry that turns the assignment base into next.
func planEntry(base, next *plan.Assignment) []byte {
	whole, delta := assignEntry(next), deltaEntry(base, next)
	if len(delta) < len(whole) {
		return delta
	}
	return whole
}

// state is the result of the log. It is immutable.
type state struct {
	record     uint64
	assignment *plan.Assignment
}

// applyEntry returns the state after a log entry.
func (s *state) applyEntry(data []byte, index uint64) (*state, error) {
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
			return s, nil // the delta belongs to another assignment and changes nothing
		}
		return s.withAssignment(s.record, next, index, index), nil
	default:
		next, err := plan.Decode(rest)
		if err != nil {
			return nil, err
		}
		return s.withAssignment(s.record, next, index, index), nil
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
	return s.withAssignment(id, seed, index, 0), nil
}

// withAssignment returns the state with the next assignment. Shards with another owner than before are recorded as moved at the
// given index.
func (s *state) withAssignment(record uint64, next *plan.Assignment, index, moved uint64) *state {
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
// stores the state and publishes the assignment. It never calls Raft.
//
// The machine cannot read an entry or a snapshot of a later release, or a damaged one. It never
// skips such an entry, because its state would then differ from the state of the others. It stops
// there, and the agent drops the server.
type machine struct {
	publish func(*plan.Assignment) // must not block
	stopped func()                 // must not block; called when it stops
	refuse  func([]byte) error     // for tests: an older release; nil = none
	state   atomic.Pointer[state]
	why     atomic.Pointer[error] // why it has stopped; nil while it works
}

var _ raft.FSM = (*machine)(nil)

func newMachine(publish func(*plan.Assignment)) *machine {
	m := &machine{publish: publish, stopped: func() {}}
	m.state.Store(&state{assignment: &plan.Assignment{}})
	return m
}

// Apply applies a committed entry. It returns an error for an entry that it cannot read, and
// for all entries after that.
func (m *machine) Apply(log *raft.Log) any {
	if err := m.readError(); err != nil {
		return err
	}
	next, err := m.nextState(log.Data, log.Index)
	if err != nil {
		return m.stopReading(fmt.Errorf("apply entry %d: %w", log.Index, err))
	}
	m.storeState(next)
	return nil
}

// nextState returns the state after an entry.
func (m *machine) nextState(data []byte, index uint64) (*state, error) {
	if m.refuse != nil {
		if err := m.refuse(data); err != nil {
			return nil, err
		}
	}
	return m.state.Load().applyEntry(data, index)
}

func (m *machine) storeState(next *state) {
	m.state.Store(next)
	if next.record != 0 {
		m.publish(next.assignment)
	}
}

// stopReading ends the machine's work for good.
func (m *machine) stopReading(why error) error {
	m.why.Store(&why)
	m.stopped()
	return why
}

// readError returns the error at which the machine stopped, nil if it has read everything.
func (m *machine) readError() error {
	if why := m.why.Load(); why != nil {
		return *why
	}
	return nil
}

// Snapshot returns the state, which is immutable and so does not change while Raft writes it.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.readError(); err != nil {
		return nil, err // the state is behind the log
	}
	return m.state.Load(), nil
}

// Restore replaces the state by the state of a snapshot.
func (m *machine) Restore(snapshot io.ReadCloser) error {
	data, err := io.ReadAll(snapshot)
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	next, err := decodeState(data)
	if err != nil {
		return m.stopReading(err)
	}
	m.storeState(next)
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
