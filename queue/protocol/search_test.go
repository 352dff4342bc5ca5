package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

var searchTests = []testCase{
	{"Search", testSearch}, {"SearchOfCrowds", testSearchOfCrowds}, {"SearchRefuses", testSearchRefuses}, {"SearchInPieces", testSearchInPieces},
	{"SearchWhileJobsMove", testSearchWhileJobsMove}, {"Tags", testTags},
}

// tagged gives a push headers.
func tagged(tags string) func(*lowkiq.Push) {
	return func(p *lowkiq.Push) { p.Header = map[string]string{"tag": tags, "tenant": "needle"} }
}

// found searches page after page, and returns the ids in order, each once.
func found(t *testing.T, q *Queue, query browse.Query) string {
	t.Helper()
	ids := map[string]bool{}
	for _, job := range whole(t, q, query) {
		ids[job.ID] = true
	}
	var all []string
	for id := range ids {
		all = append(all, id)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// testSearch checks that a search finds the right jobs wherever they wait, and no others that look like them.
func testSearch(t *testing.T, b *backend) {
	q := everywhere(t, b)
	if _, err := q.Push(t.Context(), job("order-needle", "1"), job("plain", `{"n":"needle"}`), job("scored", "a needle", score(3)), job("hidden", "1", tagged("vip, late")),
		job("both", "needle", tagged("late")), job("two", "needle"), job("two", "2", tagged("vip")), job("off", "needle", in(time.Hour)), job("1 1", "x"),
		job("fly2", "a needle, pushed meanwhile")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		query browse.Query
		want  string
	}{
		{"in id and payload", browse.Query{Search: browse.Search{Contains: "needle"}}, "both fly2 off order-needle plain scored two"},
		{"as it is stored", browse.Query{Search: browse.Search{Contains: `"n":"nee`}}, "plain"},
		{"no number of the record", browse.Query{Search: browse.Search{Contains: "1 1"}}, "1 1"},
		{"in flight", browse.Query{State: browse.StateInFlight, Search: browse.Search{Contains: "1"}}, "fly1 fly2 fly3"},
		{"tag", browse.Query{Search: browse.Search{Tag: "vip"}}, "hidden two"},
		{"part of a tag", browse.Query{Search: browse.Search{Tag: "vi"}}, ""},
		{"tag and text of one payload", browse.Query{Search: browse.Search{Tag: "late", Contains: "needle"}}, "both"},
		{"tag and text of two payloads", browse.Query{Search: browse.Search{Tag: "vip", Contains: "needle"}}, ""},
		{"tag and id", browse.Query{Search: browse.Search{Tag: "vip", Contains: "hid"}}, "hidden"},
		{"error", browse.Query{Search: browse.Search{Error: "oo"}}, "f1 f2 f3"},
		{"error of one state", browse.Query{State: browse.StateBlocked, Search: browse.Search{Error: "exhausted"}}, "blocked"},
		{"error and text", browse.Query{Search: browse.Search{Error: "boom", Contains: "f2"}}, "f2"},
		{"no error", browse.Query{Search: browse.Search{Error: "needle"}}, ""},
		{"in a list", browse.Query{State: browse.StateScheduled, Search: browse.Search{Contains: "needle"}}, "off"},
		{"in a list by id", browse.Query{State: browse.StateReady, By: browse.ByID, Search: browse.Search{Contains: "needle"}}, "both order-needle plain scored two"},
		{"by due time", browse.Query{By: browse.ByDue, Range: browse.Range{Reverse: true}, Search: browse.Search{Error: "boom"}}, "f1 f2 f3"},
		{"by retries", browse.Query{By: browse.ByRetries, Search: browse.Search{Error: "boom"}}, "f1 f2 f3"},
		{"some ids", browse.Query{Range: browse.Range{MinID: "p", MaxID: "s"}, Search: browse.Search{Contains: "needle"}}, "plain"},
		{"morgue", browse.Query{State: browse.StateMorgue, Search: browse.Search{Contains: "dead", Error: "exhausted"}}, "dead1 dead2"},
		{"nothing", browse.Query{Search: browse.Search{Contains: "nowhere"}}, ""},
	} {
		for _, limit := range []int{1, 2, 1000} {
			c.query.Limit = limit
			eq(t, fmt.Sprint(c.name, " limit ", limit), found(t, q, c.query), c.want)
		}
	}
	jobs, looked, through := 0, 0, 0.0
	for query := (browse.Query{Search: browse.Search{Contains: "needle"}}); ; { // a page has a second, however slow Redis is
		page, err := browse.Of(q).Page(t.Context(), query)
		if err != nil || page.Ordered {
			t.Fatalf("ordered %v, %v; want a page in no order", page.Ordered, err)
		}
		jobs, looked, through = jobs+len(page.Jobs), looked+page.Examined, page.Through
		if query.Cursor = page.Next; page.Next == "" {
			break
		}
	}
	if jobs != 7 || looked < 18 || through != 1 {
		t.Errorf("got %d jobs, %d looked at, %v through; want 7 jobs of all", jobs, looked, through)
	}
}

// testSearchOfCrowds checks that a search covers all payloads of crowded ids, also those that a flight did not take.
func testSearchOfCrowds(t *testing.T, b *backend) {
	n := 5000
	if b.mini {
		n = 300
	}
	r := newRig(t, b)
	r.crowds(n, 200, "flies", "waits", "dead")
	last := score(1e12)
	r.push(job("waits", "needle", last, tagged("vip")), job("flies", "needle", last, tagged("vip")), job("dead", "needle", last, tagged("vip")))
	_, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "dead")
	r.noErr(err)
	_, err = r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1 << 20})
	r.noErr(err)
	r.push(job("late", strings.Repeat("x", 1<<19)+"needle"), job("flies", "seen", tagged("new")))
	for _, c := range []struct {
		query browse.Query
		want  string
	}{
		{browse.Query{Search: browse.Search{Contains: "needle"}}, "flies late waits"},
		{browse.Query{Search: browse.Search{Tag: "vip"}}, "flies waits"},
		{browse.Query{Search: browse.Search{Tag: "new", Contains: "see"}}, "flies"},
		{browse.Query{Search: browse.Search{Tag: "vip", Contains: "000"}}, ""},
		{browse.Query{State: browse.StateInFlight, Search: browse.Search{Contains: "needle"}}, "flies"},
		{browse.Query{State: browse.StateMorgue, Search: browse.Search{Contains: "needle"}}, "dead"},
	} {
		eq(t, fmt.Sprintf("%+v", c.query.Search), found(t, r.q, c.query), c.want)
	}
}

