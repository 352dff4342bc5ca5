package protocol_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
)

var lagTests = []testCase{
	{"Lag_BehindItsOwnFlight", testLagBehindFlight},
	{"Lag_NamesTheFlight", testLagNamesFlight},
	{"Lag_BehindDeletedJobs", testLagBehindDeleted},
	{"Lag_OfAnUnownedShard", testLagUnowned},
	{"Lag_OfPostponedJobs", testLagOfPostponedJobs},
	{"Lag_OfTheRestOfAHeldJob", testLagOfTheRest},
}

// wantLag fails the test unless the queue's lag is this, or slightly more.
func (r *rig) wantLag(what string, want time.Duration) {
	r.t.Helper()
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	if stats.Lag < want || stats.Lag > want+time.Minute {
		r.t.Errorf("%s: got lag %s, want %s", what, stats.Lag, want)
	}
}

// testLagNamesFlight checks that the figures of a shard with waiting jobs name the oldest flight.
func testLagNamesFlight(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("slow", "1"))
	_, slow := r.popOne("slow")
	s := r.q.Of("slow")
	read := func() Stats {
		stats, err := ReadStats(r.ctx, s)
		r.noErr(err)
		return stats[0]
	}
	eq(t, "first, while nothing waits", read().First, "")
	r.push(job("slow", "2"))
	stats := read()
	eq(t, "first", stats.First, "slow")
	if stats.FirstSince <= 0 || stats.FirstSince > time.Minute || stats.LastSince != stats.FirstSince {
		t.Errorf("got ages %s and %s of a flight that has just begun", stats.FirstSince, stats.LastSince)
	}
	r.ack(slow, "slow")
	eq(t, "first, after its end", read().First, "")
}

// testLagBehindFlight checks that payloads pushed to an id whose handler does not end count as waiting, and so do the
// jobs of thousands of other ids.
func testLagBehindFlight(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("hot", "1"))
	_, flight := r.popOne("hot")
	r.wantLag("nothing waits", 0)
	r.push(job("hot", "2", in(-time.Hour)))
	r.wantLag("behind its own flight", time.Hour)
	r.push(job("other", "1"), job("later", "1", in(time.Hour)))
	r.wantLag("with others", time.Hour)
	r.ack(flight, "hot")
	r.popOne("other")
	r.popOne("hot")
	r.wantLag("popped", 0)

	alike := "a" + strings.Repeat("\x00", 9) // a record of these bytes would be that of a job which has been due since 1970
	r.push(job(alike, "1"))
	r.popOne(alike)
	r.push(job(alike, "2"))
	r.wantLag("an id that looks like a record, behind its own flight", 0)

	var crowd []lowkiq.Push
	for i := range 1100 {
		crowd = append(crowd, job(fmt.Sprint("id", i), "1"))
	}
	r.push(crowd...)
	eq(t, "popped", len(r.pop(550).Jobs)+len(r.pop(550).Jobs), 1100)
	r.push(crowd[1:]...) // equal payloads, apart from what is in flight
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	if stats.Lag <= 0 {
		t.Errorf("1,099 ids wait behind their own flights: got lag %s, want at least their age", stats.Lag)
	}
}

