package rebalance

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The cluster record: founded, lost, written back, deleted.

func TestRecordLost(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		id, before := w.record().ID, w.alive()[0].agent.Assignment()
		w.with(func() { w.raw, w.mark = nil, nil })
		w.eventually(5*time.Second, "the leader writes the record back", func() bool { return w.record() != nil })
		time.Sleep(3 * ttl)
		if got := w.record().ID; got != id {
			t.Errorf("got record %d, want %d back", got, id)
		}
		if after := w.alive()[0].agent.Assignment(); after != before {
			t.Errorf("got generation %s, want nothing to move after %s", after.Generation, before.Generation)
		}
	})
}

// TestRecordDamaged overwrites the record. That is as good as a lost record. The leader writes it back, and without a
// leader a new group is founded.
func TestRecordDamaged(t *testing.T) {
	t.Parallel()
	for _, damage := range []string{`{"id":`, `{"voters":["B1#7.1"]}`, `"x"`, ``} {
		inBubble(t, 5, func(t *testing.T, w *world) {
			readable := func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				rec, err := decodeRecord(w.raw)
				return rec != nil && err == nil
			}
			id, before := w.record().ID, w.alive()[0].agent.Assignment()
			w.with(func() { w.raw = []byte(damage) })
			w.eventually(5*time.Second, "the leader writes the record back", readable)
			time.Sleep(3 * ttl)
			if got := w.record().ID; got != id {
				t.Errorf("damage %q: got record %d, want %d back", damage, got, id)
			}
			if after := w.alive()[0].agent.Assignment(); after != before {
				t.Errorf("damage %q: got generation %s, want nothing to move after %s", damage, after.Generation, before.Generation)
			}
			for _, p := range w.alive() {
				p.kill()
			}
			w.with(func() { w.raw = []byte(damage) })
			for i := range 3 {
				w.start(fmt.Sprintf("m%d", i))
			}
			w.eventually(30*time.Second, "a new group", func() bool { return readable() && w.agreed() })
		})
	}
}

// TestRecordAndLeasesLost empties Redis. Nothing moves while the leases come back one by one.
func TestRecordAndLeasesLost(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		before := w.alive()[0].agent.Assignment()
		leader := w.leader()
		w.with(func() {
			w.raw, w.mark = nil, nil
			for _, p := range w.processes {
				p.unleased = true
			}
		})
		time.Sleep(time.Second)
		w.with(func() { leader.unleased = false })
		for _, p := range w.processes {
			time.Sleep(900 * time.Millisecond)
			w.with(func() { p.unleased = false })
		}
		time.Sleep(3 * ttl)
		if after := w.alive()[0].agent.Assignment(); after != before {
			t.Errorf("got generation %s, want nothing to move after %s", after.Generation, before.Generation)
		}
	})
}

// TestLeaderWithoutLease checks that a leader that lost its lease plans nothing. When it knows of no node to hand over
// to, the others found a new group after the mark has been missing long enough.
func TestLeaderWithoutLease(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		leader, id := w.leader(), w.record().ID
		w.with(func() { leader.unleased, leader.noGossip = true, true })
		took := w.eventually(6*ttl, "a new record", func() bool { return w.record().ID != id })
		if least := 2 * ttl; took < least {
			t.Errorf("new record after %s, want at least %s: a quorum of voters lives", took, least)
		}
		w.with(func() { leader.unleased, leader.noGossip = false, false })
		w.eventually(30*time.Second, "the cluster agrees", w.agreed)
	})
}

func TestFoundersAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range 4 {
			w.start(fmt.Sprintf("n%d", i), func(p *process) { p.lostReply = i == 0 })
		}
		w.eventually(30*time.Second, "one cluster", w.agreed)
		records := map[uint64]bool{}
		w.with(func() {
			for g := range w.seen {
				records[g.Record] = true
			}
		})
		if len(records) != 1 {
			t.Errorf("got assignments of records %v, want of one", records)
		}
	})
}

func TestLastOneDeletesTheRecord(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, w *world) {
		for i, p := range w.alive() {
			p.cancel()
			<-p.done
			if gone := w.record() == nil; gone != (i == 1) {
				t.Errorf("after %d left: record gone %v", i+1, gone)
			}
			w.eventually(40*time.Second, "those left agree", func() bool { return i == 1 || w.agreed() })
		}
	})
}

// TestAllLeaveAtOnce checks that a node does not wait for a successor where there is none.
func TestAllLeaveAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		w.with(func() {
			for _, p := range w.processes {
				p.node.Draining = true
			}
		})
		start := time.Now()
		for _, p := range w.processes {
			p.cancel()
		}
		for _, p := range w.processes {
			<-p.done
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %s, want at most 1s", took)
		}
	})
}

// A leader that writes the voters anew keeps what a later release has put beside them.
func TestRecordKeepsLaterFields(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, w *world) {
		const later = `,"later":{"n":12345678901234567890}}`
		w.with(func() { w.raw = append(bytes.TrimSuffix(w.raw, []byte("}")), later...) })
		w.eventually(20*time.Second, "voters", func() bool { return len(w.voters()) == 3 })
		time.Sleep(time.Second) // the record names a voter before the group does
		w.leader().kill()
		was := w.voters()
		w.eventually(60*time.Second, "other voters", func() bool { return !slices.Equal(w.voters(), was) && w.agreed() })
		w.with(func() {
			if !bytes.HasSuffix(w.raw, []byte(later)) {
				t.Errorf("got %s, want one that ends in %s", w.raw, later)
			}
		})
	})
}
