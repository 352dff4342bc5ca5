package protocol_test

import (
	"testing"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
)

var positionTests = []testCase{{"Position", testPosition}}

// testPosition follows an id from the end of the list into quarantine.
func testPosition(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"), job("c", "1"))
	at := func(id string) browse.Position {
		t.Helper()
		s, err := browse.Of(r.q).Position(r.ctx, id)
		r.noErr(err)
		if s.Now.IsZero() || s.Owner.Instance != r.claim.Instance || s.Owner.Fence != r.claim.Fence {
			t.Errorf("%s: got %+v, want the time and the owner", id, s)
		}
		return s
	}
	eq(t, "c", at("c").Ahead, 2)
	r.pop(1)
	eq(t, "c after a pop", at("c").Ahead, 1)
	eq(t, "a in flight", at("a").Ahead, -1)
	eq(t, "in flight", at("c").InFlight, 1)
	near(t, "a in flight since", r.find("a", browse.StateInFlight).Since, 0)
	r.own(Seize)
	s := at("a")
	eq(t, "a in quarantine", s.Quarantined, true)
	eq(t, "c behind it", at("c").Ahead, 2)
	eq(t, "nobody", at("nobody").Ahead, -1)
}
