package rebalance

import (
	"bytes"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// What cannot be read is never skipped: the machine stays where it was, and says why.
func TestMachineStopsAtWhatItCannotRead(t *testing.T) {
	t.Parallel()
	first := &plan.Assignment{Nodes: []string{"a"}, Queues: []plan.Placement{{Queue: "q", Owners: []int32{0}}}}
	second := &plan.Assignment{Nodes: []string{"b"}, Queues: first.Queues}
	newer := assignEntry(second)
	newer[1] = plan.Version + 1
	snapshot := (&state{7, second}).encode()
	later := slices.Clone(snapshot)
	later[0]++
	restore := func(data []byte) func(*machine) error {
		return func(m *machine) error { return m.Restore(io.NopCloser(bytes.NewReader(data))) }
	}
	apply := func(data []byte) func(*machine) error {
		return func(m *machine) error {
			err, _ := m.Apply(&raft.Log{Index: 2, Data: data}).(error)
			return err
		}
	}
	for _, c := range []struct {
		name   string
		record uint64 // of the log; 0 = it is empty
		do     func(*machine) error
		want   string
	}{
		{"empty entry", 7, apply(nil), "too early"},
		{"unknown command", 7, apply([]byte{99, 1, 2}), "unknown command 99"},
		{"assignment first", 0, apply(assignEntry(first)), "before the record id"},
		{"delta first", 0, apply(deltaEntry(first, second)), "before the record id"},
		{"record zero", 0, apply(recordEntry(0, nil)), "no id"},
		{"another history", 7, apply(recordEntry(8, nil)), "record 8 in the log of record 7"},
		{"a damaged assignment", 7, apply(assignEntry(first)[:5]), "decode assignment"},
		{"a damaged delta", 7, apply(deltaEntry(&plan.Assignment{Generation: plan.Generation{Index: 1}}, second)[:4]), "decode delta"},
		{"newer version of an assignment", 7, apply(newer), "unknown version"},
		{"newer snapshot", 7, restore(later), "unknown version"},
		{"empty snapshot", 7, restore(nil), "0 bytes"},
		{"cut snapshot", 7, restore(snapshot[:5]), "decode snapshot"},
		{"snapshot without its last byte", 7, restore(snapshot[:len(snapshot)-1]), "decode snapshot"},
	} {
		stopped := 0
		m := newMachine(func(*plan.Assignment) {})
		m.stopped = func() { stopped++ }
		if c.record > 0 {
			m.Apply(&raft.Log{Index: 1, Data: recordEntry(c.record, first)})
		}
		was := m.state.Load()
		if err := m.readError(); err != nil {
			t.Fatalf("%s: before: %v", c.name, err)
		}
		err := c.do(m)
		if err == nil || !strings.Contains(err.Error(), c.want) || m.readError() == nil || stopped != 1 {
			t.Errorf("%s: got %v, unread %v, stopped %d times; want an error with %q", c.name, err, m.readError(), stopped, c.want)
		}
		if after, ok := m.Apply(&raft.Log{Index: 3, Data: recordEntry(7, second)}).(error); !ok || m.state.Load() != was {
			t.Errorf("%s: the entry after it was applied (%v)", c.name, after)
		}
		if _, err := m.Snapshot(); err == nil {
			t.Errorf("%s: a snapshot was made of a state that is behind the log", c.name)
		}
	}
}

// A plan is written in whichever form is shorter.
func TestPlanEntry(t *testing.T) {
	t.Parallel()
	base := &plan.Assignment{Nodes: []string{"a", "b"}, Queues: []plan.Placement{{Queue: "q", Owners: make([]int32, 40)}}}
	next := &plan.Assignment{Nodes: base.Nodes, Queues: []plan.Placement{{Queue: "q", Owners: make([]int32, 40)}}}
	next.Queues[0].Owners[7] = 1
	if got := planEntry(base, next); got[0] != commandDelta {
		t.Errorf("one move: got command %d of %d bytes, want a delta", got[0], len(got))
	}
	if got := planEntry(&plan.Assignment{}, next); len(got) > len(assignEntry(next)) {
		t.Errorf("the first plan: got %d bytes, the whole has %d", len(got), len(assignEntry(next)))
	}
}

// A server that starts from a snapshot knows the assignment of its leader, and says so at once.
func TestRestorePublishes(t *testing.T) {
	t.Parallel()
	m := newMachine(func(*plan.Assignment) {})
	owned := &plan.Assignment{Nodes: []string{"a", "b"}, Queues: []plan.Placement{{Queue: "q", Owners: []int32{0, 1, 1}}}}
	moved := &plan.Assignment{Nodes: owned.Nodes, Queues: []plan.Placement{{Queue: "q", Owners: []int32{0, 1, 0}}}}
	for i, data := range [][]byte{recordEntry(7, owned), assignEntry(moved)} {
		if err := m.Apply(&raft.Log{Index: uint64(i + 3), Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	var published *plan.Assignment
	other := newMachine(func(a *plan.Assignment) { published = a })
	if err := other.Restore(io.NopCloser(bytes.NewReader(m.state.Load().encode()))); err != nil {
		t.Fatal(err)
	}
	if got, want := other.state.Load(), m.state.Load(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if want := (plan.Generation{Record: 7, Index: 4}); published == nil || published.Generation != want {
		t.Errorf("published %+v, want generation %s", published, want)
	}
}
