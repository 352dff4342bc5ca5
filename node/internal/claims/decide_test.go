package claims

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

func TestDecideClaim(t *testing.T) {
	t.Parallel()
	const me = "n1/B.2"
	missing := func(d time.Duration) holderState { return holderState{missingEver: true, missingFor: d} }
	other := protocol.Owner{Instance: "n2/C.1", Fence: 5}
	for _, c := range []struct {
		name                  string
		owner                 protocol.Owner
		holder                holderState
		absentHeld, lastOwner bool
		want                  step
	}{
		{name: "never owned", want: fresh},
		{name: "absent after a loss", absentHeld: true, want: wait},
		{name: "absent after a loss, owned here last", absentHeld: true, lastOwner: true, want: fresh},
		{name: "owned here last", lastOwner: true, want: fresh},
		{name: "released", owner: protocol.Owner{Fence: 5}, want: fresh},
		{name: "released, after a loss of other claims", owner: protocol.Owner{Fence: 5}, absentHeld: true, want: fresh},
		{name: "mine without a runner: an answer was lost", owner: protocol.Owner{Instance: me, Fence: 5}, want: self},
		{name: "an earlier instance of this boot", owner: protocol.Owner{Instance: "n1/B.1", Fence: 5}, want: self},
		{name: "an earlier instance, after a loss", owner: protocol.Owner{Instance: "n1/B.1", Fence: 5}, absentHeld: true, want: self},
		{name: "same node, earlier boot, alive", owner: protocol.Owner{Instance: "n1/A.1", Fence: 5}, holder: holderState{leased: true}, want: wait},
		{name: "same node, earlier boot, proven gone", owner: protocol.Owner{Instance: "n1/A.1", Fence: 5}, holder: holderState{proven: true}, want: seize},
		{name: "alive", owner: other, holder: holderState{leased: true}, want: wait},
		{name: "nothing known", owner: other, want: wait},
		{name: "proven gone", owner: other, holder: holderState{proven: true}, want: seize},
		{name: "just gone missing", owner: other, holder: missing(0), want: wait},
		{name: "missing for almost a ttl", owner: other, holder: missing(ttl - 1), want: wait},
		{name: "missing for a ttl", owner: other, holder: missing(ttl), want: seize},
		{name: "missing for a ttl, not for its own longer one", owner: other, holder: holderState{missingEver: true, missingFor: ttl, ttl: 10 * ttl}, want: wait},
		{name: "missing for its own longer ttl", owner: other, holder: holderState{missingEver: true, missingFor: 10 * ttl, ttl: 10 * ttl}, want: seize},
		{name: "missing for its own shorter ttl", owner: other, holder: holderState{missingEver: true, missingFor: ttl / 2, ttl: ttl / 2}, want: wait},
		{name: "owned here before, another has it", owner: other, holder: holderState{leased: true}, lastOwner: true, want: wait},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := decideClaim(c.owner, me, c.holder, shardState{ttl, c.absentHeld, c.lastOwner}); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
