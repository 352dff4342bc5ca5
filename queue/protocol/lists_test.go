package protocol_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
)

var listTests = []testCase{{"OneJob", testOneJob}, {"PagesOfACrowd", testCrowdPages}, {"Stats", testFigures}}

// brief returns ids with their states.
func brief(jobs []browse.Listed) string {
	var b strings.Builder
	for _, j := range jobs {
		fmt.Fprintf(&b, "%s:%s ", j.ID, j.State)
	}
	return strings.TrimSpace(b.String())
}

// everywhere puts one job into each place of a queue of 3 shards, which are all owned.
func everywhere(t *testing.T, b *backend) *Queue {
	t.Helper()
	c := b.open(t)
	q := newQueue(t, c, 3)
	r := &rig{t: t, ctx: t.Context(), c: c, q: q}
	on := func(id string) { r.s = q.Of(id); r.own(cmp.Or(ownable(r), Fresh)) }
	fail := func(id string, retry int, d time.Duration) {
		on(id)
		r.push(job(id, "1"))
		_, flight := r.popOne(id)
		r.nack(flight, id, Retry, retry, d)
	}
	fail("f1", 5, time.Hour)
	fail("f2", 1, 2*time.Hour)
	fail("f3", 1, time.Hour)
	for id, policy := range map[string]Policy{"dead1": Bury, "dead2": Bury, "blocked": Block} {
		on(id)
		r.push(job(id, "1"))
		_, flight := r.popOne(id)
		r.bury(flight, id, policy)
	}
	for _, id := range []string{"fly3", "fly1", "fly2"} {
		r.push(job(id, "1"))
	}
	for i := range 3 {
		r.s = q.Shard(i)
		r.own(cmp.Or(ownable(r), Fresh))
		r.pop(10)
	}
	r.push(job("fly1", "2"), job("fly1", "3"))
	r.push(job("ready2", "1", in(-time.Minute)), job("ready1", "1", in(-time.Hour)), job("later", "1", in(30*time.Minute)))
	return q
}

// ownable returns the cause by which the rig's shard can be claimed.
func ownable(r *rig) Cause {
	seen, err := r.s.Owner(r.ctx)
	r.noErr(err)
	if seen.Instance != "" {
		return Self
	}
	return Fresh
}

func testOneJob(t *testing.T, b *backend) {
	q := everywhere(t, b)
	fly, ok, err := browse.Of(q).Job(t.Context(), "fly1")
	eq(t, "fly1", fmt.Sprintln(brief([]browse.Listed{fly}), fly.Flight > 0, fly.Parked, ok, err), "fly1:in_flight true 2 true <nil>\n")
	dead1, ok, err := browse.Of(q).Job(t.Context(), "dead1")
	eq(t, "dead1", fmt.Sprintln(brief([]browse.Listed{dead1}), ok, err), "dead1:morgue true <nil>\n")
}

// testCrowdPages has lists that are longer than one command returns.
func testCrowdPages(t *testing.T, b *backend) {
	r := newRig(t, b)
	n := 2500
	if b.mini {
		n = 600
	}
	var jobs []lowkiq.Push
	for i := range n {
		jobs = append(jobs, job(fmt.Sprintf("id%04d", i), "1", in(time.Duration(i+1)*time.Minute)))
	}
	r.push(jobs...)
	eq(t, "ids", len(whole(t, r.q, browse.Query{By: browse.ByID})), n)
	got := whole(t, r.q, browse.Query{Range: browse.Range{Reverse: true}})
	eq(t, "by time", got[0].ID+" "+got[n-1].ID, fmt.Sprintf("id%04d id0000", n-1))
	done, _ := allSteps(t, r.q, browse.RunNow, browse.Query{Range: browse.Range{Limit: 1000}})
	eq(t, "run now", done.Changed, n)
	eq(t, "drained", len(r.drain()), n)
}

func testFigures(t *testing.T, b *backend) {
	q := everywhere(t, b)
	got, err := q.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eq(t, "jobs", got.Jobs, Counts{Ready: 2, Scheduled: 1, Retry: 3, InFlight: 3, Blocked: 1, Failed: 3})
	eq(t, "total", got.Jobs.Total(), 10)
	eq(t, "morgue", fmt.Sprint(got.Morgue, got.MorgueIDs), "2 2")
	eq(t, "processed, failed", fmt.Sprint(got.Processed, got.Failed), "0 6")
	if got.Lag < 59*time.Minute || got.Lag > 61*time.Minute {
		t.Errorf("lag: got %s, want an hour", got.Lag)
	}
	near(t, "now", got.Now, 0)
	one, err := ClientOf(q).Stats(t.Context(), q.Shard(1))
	if err != nil || len(one) != 1 || one[0].Owner.Instance == "" {
		t.Errorf("stats of one shard: got %+v, %v, want an owner", one, err)
	}
	owners, err := ClientOf(q).Owners(t.Context(), q.All())
	if err != nil || owners[1] != one[0].Owner {
		t.Errorf("owners: got %+v, %v, want %+v", owners, err, one[0].Owner)
	}
}
