package protocol_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"

	"pgregory.net/rapid"
)

// placeTests are about the very job at which a page or a step of a bulk action ended.
var placeTests = []testCase{
	{"PagesWhosePlaceMoves", testPagesWhosePlaceMoves}, {"BulkWhosePlaceComesAgain", testBulkWhosePlaceComesAgain},
	{"BulkReachesAllLists", testBulkReachesAllLists}, {"BulkReachesAllGroups", testBulkReachesAllGroups},
	{"PlaceBeforeReady", testPlaceBeforeReady}, {"PlaceOfAnyList", testPlaceOfAnyList},
	{"BulkAmongSuspects", testBulkAmongSuspects}, {"PlaceAmongEqualScores", testPlaceAmongEqualScores},
	{"PlaceAmongDamage", testPlaceAmongDamage},
}

// lineOf pushes jobs that are due, in this order.
func lineOf(t *testing.T, q *Queue, name string, n int) {
	t.Helper()
	for i := range n {
		if _, err := q.Push(t.Context(), job(fmt.Sprintf("%s%02d", name, i), "1")); err != nil {
			t.Fatal(err)
		}
	}
}

// testPagesWhosePlaceMoves checks that jobs that stay in the line are on the pages once, whatever happens to the last
// job of a page.
func testPagesWhosePlaceMoves(t *testing.T, b *backend) {
	push := func(q *Queue, id string, options ...func(*lowkiq.Push)) error {
		_, err := q.Push(t.Context(), job(id, "2", options...))
		return err
	}
	for name, change := range map[string]func(q *Queue, claim *Claim, id string) error{
		"deleted": func(q *Queue, _ *Claim, id string) error {
			return second(browse.Of(q).Delete(t.Context(), browse.Anywhere, id))
		},
		"back from death": func(q *Queue, _ *Claim, id string) error {
			return second(browse.Of(q).Requeue(t.Context(), browse.StateMorgue, id))
		},
		"deleted, pushed again": func(q *Queue, _ *Claim, id string) error {
			if _, err := browse.Of(q).Delete(t.Context(), browse.Anywhere, id); err != nil {
				return err
			}
			return push(q, id)
		},
		"deleted, pushed for later": func(q *Queue, _ *Claim, id string) error {
			if _, err := browse.Of(q).Delete(t.Context(), browse.Anywhere, id); err != nil {
				return err
			}
			return push(q, id, in(time.Hour))
		},
	} {
		for _, reverse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s reverse %t", name, reverse), func(t *testing.T) {
				r := newRig(t, b)
				lineOf(t, r.q, "id", 20)
				if _, err := browse.Of(r.q).Bury(t.Context(), browse.Anywhere, "id09", "id10"); err != nil {
					t.Fatal(err)
				}
				for _, id := range []string{"id09", "id10"} { // they wait, and are in the morgue
					r.noErr(push(r.q, id))
				}
				query := browse.Query{State: browse.StateReady, Range: browse.Range{Limit: 10, Reverse: reverse}}
				first, err := browse.Of(r.q).Page(t.Context(), query)
				r.noErr(err)
				last := first.Jobs[len(first.Jobs)-1].ID
				r.noErr(change(r.q, r.claim, last))
				query.Cursor = first.Next
				seen := map[string]int{}
				for _, job := range append(first.Jobs, whole(t, r.q, query)...) {
					seen[job.ID]++
				}
				for i := range 20 {
					if id := fmt.Sprintf("id%02d", i); seen[id] != 1 && id != last {
						t.Errorf("%s: got it %d times, want once; the first page ended at %s", id, seen[id], last)
					}
				}
			})
		}
	}
}