func testSearchRefuses(t *testing.T, b *backend) {
	q := everywhere(t, b)
	page, err := browse.Of(q).Page(t.Context(), browse.Query{Search: browse.Search{Contains: "1"}, Range: browse.Range{Limit: 1}})
	if err != nil || page.Next == "" {
		t.Fatalf("got %+v, %v, want a page with a next one", page, err)
	}
	looking := func(looks ...map[string]any) string {
		return forge(t, page.Next, func(place map[string]any) { place["w"] = map[string]any{"k": looks} })
	}
	for name, query := range map[string]browse.Query{
		"long text":    {Search: browse.Search{Contains: strings.Repeat("x", browse.MaxSearch+1)}},
		"long error":   {Search: browse.Search{Error: strings.Repeat("x", browse.MaxSearch+1)}},
		"two tags":     {Search: browse.Search{Tag: "a,b"}},
		"white space":  {Search: browse.Search{Tag: " a"}},
		"other text":   {Search: browse.Search{Contains: "2"}, Cursor: page.Next},
		"other place":  {Search: browse.Search{Tag: "1"}, Cursor: page.Next},
		"no search":    {By: browse.ByID, Cursor: page.Next},
		"a short key":  {Search: browse.Search{Contains: "1"}, Cursor: looking(map[string]any{"i": "YQ==", "k": "YQ=="})},
		"a bad key":    {Search: browse.Search{Contains: "1"}, Cursor: looking(map[string]any{"i": "YQ==", "k": "/////////////////////////w=="})},
		"an empty id":  {Search: browse.Search{Contains: "1"}, Cursor: looking(map[string]any{"i": ""})},
		"a bad cursor": {Search: browse.Search{Contains: "1"}, Cursor: forge(t, page.Next, func(place map[string]any) { place["w"] = map[string]any{"h": "x"} })},
	} {
		if _, err := browse.Of(q).Page(t.Context(), query); !errors.Is(err, browse.ErrQuery) {
			t.Errorf("%s: got %v, want ErrQuery", name, err)
		}
	}
	if _, err := browse.Of(q).Bulk(t.Context(), browse.Delete, browse.Query{State: browse.StateRetry, Search: browse.Search{Error: "boom"}}); !errors.Is(err, browse.ErrQuery) {
		t.Errorf("bulk: got %v, want ErrQuery", err)
	}
}

// TestSearchOfACodec checks that a search in the payloads of a queue with a codec is refused, instead of finding
// nothing. They are not readable in Redis.
func TestSearchOfACodec(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	c := b.open(t)
	if err := c.SetRules("q", PushRules{Codec: upper("mirror")}); err != nil {
		t.Fatal(err)
	}
	q := newQueue(t, c, 2)
	if _, err := q.Push(t.Context(), job("a", "needle", tagged("vip"))); err != nil {
		t.Fatal(err)
	}
	_, err := browse.Of(q).Page(t.Context(), browse.Query{Search: browse.Search{Contains: "needle"}})
	if !errors.Is(err, browse.ErrQuery) || !strings.Contains(err.Error(), `codec "mirror"`) {
		t.Errorf("got %v, want ErrQuery with the codec's name", err)
	}
	eq(t, "tag", found(t, q, browse.Query{Search: browse.Search{Tag: "vip"}}), "a")
}

