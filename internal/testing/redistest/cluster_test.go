package redistest

import (
	"strconv"
	"strings"
	"testing"
)

func TestHalfMovedSlotAsksAndTriesAgain(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3)
	a, b := "{half}:a", "{half}:b"
	slot := c.SlotOf(a)
	from := c.OwnerOf(slot)
	owner := client(t, c.Masters[from].Addr())
	for _, key := range []string{a, b} {
		if err := owner.Set(t.Context(), key, "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	m := c.BeginMove(slot, from, (from+1)%3)
	if !m.Step(1) {
		t.Fatal("first step moved nothing")
	}
	if err := owner.MGet(t.Context(), a, b).Err(); err == nil || !strings.HasPrefix(err.Error(), "TRYAGAIN") {
		t.Errorf("both keys of a half-moved slot: got %v, want TRYAGAIN", err)
	}
	m.Step(1)
	if err := owner.Get(t.Context(), a).Err(); err == nil || !strings.HasPrefix(err.Error(), "ASK") {
		t.Errorf("a key that has moved: got %v, want ASK", err)
	}
	m.Finish()
	for i := range c.Masters {
		err := client(t, c.Masters[i].Addr()).Get(t.Context(), a).Err()
		moved := err != nil && strings.HasPrefix(err.Error(), "MOVED")
		if want := i != (from+1)%3; moved != want {
			t.Errorf("master %d after the move: got %v, want MOVED %t", i, err, want)
		}
	}
}

// TestMovesInARow moves seven slots often. After each move all masters must know the owner of the slot.
func TestMovesInARow(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3)
	for i := range 200 {
		slot := c.SlotOf(strconv.Itoa(i % 7))
		from := c.OwnerOf(slot)
		if from < 0 {
			t.Fatalf("slot %d has no owner after %d moves", slot, i)
		}
		c.BeginMove(slot, from, (from+1)%3).Finish()
	}
}
