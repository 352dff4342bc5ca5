package runner

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
)

// The flushes of all shards meet: at the last tick that brings an ack to Redis in time.
func TestFlushesMeet(t *testing.T) {
	t.Parallel()
	for after := range 1000 {
		now := time.Unix(1_800_000_000, int64(after)*7919)
		d := untilTick(now)
		if d <= ackDelay-ackTick || d > ackDelay {
			t.Fatalf("%s after the second: got %s, want it in (%s, %s]", now.Sub(now.Truncate(time.Second)), d, ackDelay-ackTick, ackDelay)
		}
		if off := now.Add(d).UnixNano() % int64(ackTick); off != 0 {
			t.Fatalf("%s after the second: got %d ns beside a tick", now.Sub(now.Truncate(time.Second)), off)
		}
	}
}

// TestAcksSentAgain checks that acks are not joined with acks that Redis may have, whatever came between them.
func TestAcksSentAgain(t *testing.T) {
	t.Parallel()
	a := acks{flush: stoppedTimer(func() {})}
	done := func(place int, ids ...string) {
		var jobs []lowkiq.Job
		var runs journal.Block
		for _, id := range ids {
			jobs = append(jobs, lowkiq.Job{ID: id})
			runs.Add(&journal.Run{ID: id, Verdict: journal.Done})
		}
		a.add(1, jobs, place, nil, runs, false)
	}
	done(0, "a")
	done(1, "b")
	first := a.takeAll()
	if len(first) != 1 || !first[0].InRow || len(first[0].IDs) != 2 {
		t.Fatalf("got %+v, want a and b in a row", first)
	}
	done(2, "c")
	a.takeAll() // Redis has it
	a.putBack(first)
	done(3, "d")
	if got := a.takeAll(); len(got) != 2 || len(got[0].IDs) != 2 || got[1].IDs[0] != "d" {
		t.Errorf("got %+v, want a and b in a row, and d apart", got)
	}
}