// testSearchInPieces checks that the pages of a search together find all jobs. A script and a page have room for a part
// of them.
func testSearchInPieces(t *testing.T, b *backend) {
	n, large := 3000, 40
	if b.mini {
		n, large = 400, 5
	}
	q := newQueue(t, b.open(t), 3)
	var jobs []lowkiq.Push
	for i := range n {
		text := "hay"
		if i%3 == 0 {
			text = "needle"
		}
		jobs = append(jobs, job(fmt.Sprint("id", i), text))
	}
	for i := range large { // some have more than a script looks through
		jobs = append(jobs, job(fmt.Sprint("large", i), strings.Repeat("x", 60_000)+"needle"), job(fmt.Sprint("large", i), strings.Repeat("y", 60_000)+"needle"))
	}
	if _, err := q.Push(t.Context(), jobs...); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{7, 100, 1000} {
		query := browse.Query{Range: browse.Range{Limit: limit}, Search: browse.Search{Contains: "needle"}}
		seen, looked, through := map[string]int{}, 0, 0.0
		for {
			page, err := browse.Of(q).Page(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			if len(page.Jobs) > limit || page.Through < through {
				t.Fatalf("got %d jobs, through %v after %v", len(page.Jobs), page.Through, through)
			}
			for _, job := range page.Jobs {
				seen[job.ID]++
			}
			looked, through = looked+page.Examined, page.Through
			if query.Cursor = page.Next; page.Next == "" {
				break
			}
			if len(page.Next) > 20_000 {
				t.Fatalf("got a cursor of %d bytes", len(page.Next))
			}
		}
		if want := (n+2)/3 + large; len(seen) != want || looked < n+large || through != 1 {
			t.Errorf("limit %d: got %d jobs, %d looked at, through %v, want %d, %d, all", limit, len(seen), looked, through, want, n+large)
		}
	}
}

// testTags checks that tags count jobs and payloads, also of crowds, and no text that only looks like a tag.
func testTags(t *testing.T, b *backend) {
	n := 2000
	if b.mini {
		n = 200
	}
	r := newRig(t, b)
	var jobs []lowkiq.Push
	for i := range n {
		jobs = append(jobs, job("crowd", strings.Repeat("x", 1000)+fmt.Sprint(i), tagged("vip, bulk ,vip")), job(fmt.Sprint("one", i), `{"tag":"payload"}`, in(time.Hour)))
	}
	jobs = append(jobs, job("a", "1", tagged("vip")), job("a", "2", tagged(`"vip","tag":"x`)), job("b", "1", tagged(",")), job("dead", "1", tagged("old")),
		job("flies", "1", tagged("now"), score(0)), job("c", "1", func(p *lowkiq.Push) { p.Header = map[string]string{"mytag": "no", "note": `"tag":"no"`} }))
	r.push(jobs...)
	_, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "dead")
	r.noErr(err)
	var count func(in browse.State) (string, int)
	count = func(in browse.State) (string, int) {
		sums, looked := map[string][2]int{}, 0
		for cursor := ""; ; {
			began := time.Now()
			page, err := browse.Of(r.q).Tags(r.ctx, in, cursor)
			r.noErr(err)
			if page.Next != "" && time.Since(began) > 5*time.Second { // the machine stood still: the page may end within the crowd
				return count(in)
			}
			for _, c := range page.Counts {
				sums[c.Tag] = [2]int{sums[c.Tag][0] + c.Jobs, sums[c.Tag][1] + c.Payloads}
			}
			looked += page.Examined
			if cursor = page.Next; cursor == "" {
				eq(t, "through", page.Through, 1)
				return fmt.Sprint(sums), looked
			}
		}
	}
	got, looked := count("")
	eq(t, "tags", got, fmt.Sprintf(`map["tag":"x:[1 1] "vip":[1 1] bulk:[1 %d] now:[1 1] vip:[2 %d]]`, n, n+1))
	eq(t, "looked at", looked, n+5)
	got, _ = count(browse.StateMorgue)
	eq(t, "buried tags", got, "map[old:[1 1]]")
	for _, in := range []browse.State{browse.StateRetry, "done"} {
		if _, err := browse.Of(r.q).Tags(r.ctx, in, ""); !errors.Is(err, browse.ErrQuery) {
			t.Errorf("state %q: got %v, want ErrQuery", in, err)
		}
	}
}

