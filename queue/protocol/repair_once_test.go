package protocol_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"
)

// testRepairOfATombCounts checks that a repair leaves no fault for the next audit.
func testRepairOfATombCounts(t *testing.T, b *backend) {
	r := newRig(t, b)
	takeLeases(t, r.c, "n/1")
	r.push(job("a", "1"))
	_, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "a")
	r.noErr(err)
	r.noErr(r.c.DB().ForTests().LRem(r.ctx, r.s.Keys().Ready, 0, "a").Err())
	found := r.audit()
	if len(found.Faults) != 1 || found.Faults[0].Kind != audit.LoneTomb {
		t.Fatalf("got these faults, want a lone tomb\n%s", linesOf(found))
	}
	mended, err := audit.Repair(r.ctx, r.c, found.Faults[0])
	r.noErr(err)
	if left := r.audit(); !mended || len(left.Faults) > 0 {
		t.Errorf("after the repair (%t): got these faults, want none\n%s", mended, linesOf(left))
	}
}

// testRepairLeavesTheOnlyPlace checks that an id that is in one place only is not removed from it, even if its record
// says another place.
func testRepairLeavesTheOnlyPlace(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	r.nack(flight, "a", Retry, 0, time.Hour)
	at, err := r.c.DB().ForTests().ZScore(r.ctx, r.s.Keys().Retry, "a").Result()
	r.noErr(err)
	r.noErr(r.c.DB().ForTests().ZRem(r.ctx, r.s.Keys().Retry, "a").Err())
	r.noErr(r.c.DB().ForTests().ZAdd(r.ctx, r.s.Keys().Due, redis.Z{Score: at, Member: "a"}).Err())
	mended, err := audit.Repair(r.ctx, r.c, audit.Fault{Kind: audit.TwoPlaces, Queue: r.q.Name, ID: "a"})
	r.noErr(err)
	eq(t, "mended", mended, false)
	eq(t, "places", r.c.DB().ForTests().ZCard(r.ctx, r.s.Keys().Due).Val(), 1)
	_, err = audit.Repair(r.ctx, r.c, audit.Fault{Kind: audit.WrongTime, Queue: r.q.Name, ID: "a"})
	r.noErr(err)
	r.find("a", browse.StateRetry)
}

// testRepairOfADamagedFlight checks that an unreadable record keeps no other job of the flight from waiting again (I2).
func testRepairOfADamagedFlight(t *testing.T, b *backend) {
	for name, back := range map[string]func(r *rig) error{
		"repair": func(r *rig) error {
			r.noErr(r.c.DB().ForTests().HDel(r.ctx, r.s.Keys().Claim, "instance").Err())
			return second(audit.Repair(r.ctx, r.c, audit.Fault{Kind: audit.FlightUnowned, Queue: r.q.Name}))
		},
		"release": func(r *rig) error { return second(r.claim.Release(r.ctx)) },
		"seizure": func(r *rig) error {
			seen, err := r.s.Owner(r.ctx)
			r.noErr(err)
			return second(r.s.Claim(r.ctx, "n/2", Seize, seen))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rigOn(t, b.open(t))
			r.own(Fresh)
			r.push(job("a", "1"), job("b", "1"), job("c", "1"))
			eq(t, "popped", len(r.pop(3).Jobs), 3)
			r.push(job("b", "2"))
			r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Jobs, "b", "j0 5 2 9 0 2\n1 1:x").Err())
			if err := back(r); err != nil {
				t.Error(err)
			}
			ids := append(r.c.DB().ForTests().LRange(r.ctx, r.s.Keys().Suspects, 0, -1).Val(), r.c.DB().ForTests().LRange(r.ctx, r.s.Keys().Ready, 0, -1).Val()...)
			slices.Sort(ids)
			eq(t, "waiting", ids, []string{"a", "b", "c"})
			eq(t, "in flight", r.c.DB().ForTests().LLen(r.ctx, r.s.Keys().Flight).Val(), 0)
			eq(t, "moved aside", r.mend().Aside, 1)
			eq(t, "what was parked", fmt.Sprintf("%q", dataOf(r.find("b", browse.StateReady).Payloads)), `["2"]`)
		})
	}
}
