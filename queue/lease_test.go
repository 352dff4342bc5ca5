package queue_test

import (
	"testing"
	"time"
)

var leaseTests = []testCase{{"Reserve", reserve}}

// reserve: a boot whose answer was lost asks again, and is not in its own way.
func reserve(t *testing.T, b *backend) {
	r := &rig{t: t, ctx: t.Context(), c: b.open(t)}
	ask := func(boot string, want bool) {
		t.Helper()
		got, err := r.c.Leases().Reserve(r.ctx, "n1", boot, time.Hour)
		r.no(err)
		eq(t, "reserved for "+boot, got, want)
	}
	ask("one", true)
	ask("one", true)
	ask("two", false)
	r.no(r.c.Leases().Unreserve(r.ctx, "n1", "two"))
	ask("two", false)
	r.no(r.c.Leases().Unreserve(r.ctx, "n1", "one"))
	ask("two", true)
}
