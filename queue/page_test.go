package queue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

var pageTests = []testCase{
	{"Pages", pages}, {"PagesRefuse", pagesRefuse}, {"PagesOfEachSize", pagesOfEachSize}, {"PagesWhileJobsMove", pagesWhileJobsMove},
	{"PageOfLargeJobs", pageOfLargeJobs}, {"PagesOfALongList", pagesOfALongList},
}

// whole reads all pages of a query and checks what each page promises.
func whole(t *testing.T, q *Queue, query Query) (jobs []Listed) {
	t.Helper()
	for range 10_000 {
		page, err := q.Page(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		limit := query.Limit
		if limit == 0 {
			limit = 100
		}
		if len(page.Jobs) > limit || page.Examined > MaxExamined+maxPage {
			t.Fatalf("%+v: got %d jobs, %d examined", query, len(page.Jobs), page.Examined)
		}
		jobs = append(jobs, page.Jobs...)
		if page.Next == "" {
			return jobs
		}
		query.Cursor = page.Next
	}
	t.Fatalf("%+v: got 10,000 pages, want an end", query)
	return nil
}

func pages(t *testing.T, b *backend) {
	q := everywhere(t, b)
	now := time.Now()
	all := "blocked:blocked f1:retry f2:retry f3:retry fly1:in_flight fly2:in_flight fly3:in_flight later:scheduled ready1:ready ready2:ready"
	for _, c := range []struct {
		name  string
		query Query
		want  string
	}{
		{"by id", Query{By: ByID}, all},
		{"by id, some", Query{By: ByID, Range: Range{MinID: "f2", MaxID: "fly1"}}, "f2:retry f3:retry fly1:in_flight"},
		{"by id, last", Query{By: ByID, Range: Range{MinID: "later", Reverse: true}}, "ready2:ready ready1:ready later:scheduled"},
		{"by id, times", Query{By: ByID, Range: Range{MinTime: now, MaxTime: now.Add(45 * time.Minute)}}, "later:scheduled"},
		{"by id, one state", Query{By: ByID, State: Retrying}, "f1:retry f2:retry f3:retry"},
		{"by id, ready", Query{By: ByID, State: Ready}, "ready1:ready ready2:ready"},
		{"by due time", Query{}, "ready1:ready ready2:ready later:scheduled f1:retry f3:retry f2:retry"},
		{"by due time, last", Query{Range: Range{Reverse: true}}, "f2:retry f3:retry f1:retry later:scheduled ready2:ready ready1:ready"},
		{"by due time, due", Query{Range: Range{MaxTime: now}}, "ready1:ready ready2:ready"},
		{"by due time, between", Query{Range: Range{MinTime: now, MaxTime: now.Add(45 * time.Minute)}}, "later:scheduled"},
		{"by due time, ids", Query{Range: Range{MinID: "f2", MaxID: "later"}}, "later:scheduled f3:retry f2:retry"},
		{"scheduled", Query{State: Scheduled}, "later:scheduled"},
		{"by retries", Query{By: ByRetries}, "f3:retry f2:retry f1:retry"},
		{"by retries, most", Query{By: ByRetries, Range: Range{Reverse: true}}, "f1:retry f2:retry f3:retry"},
		{"by retries, some", Query{By: ByRetries, Range: Range{MinRetry: 2, MaxRetry: 9}}, "f1:retry"},
		{"by due time, retries", Query{Range: Range{MinRetry: 1, MaxRetry: 2}}, "f3:retry f2:retry"},
		{"by kind", Query{State: Retrying, Kind: "boom"}, "f1:retry f3:retry f2:retry"},
		{"without an error", Query{Kind: NoKind}, "ready1:ready ready2:ready later:scheduled"},
		{"by another kind", Query{State: Retrying, Kind: "bang"}, ""},
		{"in flight", Query{State: InFlight}, "fly1:in_flight fly2:in_flight fly3:in_flight"},
		{"in flight, last", Query{State: InFlight, Range: Range{Reverse: true}}, "fly3:in_flight fly2:in_flight fly1:in_flight"},
		{"morgue, one", Query{State: Dead, Range: Range{MinID: "dead2"}}, "dead2:morgue"},
		{"morgue by id", Query{State: Dead, By: ByID, Range: Range{Reverse: true}}, "dead2:morgue dead1:morgue"},
		{"morgue, none", Query{State: Dead, Range: Range{MaxTime: now.Add(-time.Hour)}}, ""},
		{"blocked", Query{State: Waiting, By: ByTime}, "blocked:blocked"},
	} {
		for _, limit := range []int{1, 2, 1000} {
			c.query.Limit = limit
			eq(t, fmt.Sprint(c.name, " limit ", limit), brief(whole(t, q, c.query)), c.want)
		}
	}
	fly := whole(t, q, Query{State: InFlight})[0]
	eq(t, "fly1", fmt.Sprintln(fly.Flight > 0, fly.Parked, time.Since(fly.Since) < time.Hour, string(fly.Payloads[0].Data)), "true 2 true 1\n")
}

func pagesRefuse(t *testing.T, b *backend) {
	q := everywhere(t, b)
	page, err := q.Page(t.Context(), Query{Range: Range{Limit: 2}})
	if err != nil || page.Next == "" {
		t.Fatalf("got %+v, %v, want a page with a next one", page, err)
	}
	for name, query := range map[string]Query{
		"order":        {By: "score"},
		"state":        {State: "done"},
		"retries":      {By: ByRetries, State: Ready},
		"limit":        {Range: Range{Limit: 1001}},
		"less":         {Range: Range{Limit: -1}},
		"other order":  {By: ByID, Cursor: page.Next},
		"other state":  {State: Retrying, Cursor: page.Next},
		"other range":  {Range: Range{MinID: "a"}, Cursor: page.Next},
		"other end":    {Range: Range{Reverse: true}, Cursor: page.Next},
		"other kind":   {Kind: "boom", Cursor: page.Next},
		"no cursor":    {Cursor: "nonsense"},
		"empty object": {Cursor: "e30"},
		"bad shard":    {Cursor: cursor{Shape: Query{}.shape("page", q), Walk: &position{Line: map[int]recent{7: {}}}}.String()},
		"no shard":     {Cursor: cursor{Shape: Query{}.shape("page", q), Walk: &position{Group: -1}}.String()},
	} {
		if _, err := q.Page(t.Context(), query); !errors.Is(err, ErrQuery) {
			t.Errorf("%s: got %v, want ErrQuery", name, err)
		}
	}
	if _, err := q.Page(t.Context(), Query{Range: Range{Limit: 1}, Cursor: page.Next}); err != nil {
		t.Errorf("another limit: got %v, want a page", err)
	}
}

// crowd fills a queue of 5 shards with jobs in all places where jobs wait.
func crowd(t *testing.T, b *backend, n int) *Queue {
	t.Helper()
	q := newQueue(t, b.open(t), 5)
	push := func(jobs ...lowkiq.Push) {
		if _, err := q.Push(t.Context(), jobs...); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Now().Add(time.Hour)
	for i := range n {
		same := job(fmt.Sprintf("same%d", i), "1")
		same.PerformAt = at // many at one instant
		push(job(fmt.Sprintf("ready%d", i), "1"), same, job(fmt.Sprintf("later%d", i), "1", in(time.Duration(rand.IntN(90))*time.Minute+time.Hour/2)),
			job(fmt.Sprintf("dead%d", i), "1"))
		if _, err := q.Kill(t.Context(), Anywhere, fmt.Sprintf("dead%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// The pages of a list together are the list, whatever their size.
func pagesOfEachSize(t *testing.T, b *backend) {
	size, limits := 60, []int{1, 7, 60, 61}
	if b.mini { // it is slow under the race detector
		size, limits = 12, []int{5, 12}
	}
	q := crowd(t, b, size)
	for _, query := range []Query{{}, {State: Ready}, {State: Scheduled}, {State: Dead}, {By: ByID}, {State: Dead, By: ByID}, {State: Ready, By: ByID}} {
		for _, reverse := range []bool{false, true} {
			query.Reverse, query.Limit = reverse, 1000
			want := whole(t, q, query)
			if n := len(want); n%size != 0 || n == 0 {
				t.Errorf("%+v: got %d jobs, want a multiple of %d", query, n, size)
			}
			for _, limit := range limits {
				query.Limit = limit
				eq(t, fmt.Sprintf("%+v", query), brief(whole(t, q, query)), brief(want))
			}
		}
	}
}

// Whatever moves, what stays where it is comes once.
func pagesWhileJobsMove(t *testing.T, b *backend) {
	for _, query := range []Query{{}, {State: Ready}, {State: Scheduled}, {State: Dead}, {By: ByID}, {State: Scheduled, By: ByID}, {Range: Range{Reverse: true}}, {By: ByID, Range: Range{Reverse: true}}} {
		t.Run(fmt.Sprintf("%s by %s reverse %v", query.State, query.By, query.Reverse), func(t *testing.T) {
			size := 40
			if b.mini {
				size = 16
			}
			query.Limit = 10 // more than a move adds, or there would be no end
			q := crowd(t, b, size)
			m := &mover{t: t, q: q, moved: map[string]bool{}}
			at := whole(t, q, Query{State: query.State, By: query.By, Range: Range{Limit: 1000}})
			seen := map[string]int{}
			for {
				page, err := q.Page(t.Context(), query)
				if err != nil {
					t.Fatal(err)
				}
				for _, job := range page.Jobs {
					seen[job.ID]++
				}
				if page.Next == "" {
					break
				}
				query.Cursor = page.Next
				m.move()
			}
			for _, job := range at {
				if !m.moved[job.ID] && seen[job.ID] != 1 {
					t.Errorf("%s stayed and was shown %d times, want once", job.ID, seen[job.ID])
				}
			}
		})
	}
}

// mover lets jobs come and go.
type mover struct {
	t      *testing.T
	q      *Queue
	moved  map[string]bool
	n      int
	claims map[int]*Claim
}

func (m *mover) move() {
	m.t.Helper()
	ctx := m.t.Context()
	must := func(err error) {
		m.t.Helper()
		if err != nil {
			m.t.Fatal(err)
		}
	}
	id := func(prefix string) string {
		id := fmt.Sprint(prefix, rand.IntN(40))
		m.moved[id] = true
		return id
	}
	_, err := m.q.RunNow(ctx, id("same"), id("later"))
	must(err)
	_, err = m.q.Delete(ctx, Anywhere, id("same"), id("later"), id("ready"))
	must(err)
	_, err = m.q.DeleteDead(ctx, id("dead"))
	must(err)
	dead := id("dead")
	_, err = m.q.Requeue(ctx, dead)
	must(err)
	for range 5 {
		m.n++
		_, err = m.q.Push(ctx, job(fmt.Sprint("new", m.n), "1"), job(fmt.Sprint("newlater", m.n), "1", in(time.Hour)))
		must(err)
	}
	m.handle(rand.IntN(5), must)
}

// handle pops a few jobs of a shard, some of which come back.
func (m *mover) handle(shard int, must func(error)) {
	if m.claims == nil {
		m.claims = map[int]*Claim{}
	}
	ctx := m.t.Context()
	claim := m.claims[shard]
	if claim == nil {
		var err error
		claim, err = m.q.Shard(shard).Claim(ctx, "n/1", Fresh, Owner{})
		must(err)
		m.claims[shard] = claim
	}
	p, err := claim.Pop(ctx, PopRequest{IDs: 3, Bytes: 1 << 20})
	must(err)
	for i, popped := range p.Jobs {
		m.moved[popped.ID] = true
		switch i {
		case 0:
			_, err = claim.Ack(ctx, Acks{Flight: p.Flight, IDs: []string{popped.ID}})
			must(err)
			_, err = m.q.Push(ctx, job(popped.ID, "again"))
		case 1:
			_, err = claim.Nack(ctx, Nack{Flight: p.Flight, ID: popped.ID, Kind: Return})
		default:
			_, err = claim.Nack(ctx, Nack{Flight: p.Flight, ID: popped.ID, Kind: Retry, RetryCount: 0, Delay: time.Hour, Error: "boom"})
		}
		must(err)
	}
}

// Of what is large, a page shows the beginning.
func pageOfLargeJobs(t *testing.T, b *backend) {
	r := newRig(t, b)
	large := strings.Repeat("x", 1<<20)
	r.push(job("one", large), job("scored", large, score(1)), job("small", "s"))
	for i := range 100 {
		r.push(job("many", fmt.Sprintf("%04d%s", i, large[:100])))
	}
	r.push(job("few", large[:3000]), job("few", large[:2000]))
	for _, job := range whole(t, r.q, Query{By: ByID}) {
		shown := 0
		for _, p := range job.Payloads {
			shown += len(p.Data)
		}
		want := map[string]string{"one": "1 1048576 true 4096", "scored": "1 1048576 true 4096", "small": "1 1 false 1",
			"many": "100 10400 true 416", "few": "2 5000 true 4096"}[job.ID]
		eq(t, job.ID, fmt.Sprint(job.Count, job.Bytes, job.Cut, shown), want)
	}
}

// A list too long to be sorted comes in the order of storage, completely.
func pagesOfALongList(t *testing.T, b *backend) {
	if b.mini {
		t.Skip("the embedded Redis takes long for so many jobs")
	}
	const n = MaxExamined + 2000
	q := newQueue(t, b.open(t), 3)
	jobs := make([]lowkiq.Push, n)
	for i := range jobs {
		jobs[i] = job(fmt.Sprintf("id%06d", i), "1")
	}
	if _, err := q.Push(t.Context(), jobs...); err != nil {
		t.Fatal(err)
	}
	all := whole(t, q, Query{By: ByID, Range: Range{Limit: 1000}})
	ids := map[string]bool{}
	for _, job := range all {
		ids[job.ID] = true
	}
	eq(t, "jobs, ids", fmt.Sprint(len(all), len(ids)), fmt.Sprint(n, n))
	few := whole(t, q, Query{By: ByID, Range: Range{MinID: "id011340", MaxID: "id011349"}})
	slices.SortFunc(few, func(x, y Listed) int { return strings.Compare(x.ID, y.ID) })
	eq(t, "some", few[0].ID+" "+few[len(few)-1].ID, "id011340 id011349")
	page, err := q.Page(t.Context(), Query{By: ByID})
	if err != nil || page.Ordered || len(page.Jobs) != 100 {
		t.Errorf("got %d jobs, ordered %v, %v; want 100 in the order of storage", len(page.Jobs), page.Ordered, err)
	}
}