// testSearchWhileJobsMove checks that a search finds all jobs that stay, while the queue changes in every way. A job
// stays if it waits or is in flight during the whole search, even if it moves between the two all the time.
func testSearchWhileJobsMove(t *testing.T, b *backend) {
	n, rounds := 2000, 3
	if b.mini {
		n, rounds = 150, 1
	}
	c := b.open(t, func(cfg *Config) { cfg.PoolSize = 40 })
	q := newQueue(t, c, 2)
	push := func(jobs ...lowkiq.Push) {
		if _, err := q.Push(context.WithoutCancel(t.Context()), jobs...); err != nil {
			t.Error(err)
		}
	}
	stay := map[string]bool{}
	var jobs []lowkiq.Push
	for i := range n {
		jobs = append(jobs, job(fmt.Sprint("hay", i), "x", in(time.Hour)))
	}
	for i := range 40 { // ids that go from hand to hand, and never end
		id := fmt.Sprint("keep", i)
		stay[id] = true
		jobs = append(jobs, job(id, "needle", tagged("vip")))
	}
	for i := range 4 {
		id := fmt.Sprint("crowd", i)
		stay[id] = true
		for k := range 100 {
			jobs = append(jobs, job(id, fmt.Sprint(k), in(time.Hour)))
		}
		jobs = append(jobs, job(id, "needle", tagged("vip"), score(1e12)))
	}
	push(jobs...)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() { restlessOwner(ctx, t, q.Shard(i)) })
	}
	all.Go(func() {
		for k := 0; ctx.Err() == nil; k++ {
			few := []lowkiq.Push{job(fmt.Sprint("gone", k), "x"), job(fmt.Sprint("gone", k/2), "needle"), job(fmt.Sprint("keep", rand.N(40)), fmt.Sprint(k%50))}
			if k%10 == 0 {
				few = append(few, job(fmt.Sprint("later", k), "x", in(time.Hour)))
			}
			push(few...)
			id := fmt.Sprint("gone", rand.N(k+1))
			browse.Of(q).Bury(context.WithoutCancel(ctx), browse.Anywhere, id)              //nolint:errcheck // the search is what is tested
			browse.Of(q).Requeue(context.WithoutCancel(ctx), browse.StateMorgue, id)        //nolint:errcheck // the search is what is tested
			browse.Of(q).RunNow(context.WithoutCancel(ctx), fmt.Sprint("keep", rand.N(40))) //nolint:errcheck // the search is what is tested
		}
	})
	for round := range rounds {
		for _, s := range []browse.Search{{Contains: "needle"}, {Tag: "vip"}} {
			seen := map[string]bool{}
			for _, id := range strings.Fields(found(t, q, browse.Query{Range: browse.Range{Limit: 5 + rand.N(100)}, Search: s})) {
				seen[id] = true
			}
			for id := range stay {
				if !seen[id] {
					t.Errorf("round %d, %+v: %s stayed and was not found", round, s, id)
				}
			}
			if s.Tag != "" && len(seen) > len(stay) {
				t.Errorf("got %d ids, want the %d that have the tag", len(seen), len(stay))
			}
		}
	}
	stop()
	all.Wait()
}

// restlessOwner pops, fails, returns and acks, except jobs that must stay. Now and then it loses the shard
// to a seizure.
func restlessOwner(ctx context.Context, t *testing.T, s *Shard) {
	io := context.WithoutCancel(ctx) // calls end by themselves
	cause := Fresh
	for n := 1; ctx.Err() == nil; n++ {
		seen, err := s.Owner(io)
		if err != nil {
			t.Error(err)
			return
		}
		claim, err := s.Claim(io, fmt.Sprintf("restless%d/%d", s.Index, n), cause, seen)
		if err != nil {
			t.Error(err)
			return
		}
		cause = Seize
		for range rand.N(30) {
			p, err := claim.Pop(io, PopRequest{IDs: 1 + rand.N(20), Bytes: 1 << 20, MaxCrashes: 1 << 20})
			if err != nil {
				t.Error(err)
				return
			}
			for _, j := range p.Jobs {
				switch kind := []NackKind{Return, Retry, Postpone}[rand.N(3)]; {
				case strings.HasPrefix(j.ID, "keep"):
					if rand.N(4) > 0 { // else it stays in flight until the shard is seized
						_, err = claim.Nack(io, Nack{Flight: p.Flight, ID: j.ID, Kind: kind, Delay: time.Duration(rand.N(20)) * time.Millisecond, Error: "boom"})
					}
				default:
					_, err = claim.Ack(io, Acks{Flight: p.Flight, IDs: []string{j.ID}})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}
	}
}
