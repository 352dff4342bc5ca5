package protocol_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

var namedTests = []testCase{{"jobs by id", testJobs}}

// testJobs checks that Jobs returns for many ids what Job returns for each.
func testJobs(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("failed", "a"), job("blocked", "a"), job("dead", "a"), job("flies", "a"))
	flight := r.pop(4).Flight
	r.nack(flight, "failed", Retry, 2, time.Hour)
	_, err := r.claim.Bury(r.ctx,
		Burial{Flight: flight, ID: "blocked", Policy: Block, RetryCount: 25, Error: "stuck"},
		Burial{Flight: flight, ID: "dead", Policy: Bury, RetryCount: 25, Error: "dead"})
	r.noErr(err)
	r.push(job("flies", "b"), job("dead", "again"), job("ready", "a"), job("ready", "b"), job("later", "a", in(time.Hour)))
	ids := strings.Fields("ready later failed blocked flies dead nobody")
	waiting, err := browse.Of(r.q).Find(r.ctx, "", ids...)
	r.noErr(err)
	states := func(jobs []browse.Listed) (all []string) {
		for i, j := range jobs {
			if j.ID != ids[i] {
				t.Errorf("got %q at %d, want %q", j.ID, i, ids[i])
			}
			all = append(all, fmt.Sprintf("%s:%d:%d", j.State, j.Count, j.Parked))
		}
		return all
	}
	eq(t, "waiting", states(waiting), strings.Fields("ready:2:0 scheduled:1:0 retry:1:0 blocked:1:0 in_flight:1:1 ready:1:0 :0:0"))
	for i, id := range ids {
		one, ok, err := browse.Of(r.q).Job(r.ctx, id)
		r.noErr(err)
		if !ok && waiting[i].State != "" || ok && (one.State != waiting[i].State || len(one.Payloads) != waiting[i].Count || one.Flight != waiting[i].Flight) {
			t.Errorf("%s: got %+v, want %+v", id, waiting[i], one)
		}
	}
	dead, err := browse.Of(r.q).Find(r.ctx, browse.StateMorgue, ids...)
	r.noErr(err)
	eq(t, "dead", states(dead), strings.Fields(":0:0 :0:0 :0:0 :0:0 :0:0 morgue:1:0 :0:0"))
	none, err := browse.Of(r.q).Find(r.ctx, "")
	eq(t, "no ids", fmt.Sprint(len(none), err), "0 <nil>")
	if _, err := browse.Of(r.q).Find(r.ctx, browse.StateReady, "ready"); !errors.Is(err, browse.ErrQuery) {
		t.Errorf("another state: got %v, want ErrQuery", err)
	}
}

// TestJobsAreReadTogether checks that a thousand ids take one script per shard as long as their records are small.
func TestJobsAreReadTogether(t *testing.T) {
	t.Parallel()
	c := (&backend{url: redistest.Start(t).URL()}).open(t)
	q := newQueue(t, c, 4)
	var jobs []lowkiq.Push
	for i := range 1000 {
		jobs = append(jobs, job(fmt.Sprint("id", i), "a"))
	}
	results, err := q.Push(t.Context(), jobs...)
	if err != nil || slices.ContainsFunc(results, func(r Result) bool { return r.Err != nil }) {
		t.Fatal(err)
	}
	ids := make([]string, len(jobs))
	for i := range jobs {
		ids[i] = jobs[i].ID
	}
	_, err = browse.Of(q).Find(t.Context(), "", ids...) // Redis gets to know the script
	if err != nil {
		t.Fatal(err)
	}
	before := evals(t, c)
	found, err := browse.Of(q).Find(t.Context(), "", ids...)
	if err != nil || slices.ContainsFunc(found, func(l browse.Listed) bool { return l.State != browse.StateReady }) {
		t.Fatalf("got %v, want all ready", err)
	}
	if n := evals(t, c) - before; n != 4 {
		t.Errorf("got %d scripts for 1000 ids of 4 shards, want 4", n)
	}
}

// evals returns the number of scripts that Redis has run.
func evals(t *testing.T, c *Client) (n int) {
	t.Helper()
	text, err := c.DB().ForTests().Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		var calls int
		if name, rest, ok := strings.Cut(line, ":calls="); ok && strings.HasPrefix(name, "cmdstat_eval") {
			if _, err := fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &calls); err != nil {
				t.Fatal(err)
			}
			n += calls
		}
	}
	return n
}
