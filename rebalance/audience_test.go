package rebalance

import (
	"slices"
	"testing"
	"time"
)

func TestAudience(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	hears := Peer{Leased: true, Boot: "h", Seat: Seat{Server: "h#7.1", Leader: "a#7.1"}}
	deaf := Peer{Leased: true, Boot: "d", Seat: Seat{Server: "d#7.1"}}
	other := Peer{Leased: true, Boot: "o", Seat: Seat{Server: "o#6.1", Leader: "b#6.1"}}
	self := Peer{Leased: true, Boot: "a", Seat: Seat{Server: "a#7.1", Leader: "a#7.1"}}
	dead := Peer{Boot: "x", Seat: Seat{Server: "x#7.1"}}
	u := audience{patience: 4 * ttl}
	for _, tt := range []struct {
		name  string
		at    time.Duration
		peers []Peer
		want  bool
	}{
		{"two processes, one deaf", 0, []Peer{self, deaf}, false},
		{"for ever", 9 * ttl, []Peer{self, deaf}, false},
		{"two deaf", 10 * ttl, []Peer{self, deaf, other}, false},
		{"almost for the patience", 13*ttl - 1, []Peer{self, deaf, other}, false},
		{"for the patience", 13 * ttl, []Peer{self, deaf, other}, true},
		{"the deaf are dead", 14 * ttl, []Peer{self, dead, dead, dead}, false},
		{"many start", 15 * ttl, []Peer{self, deaf, deaf, deaf, deaf, deaf}, false},
		{"one more hears each time", 18 * ttl, []Peer{self, hears, deaf, deaf, deaf, deaf}, false},
		{"one more again", 21 * ttl, []Peer{self, hears, hears, deaf, deaf, deaf, deaf}, false},
		{"no more", 25 * ttl, []Peer{self, hears, hears, deaf, deaf, deaf, deaf}, true},
		{"half of them", 26 * ttl, []Peer{self, hears, hears, deaf, deaf, deaf}, false},
	} {
		if got := u.lost(start.Add(tt.at), tt.peers, "a#7.1"); got != tt.want {
			t.Errorf("%s: got lost %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A founder that no other process hears must not keep them without a leader: record and
// mark are its own, and everybody would wait to be added by it for ever.
func TestUnheardFounderGivesUp(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, w *world) {
		stranger, id := w.leader(), w.record().ID
		stranger.isolate(true)
		second, third := w.start("n2"), w.start("n3")
		took := w.eventually(8*ttl, "the others found a group", func() bool {
			a := second.agent.Assignment()
			return w.record().ID > id && a.Generation == third.agent.Assignment().Generation && slices.Contains(a.Nodes, "n3")
		})
		if took < 4*ttl {
			t.Errorf("given up after %s, want patience of %s", took, 4*ttl)
		}
		stranger.isolate(false)
		w.eventually(10*ttl, "the stranger is one of them", w.agreed)
	})
}

// With one other process the leader stays: neither knows which of them is wrong.
func TestUnheardOfOneStays(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, w *world) {
		id := w.record().ID
		w.leader().isolate(true)
		w.start("n2")
		time.Sleep(20 * ttl) // the bubble's time
		if got := w.record().ID; got != id {
			t.Errorf("got record %d, want still %d", got, id)
		}
	})
}