// testPlaceBeforeReady deletes urgent ids and suspects where a page or a step ended. They go first and have left an
// entry in ready. The ids before that entry are still listed, and no id is repeated.
func testPlaceBeforeReady(t *testing.T, b *backend) {
	const all = "id00 id01 id02 id03 id04 id05 id06 new"
	for name, prepare := range map[string]func(r *rig){
		"urgent": func(*rig) {},
		"suspects": func(r *rig) {
			r.pop(3)
			r.own(Seize)
		},
		"both": func(r *rig) {
			r.pop(1)
			r.own(Seize)
		},
	} {
		line := func(t *testing.T) *rig {
			r := newRig(t, b)
			lineOf(t, r.q, "id", 7)
			r.push(job("id06", "2", urgent), job("id03", "2", urgent), job("new", "1", urgent))
			prepare(r)
			return r
		}
		remove := func(r *rig, id string) { r.noErr(second(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, id))) }
		for _, reverse := range []bool{false, true} {
			for which, change := range map[string]func(r *rig, n int, id string){
				"all": func(r *rig, _ int, id string) { remove(r, id) },
				"every second": func(r *rig, n int, id string) {
					if n%2 == 0 {
						remove(r, id)
					}
				},
				"pushed again": func(r *rig, _ int, id string) {
					remove(r, id)
					r.push(job(id, "3", in(time.Hour)))
				},
			} {
				t.Run(fmt.Sprintf("%s, reverse %t, %s", name, reverse, which), func(t *testing.T) {
					r := line(t)
					query := browse.Query{State: browse.StateReady, Range: browse.Range{Limit: 1, Reverse: reverse}}
					var ids []string
					for n := 0; n == 0 || query.Cursor != "" && n < 30; n++ {
						page, err := browse.Of(r.q).Page(r.ctx, query)
						r.noErr(err)
						for _, one := range page.Jobs {
							ids = append(ids, one.ID)
							change(r, n, one.ID)
						}
						query.Cursor = page.Next
					}
					slices.Sort(ids)
					eq(t, "listed", strings.Join(ids, " "), all)
				})
			}
		}
		for _, limit := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s, bulk of %d", name, limit), func(t *testing.T) {
				r := line(t)
				sum, _ := allSteps(t, r.q, browse.Delete, browse.Query{State: browse.StateReady, Range: browse.Range{Limit: limit, MinID: "id01"}})
				eq(t, "deleted", sum.Changed, 7)
				eq(t, "left", brief(whole(t, r.q, browse.Query{State: browse.StateReady})), "id00:ready")
			})
		}
	}
}

// testPlaceOfAnyList checks that an id that nobody touches is on the pages once, whatever happens to two other
// ids between two pages.
func testPlaceOfAnyList(t *testing.T, b *backend) {
	client := b.open(t)
	rapid.Check(t, func(rt *rapid.T) {
		var ids []string
		for i := range 12 {
			ids = append(ids, fmt.Sprintf("id%02d", i))
		}
		r := rigOn(t, Rename(rt, client, b.name()))
		r.own(Fresh)
		touched, there := map[string]bool{}, ""
		drawOne := rapid.SampledFrom(ids)
		change := func() {
			id := drawOne.Draw(rt, "id")
			switch rapid.SampledFrom([]string{"delete", "push", "urgent", "later", "pop", "crash"}).Draw(rt, "change") {
			case "delete":
				r.noErr(second(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, id)))
				touched[id] = true
			case "push":
				r.push(job(id, "2"))
				touched[id] = touched[id] || !strings.Contains(there, id)
			case "urgent":
				r.push(job(id, "3", urgent))
				touched[id] = true
			case "later":
				r.noErr(second(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, id)))
				r.push(job(id, "4", in(time.Hour)))
				touched[id] = true
			case "pop":
				p := r.pop(1)
				for _, one := range p.Jobs {
					touched[one.ID] = true
					r.ack(p.Flight, one.ID)
				}
			case "crash":
				for _, one := range r.pop(1).Jobs {
					touched[one.ID] = true
				}
				r.own(Seize)
			}
		}
		lineOf(t, r.q, "id", len(ids))
		for range rapid.IntRange(0, 6).Draw(rt, "changes before") {
			change()
		}
		there = brief(whole(t, r.q, browse.Query{State: browse.StateReady}))
		clear(touched)
		query := browse.Query{State: browse.StateReady, Range: browse.Range{Limit: rapid.IntRange(1, 4).Draw(rt, "limit"), Reverse: rapid.Bool().Draw(rt, "reverse")}}
		seen := map[string]int{}
		for n := 0; n == 0 || query.Cursor != ""; n++ {
			if n == 100 {
				rt.Fatal("got 100 pages, want an end")
			}
			page, err := browse.Of(r.q).Page(r.ctx, query)
			r.noErr(err)
			for _, one := range page.Jobs {
				seen[one.ID]++
			}
			query.Cursor = page.Next
			for range rapid.IntRange(0, 2).Draw(rt, "changes") {
				change()
			}
		}
		for _, id := range ids {
			if want := strings.Count(there, id+":ready"); !touched[id] && seen[id] != want {
				rt.Fatalf("%s: got it %d times, want %d", id, seen[id], want)
			}
		}
	})
}