// testLagOfPostponedJobs checks that a delay without a failure does not change since when an id waits. Held ids are no
// part of the lag.
func testLagOfPostponedJobs(t *testing.T, b *backend) {
	r := newRig(t, b)
	ids := []string{"busy", "full", "held", "cancelled", "failed"}
	for i, id := range ids {
		r.push(job(id, "1", in(-time.Duration(1+i)*time.Hour)))
	}
	r.push(job("crowded", "0", in(-6*time.Hour)))
	for i := range 40 {
		r.push(job("crowded", fmt.Sprint(i)))
	}
	flight := r.pop(len(ids) + 1).Flight
	r.wantLag("in flight", 0)
	for _, n := range []Nack{
		{ID: "busy", Kind: Postpone, Delay: time.Hour, Error: "503"}, {ID: "full", Kind: Postpone, Delay: 30 * time.Minute, Limited: true},
		{ID: "held", Kind: Hold}, {ID: "cancelled", Kind: Postpone, Cancelled: true}, {ID: "failed", Kind: Retry, Delay: time.Hour},
		{ID: "crowded", Kind: Postpone, Delay: time.Hour},
	} {
		n.Flight = flight
		_, err := r.claim.Nack(r.ctx, n)
		r.noErr(err)
	}
	r.wantLag("all are put off", 6*time.Hour)
	_, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "crowded")
	r.noErr(err)
	r.wantLag("the fifth has failed, the third is held", 4*time.Hour)
	job, flight := r.popOne("cancelled")
	near(t, "cancelled", job.WaitingSince, -4*time.Hour)
	r.wantLag("the fourth is in flight", 2*time.Hour)
	r.nack(flight, "cancelled", Return, 0, 0)
	r.wantLag("it is back", 4*time.Hour)
	r.popOne("cancelled")
	n, err := browse.Of(r.q).RunNow(r.ctx, "busy", "full", "failed")
	eq(t, "due now", fmt.Sprint(n, err), "3 <nil>")
	n, err = r.claim.ReleaseHeld(r.ctx, func(string) bool { return false })
	eq(t, "released", fmt.Sprint(n, err), "1 <nil>")
	r.wantLag("due at last", 3*time.Hour)
	_, err = readState(r.s, r.ctx)
	r.noErr(err)
	for i, id := range []string{"busy", "full"} {
		job, flight := r.popOne(id)
		near(t, id, job.WaitingSince, -time.Duration(1+i)*time.Hour)
		r.nack(flight, id, Retry, 0, -time.Minute) // from then on it waits anew
	}
	job, _ = r.popOne("failed")
	near(t, "failed", job.WaitingSince, 0)
	job, _ = r.popOne("held")
	near(t, "held", job.WaitingSince, -3*time.Hour)
	job, _ = r.popOne("busy")
	near(t, "once it has failed", job.WaitingSince, 0)
}

// testLagBehindDeleted checks that tombstones hide no waiting job, and neither does a new job at the place of a deleted
// job.
func testLagBehindDeleted(t *testing.T, b *backend) {
	r := newRig(t, b)
	n := 2500
	var jobs []lowkiq.Push
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprint("id", i))
		jobs = append(jobs, job(ids[i], "1"))
	}
	r.push(append(jobs, job("old", "1", in(-time.Hour)))...)
	gone, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, ids...)
	eq(t, "deleted", fmt.Sprint(gone, err), fmt.Sprint(n, " <nil>"))
	r.wantLag("behind 2,500 deleted jobs", time.Hour)
	r.push(jobs[0])
	r.push(job(ids[1], "1", in(time.Hour)))
	r.wantLag("behind a new job in the place of a deleted one", time.Hour)
	_, err = browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "old")
	r.noErr(err)
	r.wantLag("deleted itself", 0)
}

// testLagUnowned checks that a queue that nobody handles, or that is paused, has a lag like any other.
func testLagUnowned(t *testing.T, b *backend) {
	r := rigOn(t, b.open(t))
	r.push(job("a", "1", in(-time.Hour)), job("b", "1"))
	r.noErr(r.c.Registry().Pause(r.ctx, r.q.Name))
	r.wantLag("nobody owns the shard", time.Hour)
}

// testLagOfTheRest buries the oldest payload of a held job. The rest is due, and has waited since before.
func testLagOfTheRest(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("held", "1", in(-3*time.Hour)), job("held", "2"))
	_, flight := r.popOne("held")
	_, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: "held", Kind: Hold})
	r.noErr(err)
	r.wantLag("held", 0)
	n, err := browse.Of(r.q).BuryOldest(r.ctx, browse.StateHeld, "held")
	eq(t, "buried", fmt.Sprint(n, err), "1 <nil>")
	r.wantLag("the rest", 3*time.Hour)
	st, err := readState(r.s, r.ctx)
	r.noErr(err)
	eq(t, "ids noted as put off", len(st.postponed), 1)
}
