package node

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue"
)

func TestDecideClaim(t *testing.T) {
	t.Parallel()
	const ttl, me = 6 * time.Second, "n1/B.2"
	missing := func(d time.Duration) holderState { return holderState{missingEver: true, missingFor: d} }
	other := queue.Owner{Instance: "n2/C.1", Fence: 5}
	for _, c := range []struct {
		name                string
		owner               queue.Owner
		holder              holderState
		absentHeld, ranLast bool
		want                claimStep
	}{
		{name: "never owned", want: claimFresh},
		{name: "absent after a loss", absentHeld: true, want: claimWait},
		{name: "absent after a loss, ran here last", absentHeld: true, ranLast: true, want: claimFresh},
		{name: "ran here last", ranLast: true, want: claimFresh},
		{name: "released", owner: queue.Owner{Fence: 5}, want: claimFresh},
		{name: "released, after a loss of other claims", owner: queue.Owner{Fence: 5}, absentHeld: true, want: claimFresh},
		{name: "mine without a runner: an answer was lost", owner: queue.Owner{Instance: me, Fence: 5}, want: claimSelf},
		{name: "an earlier instance of this boot", owner: queue.Owner{Instance: "n1/B.1", Fence: 5}, want: claimSelf},
		{name: "an earlier instance, after a loss", owner: queue.Owner{Instance: "n1/B.1", Fence: 5}, absentHeld: true, want: claimSelf},
		{name: "same node, earlier boot, alive", owner: queue.Owner{Instance: "n1/A.1", Fence: 5}, holder: holderState{leased: true}, want: claimWait},
		{name: "same node, earlier boot, proven gone", owner: queue.Owner{Instance: "n1/A.1", Fence: 5}, holder: holderState{proven: true}, want: claimSeize},
		{name: "alive", owner: other, holder: holderState{leased: true}, want: claimWait},
		{name: "nothing known", owner: other, want: claimWait},
		{name: "proven gone", owner: other, holder: holderState{proven: true}, want: claimSeize},
		{name: "just gone missing", owner: other, holder: missing(0), want: claimWait},
		{name: "missing for almost a ttl", owner: other, holder: missing(ttl - 1), want: claimWait},
		{name: "missing for a ttl", owner: other, holder: missing(ttl), want: claimSeize},
		{name: "missing for a ttl, not for its own longer one", owner: other, holder: holderState{missingEver: true, missingFor: ttl, ttl: 10 * ttl}, want: claimWait},
		{name: "missing for its own longer ttl", owner: other, holder: holderState{missingEver: true, missingFor: 10 * ttl, ttl: 10 * ttl}, want: claimSeize},
		{name: "missing for its own shorter ttl", owner: other, holder: holderState{missingEver: true, missingFor: ttl / 2, ttl: ttl / 2}, want: claimWait},
		{name: "ran here before, another has it", owner: other, holder: holderState{leased: true}, ranLast: true, want: claimWait},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := decideClaim(c.owner, me, c.holder, ttl, c.absentHeld, c.ranLast); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestMissing: the time counts from the first look that found no lease, and starts anew
// if the lease is seen again (a read that was wrong).
func TestMissing(t *testing.T) {
	t.Parallel()
	n := &Node{absent: map[string]time.Duration{}}
	if d, ever := n.missing("x", true); ever || d != 0 {
		t.Errorf("a lease that is there is missing for %s, %v", d, ever)
	}
	first, ever := n.missing("x", false)
	if !ever || first > time.Minute {
		t.Errorf("at the first look missing for %s, %v; want about 0, true", first, ever)
	}
	n.absent["x"] -= time.Hour
	if later, _ := n.missing("x", false); later < time.Hour {
		t.Errorf("an hour later missing for %s", later)
	}
	n.missing("x", true)
	if again, _ := n.missing("x", false); again > time.Minute {
		t.Errorf("after it was seen, missing for %s, want about 0", again)
	}
}
