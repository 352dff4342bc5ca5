package protocol_test

import (
	"testing"
	"time"
)

var leaseTests = []testCase{{"Reserve", testReserve}}

// testReserve checks that a boot whose answer was lost asks again, and gets its own reservation.
func testReserve(t *testing.T, b *backend) {
	r := &rig{t: t, ctx: t.Context(), c: b.open(t)}
	ask := func(boot string, want bool) {
		t.Helper()
		got, err := r.c.Leases().Reserve(r.ctx, "n1", boot, time.Hour)
		r.noErr(err)
		eq(t, "reserved for "+boot, got, want)
	}
	ask("one", true)
	ask("one", true)
	ask("two", false)
	r.noErr(r.c.Leases().Unreserve(r.ctx, "n1", "two"))
	ask("two", false)
	r.noErr(r.c.Leases().Unreserve(r.ctx, "n1", "one"))
	ask("two", true)
}
