package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"

	"github.com/lowkiq/lowkiq/internal/redistest"
)

var attemptTests = []testCase{
	{"Attempts_OfAnID", attemptsOfID},
	{"Attempts_Crashes", attemptsCrashes},
	{"Attempts_AreCut", attemptsCut},
	{"Attempts_OfAQueue", attemptsOfQueue},
	{"Attempts_OfHostileErrors", attemptsHostile},
}

func (r *rig) attempts(id string) []browse.Attempt {
	r.t.Helper()
	list, err := browse.Of(r.q).Attempts(r.ctx, id)
	r.no(err)
	return list
}

func (r *rig) fail(id string, retry int, text string) {
	r.t.Helper()
	_, flight := r.popOne(id)
	_, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: id, Kind: Retry, RetryCount: retry, Error: text})
	r.no(err)
}

func attemptsOfID(t *testing.T, b *backend) {
	r := newRig(t, b)
	id := "a b\n\x00'\"\xff" // any bytes
	r.push(job(id, "1"))
	r.fail(id, 0, "boom\nwith its stack")
	r.fail(id, 1, "")
	r.fail(id, 2, strings.Repeat("ü", 150))
	_, flight := r.popOne(id)
	r.nack(flight, id, Postpone, 0, 0) // no attempt was spent
	_, flight = r.popOne(id)
	r.nack(flight, id, Return, 0, 0)
	_, flight = r.popOne(id)
	r.bury(flight, id, Bury)
	r.push(job("other", "1"))
	_, flight = r.popOne("other")
	r.bury(flight, "other", Block)
	r.nack0(flight, "other") // too late: it is in no flight
	list := r.attempts(id)
	want := fmt.Sprintf(`%[1]s exhausted 25 "exhausted"; %[1]s failed 2 %[2]q; %[1]s failed 1 ""; %[1]s failed 0 "boom"`, id, strings.Repeat("ü", 100))
	eq(t, "attempts", sketch(list), want)
	for _, a := range list {
		near(t, "time", a.At, 0)
		eq(t, "instance", a.Instance, r.claim.Instance)
	}
	eq(t, "the other's", sketch(r.attempts("other")), `other exhausted 25 "exhausted"`)
	eq(t, "nobody's", sketch(r.attempts("nobody")), "")
}

// nack0 nacks what is not in its flight.
func (r *rig) nack0(flight int64, id string) {
	r.t.Helper()
	n, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: id, Kind: Retry})
	r.no(err)
	eq(r.t, "nacked", n, 0)
}

// Only the seizure that counts a crash notes one.
func attemptsCrashes(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"))
	r.pop(2)
	r.own(Seize)
	eq(t, "two in flight", sketch(r.attempts("a")), "")
	r.popOne("a")
	dead := r.claim.Instance
	r.own(Seize)
	list := r.attempts("a")
	eq(t, "alone", sketch(list), `a crashed -1 "its worker died while it ran alone"`)
	eq(t, "whose", list[0].Instance, dead)
	eq(t, "b", sketch(r.attempts("b")), "")
}

// A shard keeps the last 64, also when more of them come at once.
func attemptsCut(t *testing.T, b *backend) {
	r := newRig(t, b)
	for round := range 2 {
		for i := range 100 {
			r.push(job(fmt.Sprint("id", i), "1"))
		}
		p := r.pop(100)
		var burials []Burial
		for _, j := range p.Jobs {
			burials = append(burials, Burial{Flight: p.Flight, ID: j.ID, Policy: Bury, RetryCount: round})
		}
		_, err := r.claim.Bury(r.ctx, burials...)
		r.no(err)
	}
	list, err := browse.Of(r.q).RecentAttempts(r.ctx, 1000)
	r.no(err)
	eq(t, "kept", len(list), 64)
	eq(t, "newest", sketch(list[:1]), `id99 exhausted 1 ""`)
	eq(t, "oldest", sketch(list[63:]), `id36 exhausted 1 ""`)
}

func attemptsOfQueue(t *testing.T, b *backend) {
	c := b.open(t)
	q := newQueue(t, c, 250)
	for i := range 12 {
		id := fmt.Sprint("id", i)
		s := q.Of(id)
		r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: s}
		r.own(Fresh)
		r.push(job(id, "1"))
		r.fail(id, 0, "boom")
	}
	list, err := browse.Of(q).RecentAttempts(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	eq(t, "limit", len(list), 10)
	eq(t, "newest", list[0].ID, "id11")
	eq(t, "its shard", list[0].Shard, q.Of("id11").Index)
	for i := range list[1:] {
		if list[i].At.Before(list[i+1].At) {
			t.Errorf("got %s after %s, want the newest first", list[i+1].At, list[i].At)
		}
	}
}

// A drain of successes sends nothing for the list of attempts.
func TestSuccessNotesNoAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	stats := func() string {
		t.Helper()
		text, err := r.c.DB().ForTests().Info(r.ctx, "commandstats").Result()
		r.no(err)
		return text
	}
	for i := range 100 {
		r.push(job(fmt.Sprint("id", i), "1"))
	}
	eq(t, "drained", len(r.drain()), 100)
	if text := stats(); strings.Contains(text, "cmdstat_lpush") || strings.Contains(text, "cmdstat_ltrim") {
		t.Errorf("after successes: got\n%s\nwant neither LPUSH nor LTRIM", text)
	}
	r.push(job("a", "1"))
	r.fail("a", 0, "boom")
	if text := stats(); !strings.Contains(text, "cmdstat_lpush") {
		t.Errorf("after a failure: got\n%s\nwant LPUSH", text)
	}
}

// What a handler writes into its errors costs Redis nothing, in particular no search that tries
// again at each blank: that took minutes, and again at each retry.
func attemptsHostile(t *testing.T, b *backend) {
	r := newRig(t, b)
	const trace = "Traceback (most recent call last)"
	lines := map[string]string{ // text to the line that is kept
		trace + strings.Repeat(" ", 3900) + "\nlast":     "last",
		trace + "\n" + strings.Repeat("x", 4000):         strings.Repeat("x", 200),
		trace + strings.Repeat(" \n", 1900) + "\nE: x\n": "E: x",
		strings.Repeat(" ", 4000):                        "",
		trace + strings.Repeat("\n", 4000):               trace,
	}
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	for text, line := range lines {
		for policy, id := range map[Policy]string{"": "a", Block: "b"} {
			r.push(job(id, "1"))
			_, flight := r.popOne(id)
			var err error
			if policy == "" {
				_, err = r.claim.Nack(ctx, Nack{Flight: flight, ID: id, Kind: Retry, Error: text})
			} else {
				_, err = r.claim.Bury(ctx, Burial{Flight: flight, ID: id, Policy: policy, Error: text})
			}
			r.no(err)
			eq(t, fmt.Sprintf("line of %.40q", text), r.attempts(id)[0].Error, line)
			_, err = browse.Of(r.q).Delete(r.ctx, browse.Anywhere, id)
			r.no(err)
		}
	}
}
