package rebalance

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
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
