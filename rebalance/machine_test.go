package rebalance

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq"
)

func TestMachineRefuses(t *testing.T) {
	t.Parallel()
	a := &Assignment{Nodes: []string{"a"}, Queues: []Placement{{"q", []int32{0}}}}
	tests := []struct {
		name string
		log  [][]byte
		want string
	}{
		{"empty entry", [][]byte{{}}, "too early"},
		{"unknown command", [][]byte{{99}}, "unknown command 99"},
		{"assignment first", [][]byte{assignEntry(a)}, "before the record id"},
		{"record zero", [][]byte{recordEntry(0, nil)}, "no id"},
		{"another history", [][]byte{recordEntry(7, nil), recordEntry(8, nil)}, "record 8 in the log of record 7"},
		{"damaged", [][]byte{recordEntry(7, nil), assignEntry(a)[:5]}, "decode assignment"},
	}
	for _, tt := range tests {
		m := newMachine(func(*Assignment) {})
		var got any
		for i, data := range tt.log {
			got = m.Apply(&raft.Log{Index: uint64(i + 1), Data: data})
		}
		if err, ok := got.(error); !ok || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.name, got, tt.want)
		}
	}
}

func TestSnapshotRoundTrip(t *testing.T) {
	t.Parallel()
	nodes, queues := cluster(5, 3, 20)
	m := newMachine(func(*Assignment) {})
	first := Plan(empty, nodes[:4], queues).Next
	second := Plan(first, nodes, queues).Next
	for i, data := range [][]byte{recordEntry(7, first), assignEntry(second)} {
		if err := m.Apply(&raft.Log{Index: uint64(i + 3), Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	var published *Assignment
	other := newMachine(func(a *Assignment) { published = a })
	if err := other.Restore(io.NopCloser(bytes.NewReader(m.state.Load().encode()))); err != nil {
		t.Fatal(err)
	}
	if got, want := other.state.Load(), m.state.Load(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if want := (Generation{7, 4}); published == nil || published.Generation != want {
		t.Errorf("published %+v, want generation %s", published, want)
	}
	for _, size := range []int{0, 1, 5, len(m.state.Load().encode()) - 1} {
		if err := newMachine(nil).Restore(io.NopCloser(bytes.NewReader(m.state.Load().encode()[:size]))); err == nil {
			t.Errorf("a snapshot cut at %d bytes was taken", size)
		}
	}
}

// What cannot be read is never skipped: the machine stays where it was, and says why.
func TestMachineStopsAtWhatItCannotRead(t *testing.T) {
	t.Parallel()
	first := &Assignment{Nodes: []string{"a"}, Queues: []Placement{{"q", []int32{0}}}}
	second := &Assignment{Nodes: []string{"b"}, Queues: []Placement{{"q", []int32{0}}}}
	newer := assignEntry(second)
	newer[1] = assignmentVersion + 1
	snapshot := (&state{record: 7, assignment: second, since: map[string][]uint64{"q": {2}}}).encode()
	snapshot[0]++
	restore := func(m *machine) error { return m.Restore(io.NopCloser(bytes.NewReader(snapshot))) }
	apply := func(data []byte) func(*machine) error {
		return func(m *machine) error {
			err, _ := m.Apply(&raft.Log{Index: 2, Data: data}).(error)
			return err
		}
	}
	for _, c := range []struct {
		name string
		do   func(*machine) error
	}{
		{"unknown command", apply([]byte{99, 1, 2})}, {"newer version of an assignment", apply(newer)},
		{"another history", apply(recordEntry(8, nil))}, {"newer snapshot", restore},
	} {
		stopped := 0
		m := newMachine(func(*Assignment) {})
		m.stopped = func() { stopped++ }
		m.Apply(&raft.Log{Index: 1, Data: recordEntry(7, first)})
		was := m.state.Load()
		if err := m.unread(); err != nil {
			t.Fatalf("%s: before: %v", c.name, err)
		}
		err := c.do(m)
		if err == nil || m.unread() == nil || stopped != 1 {
			t.Errorf("%s: got %v, unread %v, stopped %d times", c.name, err, m.unread(), stopped)
		}
		if after, ok := m.Apply(&raft.Log{Index: 3, Data: assignEntry(second)}).(error); !ok || m.state.Load() != was {
			t.Errorf("%s: the entry after it was applied (%v)", c.name, after)
		}
		if _, err := m.Snapshot(); err == nil {
			t.Errorf("%s: a snapshot was made of a state that is behind the log", c.name)
		}
	}
}

// TestAcknowledged: a deaf node keeps what it was given up to what it has applied,
// and what it had when the record began.
func TestAcknowledged(t *testing.T) {
	t.Parallel()
	place := func(owners ...int32) *Assignment {
		return &Assignment{Nodes: []string{"a", "b"}, Queues: []Placement{{"q", owners}}}
	}
	m := newMachine(func(*Assignment) {})
	log := [][]byte{recordEntry(7, place(0, 1, 1, 1)), assignEntry(place(0, 0, 1, 1)), assignEntry(place(0, 0, 0, 1))}
	for i, data := range log {
		if err := m.Apply(&raft.Log{Index: uint64(i + 1), Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name    string
		applied Generation
		want    []int32
	}{
		{"all", Generation{7, 3}, []int32{0, 0, 0, 1}},
		{"not the last", Generation{7, 2}, []int32{0, 0, None, 1}},
		{"an older record", Generation{6, 99}, []int32{0, None, None, 1}},
	}
	for _, tt := range tests {
		got := m.state.Load().acknowledged(map[string]Generation{"a": tt.applied}).Queues[0].Owners
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A rolling restart, each node out and in again, moves each shard at most twice.
func TestRollingRestartMovesTwice(t *testing.T) {
	t.Parallel()
	queues := []lowkiq.Queue{{Name: "a", Shards: 40}, {Name: "b", Shards: 40}, {Name: "c", Shards: 40}}
	var nodes []Node
	for i := range 5 {
		nodes = append(nodes, Node{Name: fmt.Sprintf("n%d", i+1), Queues: []string{"a", "b", "c"}})
	}
	m, index, moves := newMachine(func(*Assignment) {}), uint64(1), map[lowkiq.Shard]int{}
	m.Apply(&raft.Log{Index: index, Data: recordEntry(1, nil)})
	plan := func(nodes []Node) {
		current := m.state.Load().assignment
		index++
		m.Apply(&raft.Log{Index: index, Data: assignEntry(Plan(current, nodes, queues).Next)})
		for _, c := range current.Diff(m.state.Load().assignment) {
			moves[c.Shard]++
		}
	}
	for i := range nodes { // they join one by one
		plan(nodes[:i+1])
	}
	clear(moves)
	for i := range nodes {
		rest := slices.Clone(nodes)
		rest[i].Draining = true
		plan(rest)
		plan(nodes)
	}
	for shard, n := range moves {
		if n > 2 {
			t.Errorf("%v moved %d times, want at most 2", shard, n)
		}
	}
}
