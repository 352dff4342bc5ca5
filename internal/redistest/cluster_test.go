package redistest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestMoveSlotWhileClientsWrite(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3)
	if got, want := c.URL(), "redis+cluster://"+strings.Join(c.Addrs(), ","); got != want {
		t.Errorf("URL: got %s, want %s", got, want)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	const keys = 250
	key := func(i int) string { return fmt.Sprintf("{moved}:%d", i) }
	incrementAll := func() {
		for i := range keys {
			if err := client.Incr(t.Context(), key(i)).Err(); err != nil {
				t.Errorf("increment %s: %v", key(i), err)
			}
		}
	}
	incrementAll()
	slot := c.SlotOf(key(0))
	from := c.OwnerOf(slot)
	to := (from + 1) % 3
	done := make(chan struct{})
	go func() {
		defer close(done)
		incrementAll()
	}()
	c.MoveSlot(slot, from, to)
	<-done
	incrementAll()
	if got := c.OwnerOf(slot); got != to {
		t.Errorf("owner of slot %d: got master %d, want %d", slot, got, to)
	}
	for i := range keys {
		if got, err := client.Get(t.Context(), key(i)).Int(); got != 3 {
			t.Errorf("%s: got %d, %v, want 3", key(i), got, err)
		}
	}
}

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

func TestHolds(t *testing.T) {
	t.Parallel()
	const nodes = "aa 127.0.0.1:1@10001 myself,master - 0 0 1 connected 0-10 12 [13-<-bb]\n" +
		"bb 127.0.0.1:2@10002 master - 0 0 2 connected 11 13\ncc 127.0.0.1:3@10003 master - 0 0 3 connected\n"
	for _, c := range []struct {
		id   string
		slot int
		want bool
	}{
		{"aa", 0, true}, {"aa", 10, true}, {"aa", 11, false}, {"aa", 12, true}, {"aa", 13, false},
		{"bb", 13, true}, {"bb", 5, false}, {"cc", 0, false}, {"dd", 0, false},
	} {
		if got := holds(nodes, c.id, c.slot); got != c.want {
			t.Errorf("%s holds %d: got %t, want %t", c.id, c.slot, got, c.want)
		}
	}
}
