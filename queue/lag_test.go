package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"

	"github.com/lowkiq/lowkiq"
)

var lagTests = []testCase{
	{"Lag_BehindItsOwnFlight", lagBehindFlight},
	{"Lag_BehindDeletedJobs", lagBehindDeleted},
	{"Lag_OfAnUnownedShard", lagUnowned},
}

// wantLag fails unless the queue's lag is this, or a little more.
func (r *rig) wantLag(what string, want time.Duration) {
	r.t.Helper()
	stats, err := r.q.Stats(r.ctx)
	r.no(err)
	if stats.Lag < want || stats.Lag > want+time.Minute {
		r.t.Errorf("%s: got lag %s, want %s", what, stats.Lag, want)
	}
}

// lagBehindFlight: what is pushed to an id that a handler does not let go of waits, and so
// does what thousands of others have.
func lagBehindFlight(t *testing.T, b *backend) {
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
	r.no(err)
	if stats.Lag <= 0 {
		t.Errorf("1,099 ids wait behind their own flights: got lag %s, want at least their age", stats.Lag)
	}
}

// lagBehindDeleted: entries of deleted jobs hide nobody, and neither does a new job in the
// place of a deleted one.
func lagBehindDeleted(t *testing.T, b *backend) {
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
	r.no(err)
	r.wantLag("deleted itself", 0)
}

// lagUnowned: a queue that nobody handles, or that is paused, lags like any other.
func lagUnowned(t *testing.T, b *backend) {
	r := rigOn(t, b.open(t))
	r.push(job("a", "1", in(-time.Hour)), job("b", "1"))
	r.no(r.c.Registry().Pause(r.ctx, r.q.Name))
	r.wantLag("nobody owns the shard", time.Hour)
}
