package protocol_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
)

var pageTests = []testCase{
	{"Pages", testPages}, {"PagesRefuse", testPagesRefuse}, {"PagesOfEachSize", testPagesOfEachSize}, {"PagesWhileJobsMove", testPagesWhileJobsMove},
	{"PageOfLargeJobs", testPageOfLargeJobs}, {"PagesOfALongList", testPagesOfALongList},
}

// whole reads all pages of a query and checks the promises of each page.
func whole(t *testing.T, q *Queue, query browse.Query) (jobs []browse.Listed) {
	t.Helper()
	for range 10_000 {
		page, err := browse.Of(q).Page(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		limit := query.Limit
		if limit == 0 {
			limit = 100
		}
		if len(page.Jobs) > limit || page.Examined > browse.MaxExamined+1000 {
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

func testPages(t *testing.T, b *backend) {
	q := everywhere(t, b)
	now := time.Now()
	all := "blocked:blocked f1:retry f2:retry f3:retry fly1:in_flight fly2:in_flight fly3:in_flight later:scheduled ready1:ready ready2:ready"
	for _, c := range []struct {
		name  string
		query browse.Query
		want  string
	}{
		{"by id", browse.Query{By: browse.ByID}, all},
		{"by id, some", browse.Query{By: browse.ByID, Range: browse.Range{MinID: "f2", MaxID: "fly1"}}, "f2:retry f3:retry fly1:in_flight"},
		{"by id, last", browse.Query{By: browse.ByID, Range: browse.Range{MinID: "later", Reverse: true}}, "ready2:ready ready1:ready later:scheduled"},
		{"by id, times", browse.Query{By: browse.ByID, Range: browse.Range{MinTime: now, MaxTime: now.Add(45 * time.Minute)}}, "later:scheduled"},
		{"by id, one state", browse.Query{By: browse.ByID, State: browse.StateRetry}, "f1:retry f2:retry f3:retry"},
		{"by id, ready", browse.Query{By: browse.ByID, State: browse.StateReady}, "ready1:ready ready2:ready"},
		{"by due time", browse.Query{}, "ready1:ready ready2:ready later:scheduled f1:retry f3:retry f2:retry"},
		{"by due time, last", browse.Query{Range: browse.Range{Reverse: true}}, "f2:retry f3:retry f1:retry later:scheduled ready2:ready ready1:ready"},
		{"by due time, due", browse.Query{Range: browse.Range{MaxTime: now}}, "ready1:ready ready2:ready"},
		{"by due time, between", browse.Query{Range: browse.Range{MinTime: now, MaxTime: now.Add(45 * time.Minute)}}, "later:scheduled"},
		{"by due time, ids", browse.Query{Range: browse.Range{MinID: "f2", MaxID: "later"}}, "later:scheduled f3:retry f2:retry"},
		{"scheduled", browse.Query{State: browse.StateScheduled}, "later:scheduled"},
		{"by retries", browse.Query{By: browse.ByRetries}, "f3:retry f2:retry f1:retry"},
		{"by retries, most", browse.Query{By: browse.ByRetries, Range: browse.Range{Reverse: true}}, "f1:retry f2:retry f3:retry"},
		{"by retries, some", browse.Query{By: browse.ByRetries, Range: browse.Range{MinRetry: 2, MaxRetry: 9}}, "f1:retry"},
		{"by due time, retries", browse.Query{Range: browse.Range{MinRetry: 1, MaxRetry: 2}}, "f3:retry f2:retry"},
		{"by kind", browse.Query{State: browse.StateRetry, Kind: "boom"}, "f1:retry f3:retry f2:retry"},
		{"without an error", browse.Query{Kind: browse.NoKind}, "ready1:ready ready2:ready later:scheduled"},
		{"by another kind", browse.Query{State: browse.StateRetry, Kind: "bang"}, ""},
		{"in flight", browse.Query{State: browse.StateInFlight}, "fly1:in_flight fly2:in_flight fly3:in_flight"},
		{"in flight, last", browse.Query{State: browse.StateInFlight, Range: browse.Range{Reverse: true}}, "fly3:in_flight fly2:in_flight fly1:in_flight"},
		{"morgue, one", browse.Query{State: browse.StateMorgue, Range: browse.Range{MinID: "dead2"}}, "dead2:morgue"},
		{"morgue by id", browse.Query{State: browse.StateMorgue, By: browse.ByID, Range: browse.Range{Reverse: true}}, "dead2:morgue dead1:morgue"},
		{"morgue, none", browse.Query{State: browse.StateMorgue, Range: browse.Range{MaxTime: now.Add(-time.Hour)}}, ""},
		{"blocked", browse.Query{State: browse.StateBlocked, By: browse.ByTime}, "blocked:blocked"},
	} {
		for _, limit := range []int{1, 2, 1000} {
			c.query.Limit = limit
			eq(t, fmt.Sprint(c.name, " limit ", limit), brief(whole(t, q, c.query)), c.want)
		}
	}
	fly := whole(t, q, browse.Query{State: browse.StateInFlight})[0]
	eq(t, "fly1", fmt.Sprintln(fly.Flight > 0, fly.Parked, time.Since(fly.Since) < time.Hour, string(fly.Payloads[0].Data)), "true 2 true 1\n")
}

func testPagesRefuse(t *testing.T, b *backend) {
	q := everywhere(t, b)
	page, err := browse.Of(q).Page(t.Context(), browse.Query{Range: browse.Range{Limit: 2}})
	if err != nil || page.Next == "" {
		t.Fatalf("got %+v, %v, want a page with a next one", page, err)
	}
	for name, query := range map[string]browse.Query{
		"order":        {By: "score"},
		"state":        {State: "done"},
		"retries":      {By: browse.ByRetries, State: browse.StateReady},
		"limit":        {Range: browse.Range{Limit: 1001}},
		"less":         {Range: browse.Range{Limit: -1}},
		"other order":  {By: browse.ByID, Cursor: page.Next},
		"other state":  {State: browse.StateRetry, Cursor: page.Next},
		"other range":  {Range: browse.Range{MinID: "a"}, Cursor: page.Next},
		"other end":    {Range: browse.Range{Reverse: true}, Cursor: page.Next},
		"other kind":   {Kind: "boom", Cursor: page.Next},
		"no cursor":    {Cursor: "nonsense"},
		"empty object": {Cursor: "e30"},
		"bad shard":    {Cursor: forge(t, page.Next, func(place map[string]any) { place["w"] = map[string]any{"l": map[string]any{"7": []any{}}} })},
		"no shard":     {Cursor: forge(t, page.Next, func(place map[string]any) { place["w"] = map[string]any{"g": -1} })},
	} {
		if _, err := browse.Of(q).Page(t.Context(), query); !errors.Is(err, browse.ErrQuery) {
			t.Errorf("%s: got %v, want ErrQuery", name, err)
		}
	}
	if _, err := browse.Of(q).Page(t.Context(), browse.Query{Range: browse.Range{Limit: 1}, Cursor: page.Next}); err != nil {
		t.Errorf("another limit: got %v, want a page", err)
	}
}

// forge changes a cursor, which a client must not do.
func forge(t *testing.T, cursor string, change func(place map[string]any)) string {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		t.Fatal(err)
	}
	var place map[string]any
	if err := json.Unmarshal(text, &place); err != nil {
		t.Fatal(err)
	}
	change(place)
	text, err = json.Marshal(place)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// crowd fills a queue of 5 shards with jobs in all states in which jobs wait.
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
		if _, err := browse.Of(q).Bury(t.Context(), browse.Anywhere, fmt.Sprintf("dead%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// testPagesOfEachSize checks that the pages of a list together are the list, whatever their size.
func testPagesOfEachSize(t *testing.T, b *backend) {
	size, limits := 60, []int{1, 7, 60, 61}
	if b.mini { // it is slow under the race detector
		size, limits = 12, []int{5, 12}
	}
	q := crowd(t, b, size)
	for _, query := range []browse.Query{{}, {State: browse.StateReady}, {State: browse.StateScheduled}, {State: browse.StateMorgue}, {By: browse.ByID}, {State: browse.StateMorgue, By: browse.ByID}, {State: browse.StateReady, By: browse.ByID}} {
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

// testPagesWhileJobsMove checks that a job that stays where it is comes once, whichever others move.
func testPagesWhileJobsMove(t *testing.T, b *backend) {
	for _, query := range []browse.Query{{}, {State: browse.StateReady}, {State: browse.StateScheduled}, {State: browse.StateMorgue}, {By: browse.ByID}, {State: browse.StateScheduled, By: browse.ByID}, {Range: browse.Range{Reverse: true}}, {By: browse.ByID, Range: browse.Range{Reverse: true}}} {
		t.Run(fmt.Sprintf("%s by %s reverse %v", query.State, query.By, query.Reverse), func(t *testing.T) {
			size := 40
			if b.mini {
				size = 16
			}
			query.Limit = 10 // more than a move adds, or there would be no end
			q := crowd(t, b, size)
			m := &mover{t: t, q: q, moved: map[string]bool{}}
			at := whole(t, q, browse.Query{State: query.State, By: query.By, Range: browse.Range{Limit: 1000}})
			seen := map[string]int{}
			for {
				page, err := browse.Of(q).Page(t.Context(), query)
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
	_, err := browse.Of(m.q).RunNow(ctx, id("same"), id("later"))
	must(err)
	_, err = browse.Of(m.q).Delete(ctx, browse.Anywhere, id("same"), id("later"), id("ready"))
	must(err)
	_, err = browse.Of(m.q).Delete(ctx, browse.StateMorgue, id("dead"))
	must(err)
	dead := id("dead")
	_, err = browse.Of(m.q).Requeue(ctx, browse.StateMorgue, dead)
	must(err)
	for range 5 {
		m.n++
		_, err = m.q.Push(ctx, job(fmt.Sprint("new", m.n), "1"), job(fmt.Sprint("newlater", m.n), "1", in(time.Hour)))
		must(err)
	}
	m.handle(rand.IntN(5), must)
}

// handle pops a few jobs of a shard and puts some of them back.
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

// testPageOfLargeJobs checks that a page shows the beginning of large payloads.
func testPageOfLargeJobs(t *testing.T, b *backend) {
	r := newRig(t, b)
	large := strings.Repeat("x", 1<<20)
	r.push(job("one", large), job("scored", large, score(1)), job("small", "s"))
	for i := range 100 {
		r.push(job("many", fmt.Sprintf("%04d%s", i, large[:100])))
	}
	r.push(job("few", large[:3000]), job("few", large[:2000]))
	for _, job := range whole(t, r.q, browse.Query{By: browse.ByID}) {
		shown := 0
		for _, p := range job.Payloads {
			shown += len(p.Data)
		}
		want := map[string]string{"one": "1 1048576 true 4096", "scored": "1 1048576 true 4096", "small": "1 1 false 1",
			"many": "100 10400 true 416", "few": "2 5000 true 4096"}[job.ID]
		eq(t, job.ID, fmt.Sprint(job.Count, job.Bytes, job.Cut, shown), want)
	}
}

// testPagesOfALongList checks that a list too long to be sorted comes in the order of storage, completely.
func testPagesOfALongList(t *testing.T, b *backend) {
	if b.mini {
		t.Skip("the embedded Redis takes long for so many jobs")
	}
	const n = browse.MaxExamined + 2000
	q := newQueue(t, b.open(t), 3)
	jobs := make([]lowkiq.Push, n)
	for i := range jobs {
		jobs[i] = job(fmt.Sprintf("id%06d", i), "1")
	}
	if _, err := q.Push(t.Context(), jobs...); err != nil {
		t.Fatal(err)
	}
	all := whole(t, q, browse.Query{By: browse.ByID, Range: browse.Range{Limit: 1000}})
	ids := map[string]bool{}
	for _, job := range all {
		ids[job.ID] = true
	}
	eq(t, "jobs, ids", fmt.Sprint(len(all), len(ids)), fmt.Sprint(n, n))
	few := whole(t, q, browse.Query{By: browse.ByID, Range: browse.Range{MinID: "id011340", MaxID: "id011349"}})
	slices.SortFunc(few, func(x, y browse.Listed) int { return strings.Compare(x.ID, y.ID) })
	eq(t, "some", few[0].ID+" "+few[len(few)-1].ID, "id011340 id011349")
	page, err := browse.Of(q).Page(t.Context(), browse.Query{By: browse.ByID})
	if err != nil || page.Ordered || len(page.Jobs) != 100 {
		t.Errorf("got %d jobs, ordered %v, %v; want 100 in the order of storage", len(page.Jobs), page.Ordered, err)
	}
}