// testBulkAmongSuspects deletes suspects behind others that stay. No job is skipped, within a step or between two.
func testBulkAmongSuspects(t *testing.T, b *backend) {
	for _, limit := range []int{1, 2, 3, 100} {
		for _, most := range []string{"s03", "z99"} {
			t.Run(fmt.Sprintf("%d up to %s", limit, most), func(t *testing.T) {
				r := newRig(t, b)
				lineOf(t, r.q, "s", 30)
				r.pop(30)
				r.own(Seize)
				lineOf(t, r.q, "z", 3)
				query := browse.Query{State: browse.StateReady, Range: browse.Range{Limit: limit, MinID: "s02", MaxID: most}}
				sum, _ := allSteps(t, r.q, browse.Delete, query)
				eq(t, "deleted", sum.Changed, map[string]int{"s03": 2, "z99": 31}[most])
				eq(t, "left", len(whole(t, r.q, browse.Query{State: browse.StateReady})), 33-sum.Changed)
				dry, _ := allSteps(t, r.q, browse.Delete, browse.Query{State: browse.StateReady, DryRun: true, Range: browse.Range{Limit: limit}})
				eq(t, "counted", dry.Changed, 33-sum.Changed)
			})
		}
	}
}

// testPlaceAmongDamage kills jobs behind a suspect whose record cannot be read, and lists jobs behind entries without a
// record. No sound job is skipped or repeated.
func testPlaceAmongDamage(t *testing.T, b *backend) {
	broken := func() (*rig, redisdb.Client) {
		c := b.open(t)
		q := newQueue(t, c, 1)
		r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: q.Shard(0)} // its state is broken: no check at the end
		r.own(Fresh)
		return r, c.DB().ForTests()
	}
	for _, limit := range []int{1, 3, 100} {
		r, raw := broken()
		lineOf(t, r.q, "s", 6)
		r.pop(6)
		r.own(Seize)
		lineOf(t, r.q, "z", 6)
		r.noErr(raw.HSet(r.ctx, r.s.Keys().Jobs, "s00", "damaged").Err())
		sum, _ := allSteps(t, r.q, browse.Kill, browse.Query{State: browse.StateReady, Range: browse.Range{Limit: limit}})
		eq(t, fmt.Sprintf("limit %d: killed", limit), sum.Changed, 11)
	}
	for _, reverse := range []bool{false, true} {
		r, raw := broken()
		lineOf(t, r.q, "z", 50)
		for at := 0; at < 50; at += 5 { // a read of 28 entries ends with three of them
			r.noErr(raw.HDel(r.ctx, r.s.Keys().Jobs, fmt.Sprintf("z%02d", at), fmt.Sprintf("z%02d", at+1), fmt.Sprintf("z%02d", at+2)).Err())
		}
		listed := whole(t, r.q, browse.Query{State: browse.StateReady, Range: browse.Range{Limit: 14, Reverse: reverse}})
		eq(t, fmt.Sprintf("reverse %t: listed", reverse), len(listed), 20)
	}
}

