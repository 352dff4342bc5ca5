package rebalance

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/golden"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// TestGolden reads what every release has stored and sent, and writes the same today.
func TestGolden(t *testing.T) {
	t.Parallel()
	same := func(got, want any) func(*testing.T, error) {
		return func(t *testing.T, err error) {
			t.Helper()
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v %v, want %+v", got, err, want)
			}
		}
	}
	first := &plan.Assignment{Nodes: []string{"n1", "n2"}, Queues: []plan.Placement{{Queue: "mail", Owners: []int32{0}}, {Queue: "orders", Owners: []int32{1, plan.None, 0}}}}
	second := &plan.Assignment{Generation: gen(7, 300), Nodes: []string{"n2"}, Queues: []plan.Placement{{Queue: "orders", Owners: []int32{0, 0, 0}}}}
	whole := func() *state {
		moved := *first
		moved.MovedAt = map[string][]uint64{"mail": {0}, "orders": {2, 3, 300}}
		return &state{record: 7, assignment: &moved}
	}()
	golden.Check(t, "assignment", string(second.Append(nil)), func(t *testing.T, stored string) {
		got, err := plan.Decode([]byte(stored))
		same(got, second)(t, err)
	})
	empty := &state{assignment: &plan.Assignment{}}
	golden.Check(t, "entry-record", string(recordEntry(7, first)), func(t *testing.T, stored string) {
		got, err := empty.applyEntry([]byte(stored), 2)
		if err != nil || got.record != 7 || got.assignment.Generation != gen(7, 2) || !got.assignment.SamePlaces(first) {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	golden.Check(t, "entry-assign", string(assignEntry(second)), func(t *testing.T, stored string) {
		got, err := whole.applyEntry([]byte(stored), 9)
		if err != nil || got.assignment.Generation != gen(7, 9) || !got.assignment.SamePlaces(second) {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	golden.Check(t, "entry-delta", string(deltaEntry(whole.assignment, second)), func(t *testing.T, stored string) {
		got, err := whole.applyEntry([]byte(stored), 9)
		if err != nil || got.assignment.Generation != gen(7, 9) || !got.assignment.SamePlaces(second) {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	golden.Check(t, "snapshot", string(whole.encode()), func(t *testing.T, stored string) {
		m := newMachine(func(*plan.Assignment) {})
		err := m.Restore(io.NopCloser(bytes.NewReader([]byte(stored))))
		got := m.state.Load()
		if err != nil || got.record != 7 || !got.assignment.SamePlaces(first) || !reflect.DeepEqual(got.assignment.MovedAt, whole.assignment.MovedAt) {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	rec := &record{ID: 7, Voters: []string{serverID("B1", 7, 1), serverID("B2", 7, 12)}}
	golden.Check(t, "record", string(rec.encode()), func(t *testing.T, stored string) {
		got, err := decodeRecord([]byte(stored))
		same(got, rec)(t, err)
		if bootOf(got.Voters[1]) != "B2" || recordOf(got.Voters[1]) != 7 {
			t.Errorf("server id %s", got.Voters[1])
		}
	})
	golden.Check(t, "mark", serverID("B1", 7, 1), func(t *testing.T, stored string) {
		if bootOf(stored) != "B1" || recordOf(stored) != 7 || recordOf("nonsense") != 0 {
			t.Errorf("mark %s: of boot %s and record %d, want B1 and 7", stored, bootOf(stored), recordOf(stored))
		}
	})
	step := rec.withVoters(rec.Voters, rec.Voters[:1])
	golden.Check(t, "record-step", string(step.encode()), func(t *testing.T, stored string) {
		got, err := decodeRecord([]byte(stored))
		same(got, step)(t, err)
		if len(got.Voters) != 2 || len(got.Fewer) != 1 {
			t.Errorf("got %+v, want two voters, and one fewer", got)
		}
	})
	var sent bytes.Buffer
	hello := handshake{Cluster: "default", Record: 7, Target: serverID("B1", 7, 1)}
	if err := writeHandshake(&sent, hello); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "handshake", sent.String(), func(t *testing.T, stored string) {
		got, err := readHandshake(bytes.NewReader([]byte(stored)))
		same(got, hello)(t, err)
	})
	info := RaftInfo{Server: serverID("B1", 7, 1), Leader: serverID("B2", 7, 12), Applied: gen(7, 300), CanPlan: true}
	text, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "raft-info", string(text), func(t *testing.T, stored string) {
		var got RaftInfo
		err := json.Unmarshal([]byte(stored), &got)
		same(got, info)(t, err)
	})
}

// FuzzLog checks that entries and snapshots are read or refused, and that Raft can write what it reads.
func FuzzLog(f *testing.F) {
	first := &plan.Assignment{Nodes: []string{"n1"}, Queues: []plan.Placement{{Queue: "orders", Owners: []int32{0, plan.None}}}}
	began, err := (&state{assignment: &plan.Assignment{}}).applyEntry(recordEntry(7, first), 1)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{recordEntry(7, first), assignEntry(first), began.encode(), {99}, {}, {commandAssign, 2}, deltaEntry(began.assignment, &plan.Assignment{Nodes: []string{"n2"}, Queues: []plan.Placement{{Queue: "mail", Owners: []int32{0, plan.None}}}})} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, from := range []*state{{assignment: &plan.Assignment{}}, began} {
			if next, err := from.applyEntry(data, 3); err == nil {
				if _, err := decodeState(next.encode()); err != nil {
					t.Errorf("a snapshot of what %q makes: %v", data, err)
				}
			}
		}
		m := newMachine(func(*plan.Assignment) {})
		if err := m.Restore(io.NopCloser(bytes.NewReader(data))); (err == nil) == (m.readError() != nil) {
			t.Errorf("snapshot %q: %v, unread %v", data, err, m.readError())
		}
	})
}