// testPlaceAmongEqualScores lists and deletes urgent ids of the same score. No id is skipped or repeated.
func testPlaceAmongEqualScores(t *testing.T, b *backend) {
	r := newRig(t, b)
	var ids []string
	for i := range 10 {
		ids = append(ids, fmt.Sprint("a", i))
		r.push(job(ids[i], "1", in(time.Hour), urgent))
	}
	r.noErr(second(browse.Of(r.q).RunNow(r.ctx, ids...)))
	r.push(job("p0", "1"), job("p1", "1"))
	for _, reverse := range []bool{false, true} {
		query := browse.Query{State: browse.StateReady, Range: browse.Range{Limit: 1, Reverse: reverse}}
		seen := map[string]int{}
		for n := 0; n == 0 || query.Cursor != "" && n < 30; n++ {
			page, err := browse.Of(r.q).Page(r.ctx, query)
			r.noErr(err)
			for _, one := range page.Jobs {
				seen[one.ID]++
				if one.ID == "a4" { // its place is gone
					r.push(job("a4", "2"))
					r.noErr(second(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "a4")))
				}
			}
			query.Cursor = page.Next
		}
		for id, n := range seen {
			eq(t, id, n, 1)
		}
		eq(t, "ids", len(seen), map[bool]int{false: 12, true: 11}[reverse])
	}
	sum, _ := allSteps(t, r.q, browse.Delete, browse.Query{State: browse.StateReady, Range: browse.Range{Limit: 1, MinID: "a5"}})
	eq(t, "deleted", sum.Changed, 7)
}

func second[V any](_ V, err error) error { return err }

// testBulkWhosePlaceComesAgain checks that a job that comes again where a step ended does not take the place of jobs
// behind it.
func testBulkWhosePlaceComesAgain(t *testing.T, b *backend) {
	r := newRig(t, b)
	lineOf(t, r.q, "id", 20)
	query := browse.Query{State: browse.StateReady, Range: browse.Range{Limit: 10}}
	step, err := browse.Of(r.q).Bulk(r.ctx, browse.Delete, query)
	r.noErr(err)
	r.push(job("id09", "again"))
	query.Cursor = step.Next
	sum, _ := allSteps(t, r.q, browse.Delete, query)
	eq(t, "deleted after that", sum.Changed, 10)
	eq(t, "left", brief(whole(t, r.q, browse.Query{State: browse.StateReady})), "id09:ready")
}

// testBulkReachesAllLists checks that jobs that join the line do not take the place of jobs in other lists.
func testBulkReachesAllLists(t *testing.T, b *backend) {
	r := newRig(t, b)
	lineOf(t, r.q, "old", 10)
	for i := range 10 {
		r.push(job(fmt.Sprint("later", i), "1", in(time.Hour)))
	}
	query := browse.Query{Range: browse.Range{Limit: 5}}
	step, err := browse.Of(r.q).Bulk(r.ctx, browse.Kill, query)
	r.noErr(err)
	lineOf(t, r.q, "young", 15)
	query.Cursor = step.Next
	sum, _ := allSteps(t, r.q, browse.Kill, query)
	eq(t, "killed after that", sum.Changed, 15)
	eq(t, "scheduled", len(whole(t, r.q, browse.Query{State: browse.StateScheduled})), 0)
	eq(t, "ready", len(whole(t, r.q, browse.Query{State: browse.StateReady})), 15)
}

// testBulkReachesAllGroups is the same for a queue with more shards than a step walks through together.
func testBulkReachesAllGroups(t *testing.T, b *backend) {
	q := newQueue(t, b.open(t), 2*64+1)
	fill := func(name string) {
		for i := range q.Shards {
			lineOf(t, q, fmt.Sprint(name, i, "/"), 2)
		}
	}
	fill("old")
	query := browse.Query{State: browse.StateReady, Range: browse.Range{Limit: 100}}
	step, err := browse.Of(q).Bulk(t.Context(), browse.Kill, query)
	if err != nil {
		t.Fatal(err)
	}
	fill("young")
	fill("younger")
	query.Cursor = step.Next
	sum, _ := allSteps(t, q, browse.Kill, query)
	eq(t, "killed", step.Changed+sum.Changed, 2*q.Shards)
	for _, job := range whole(t, q, browse.Query{State: browse.StateReady, Range: browse.Range{Limit: 1000}}) {
		if job.ID[0] == 'o' {
			t.Errorf("%s: got left alone, want killed", job.ID)
		}
	}
}
