package protocol_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// Redis serves no other client during a script, not even for leases. So the work of a script is bounded,
// whatever the shard contains. These tests count the values and bytes that a script sends to Redis and gets
// from it, which are the same on every machine.

// counting is put before a script. It counts the arguments and results of its commands, and keeps the
// maximum of each script.
const counting = `
local values, bytes = 0, 0
local function see(v)
  if type(v) == 'table' then
    for i = 1, #v do see(v[i]) end
  else
    values, bytes = values + 1, bytes + (type(v) == 'string' and #v or 8)
  end
end
local function counted(...)
  local reply = redis.call(...)
  see({...})
  see(reply)
  redis.call('ZADD', 'work:values', 'GT', values, 'NAME')
  redis.call('ZADD', 'work:bytes', 'GT', bytes, 'NAME')
  return reply
end
`

// counted replaces a client's scripts by scripts that count.
func counted(c *Client) {
	for _, s := range c.DB().Scripts.All() {
		s.SetText(strings.ReplaceAll(counting, "NAME", s.Name) + strings.ReplaceAll(s.Text(), "redis.call(", "counted("))
	}
}

// Bounds of a script for 2,000 payloads or 1 MiB. It reads and writes each of them a few times.
const (
	mostValues = 40_000
	mostBytes  = 12 << 20
)

// costs returns the maxima of all scripts since the last call, and fails the test if a script exceeds the
// bound.
func (r *rig) costs() map[string][2]int {
	r.t.Helper()
	seen := map[string][2]int{}
	for i, key := range []string{"work:values", "work:bytes"} {
		for name, n := range r.scores(key) {
			w := seen[name]
			w[i] = n
			seen[name] = w
		}
		r.noErr(r.c.DB().ForTests().Del(r.ctx, key).Err())
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if w := seen[name]; w[0] > mostValues || w[1] > mostBytes {
			r.t.Errorf("%s: got %d values and %d bytes in one call, want at most %d and %d", name, w[0], w[1], mostValues, mostBytes)
		}
	}
	return seen
}

func (r *rig) scores(key string) map[string]int {
	r.t.Helper()
	list, err := r.c.DB().ForTests().ZRangeWithScores(r.ctx, key, 0, -1).Result()
	r.noErr(err)
	scores := map[string]int{}
	for _, z := range list {
		scores[z.Member.(string)] = int(z.Score)
	}
	return scores
}

// crowds pushes n payloads of a size to each of ids.
func (r *rig) crowds(n, size int, ids ...string) {
	r.crowdsOf(func(int) string { return "" }, n, size, ids...)
}

// callers is crowds with calls, each of a client of its own.
func (r *rig) callers(n, size int, ids ...string) {
	channel := r.c.DB().Keys.Replies(strings.Repeat("c", 100))
	r.crowdsOf(func(i int) string {
		return envelope.Address(fmt.Sprintf("%022d", i), time.Hour, fmt.Sprint(channel, i))
	}, n, size, ids...)
}

func (r *rig) crowdsOf(replyTo func(i int) string, n, size int, ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		jobs := make([]lowkiq.Push, n)
		for i := range jobs {
			data := fmt.Sprintf("%03d", i)
			jobs[i] = job(id, data+strings.Repeat("x", max(0, size-len(data))))
			jobs[i].ReplyTo = replyTo(i)
		}
		r.push(jobs...)
	}
}

// crowdTests: an id with as many payloads as a flight takes, and more, gets through every step. Each kind
// of Redis has limits of its own. The Lua of the embedded Redis has a small stack.
var crowdTests = []testCase{{"Crowd_GoesEverywhere", testCrowdEverywhere}}

func testCrowdEverywhere(t *testing.T, b *backend) {
	r := newRig(t, b)
	n, fills := 2200, map[string]func(n, size int, ids ...string){"payloads": r.crowds, "calls": r.callers}
	if b.mini { // it is slow, all the more under the race detector
		n = 1200
		delete(fills, "calls")
	}
	all := func(jobs []lowkiq.Job) (payloads int) {
		t.Helper()
		for _, j := range jobs {
			for _, p := range j.Payloads {
				eq(t, "payload in order", string(p.Data), fmt.Sprintf("%03d", payloads))
				payloads++
			}
		}
		return payloads
	}
	for name, fill := range fills {
		fill(n, 3, "a")
		popped := r.pop(1)
		if all(popped.Jobs) < 1000 {
			t.Fatalf("%s: got %d payloads in the first flight, want a large piece", name, len(popped.Jobs[0].Payloads))
		}
		r.nack(popped.Flight, "a", Retry, 0, 0)
		popped = r.pop(1)
		r.bury(popped.Flight, "a", Skip)
		if _, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "a"); err != nil {
			t.Fatal(err)
		}
		page, err := browse.Of(r.q).Page(r.ctx, browse.Query{State: browse.StateMorgue})
		r.noErr(err)
		eq(t, name+": payloads in the morgue", page.Jobs[0].Count, n)
		if _, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a"); err != nil {
			t.Fatal(err)
		}
		r.own(Seize)
		eq(t, name+": handled", all(r.drain()), n)
	}
}

func idsOf(name string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(name, i))
	}
	return ids
}

// TestScriptsAreBounded takes every step on shards that are as full as the default limits allow.
func TestScriptsAreBounded(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	for name, fill := range map[string]func(r *rig) []string{
		"crowds of small payloads": func(r *rig) []string {
			ids := idsOf("id", 3)
			r.crowds(4500, 3, ids...)
			return ids
		},
		"just below the spill": func(r *rig) []string {
			ids := idsOf("id", 150)
			r.crowds(32, 3, ids...)
			return ids
		},
		"crowds of calls": func(r *rig) []string {
			ids := idsOf("id", 2)
			r.callers(4500, 3, ids...)
			return ids
		},
		"calls below the spill": func(r *rig) []string {
			ids := idsOf("id", 150)
			r.callers(20, 3, ids...)
			return ids
		},
		"a call for each of many ids": func(r *rig) []string {
			ids := idsOf("id", 2500)
			r.callers(1, 3, ids...)
			return ids
		},
		"payloads of a megabyte": func(r *rig) []string {
			ids := idsOf("id", 6)
			r.crowds(1, 1<<20, ids...)
			return ids
		},
		"an id of 16 MiB": func(r *rig) []string {
			ids := idsOf("id", 1)
			r.crowds(16, 1<<20-10, ids...)
			return ids
		},
		"many single ones": func(r *rig) []string {
			ids := idsOf("id", 2500)
			for part := range slices.Chunk(ids, 1000) {
				jobs := make([]lowkiq.Push, len(part))
				for i := range jobs {
					jobs[i] = job(part[i], strings.Repeat("x", 1000))
				}
				r.push(jobs...)
			}
			return ids
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "crowds of small payloads" && name != "payloads of a megabyte" {
				tier.All(t)
			}
			r := newRig(t, b, func(cfg *Config) { cfg.Cluster = strings.ReplaceAll(name, " ", "-") })
			ids := fill(r)
			counted(r.c)
			everything(r, ids, strings.Repeat("e\n", 2000))
			fill(r)
			r.completeAll()
			seen := r.costs()
			t.Log(seen)
			if len(seen) < 10 {
				t.Errorf("got the work of %v, want that of all scripts of workers and people", slices.Sorted(maps.Keys(seen)))
			}
		})
	}
}

// searchAll searches for the most expensive text, and for text that all jobs have.
func (r *rig) searchAll() {
	r.t.Helper()
	r.c.DB().Slow = nil
	almost := strings.Repeat("x", browse.MaxSearch-1) + "-"
	for _, s := range []browse.Search{{Contains: almost, Tag: strings.Repeat("x", browse.MaxSearch), Error: ""}, {Contains: "0"}, {Error: "e"}} {
		for _, state := range []browse.State{"", browse.StateMorgue} {
			whole(r.t, r.q, browse.Query{State: state, Range: browse.Range{Limit: 1000}, Search: s})
		}
	}
}

// everything takes each step of workers and people at least once, on ids that are all ready.
func everything(r *rig, ids []string, message string) {
	r.t.Helper()
	pop := func() Popped {
		r.t.Helper()
		p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1000, Bytes: 1 << 20, MaxCrashes: 3})
		r.noErr(err)
		return p
	}
	nack := func(p Popped, kind NackKind) {
		r.t.Helper()
		var nacks []Nack
		for _, j := range p.Jobs {
			nacks = append(nacks, Nack{Flight: p.Flight, ID: j.ID, Kind: kind, Error: message})
		}
		n, err := r.claim.Nack(r.ctx, nacks...)
		r.noErr(err)
		eq(r.t, "nacked", n, len(nacks))
	}
	r.searchAll()
	nack(pop(), Retry)
	r.searchAll()
	nack(pop(), Return)
	for _, policy := range []Policy{Skip, Block, Bury} {
		p := pop()
		var burials []Burial
		for _, j := range p.Jobs {
			burials = append(burials, Burial{Flight: p.Flight, ID: j.ID, Policy: policy, Error: message})
		}
		_, err := r.claim.Bury(r.ctx, burials...)
		r.noErr(err)
	}
	for _, end := range []func(){
		func() { r.own(Seize) },
		func() { r.own(Self) },
		func() { _, err := r.claim.Release(r.ctx); r.noErr(err); r.own(Fresh) },
	} {
		for range 4 {
			pop()
		}
		end()
	}
	for i, do := range []func() (int, error){
		func() (int, error) { return browse.Of(r.q).Requeue(r.ctx, browse.StateBlocked, ids...) },
		func() (int, error) { return browse.Of(r.q).Bury(r.ctx, browse.Anywhere, ids...) },
		func() (int, error) { return browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, ids...) },
		func() (int, error) { return browse.Of(r.q).RunNow(r.ctx, ids...) },
		func() (int, error) { return browse.Of(r.q).BuryOldest(r.ctx, browse.Anywhere, ids...) },
		func() (int, error) { return browse.Of(r.q).Bury(r.ctx, browse.Anywhere, ids[:len(ids)/2]...) },
		func() (int, error) { return r.claim.TrimMorgue(r.ctx, max(1, len(ids)/8), 0) },
		func() (int, error) { return browse.Of(r.q).Delete(r.ctx, browse.StateMorgue, ids...) },
		func() (int, error) { return browse.Of(r.q).Delete(r.ctx, browse.Anywhere, ids...) },
	} {
		_, err := do()
		r.noErr(err)
		if i == 1 || i == 6 { // all are buried; some are, and others are not
			r.searchAll()
		}
	}
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	eq(r.t, "left", fmt.Sprint(stats.Jobs, stats.Morgue), fmt.Sprint(Counts{}, 0))
}

// complete acks popped jobs with results and states of these sizes, and asks for a reply meanwhile. The
// first jobs have twice the weight of a script. The others get short results.
func (r *rig) complete(p Popped, result, state int) {
	r.t.Helper()
	token := strings.Repeat("A", 22)
	if got, err := r.c.Reply(r.ctx, "q", p.Jobs[0].ID, token); got.State != lowkiq.ReplyPending && !errors.Is(err, lowkiq.ErrNoReply) {
		r.t.Errorf("a reply under a wrong token: got %+v, %v", got, err)
	}
	acks := Acks{Flight: p.Flight, Rest: true}
	const long = 2 * mostBytes / lowkiq.MaxResultBytes
	for i, j := range p.Jobs {
		if i == long {
			result, state = min(result, 100), min(state, 100)
		}
		acks.IDs = append(acks.IDs, j.ID)
		acks.Answers = append(acks.Answers, Answer{ID: j.ID, Callers: j.Callers, Bytes: bytesOfJob(j), Result: make([]byte, result), SetState: true, State: make([]byte, state), StateFor: time.Hour})
	}
	n, err := r.claim.Ack(r.ctx, acks)
	eq(r.t, "acked", fmt.Sprint(n, err), fmt.Sprint(len(p.Jobs), " <nil>"))
}

// completeAll handles all due jobs, with answers of all sizes.
func (r *rig) completeAll() {
	r.t.Helper()
	sizes := []int{100, lowkiq.MaxResultBytes, 0, 60, 2000}
	for i := 0; ; i++ {
		p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1000, Bytes: 1 << 20, States: true})
		r.noErr(err)
		if len(p.Jobs) == 0 {
			return
		}
		result := sizes[i%len(sizes)]
		r.complete(p, result, min(result, lowkiq.MaxStateBytes))
	}
}

func bytesOfJob(j lowkiq.Job) (n int) {
	for _, p := range j.Payloads {
		n += len(p.Data)
	}
	return n
}

// TestCompleteIsBounded acks several flights together, whose payloads many clients have called.
func TestCompleteIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	ids := idsOf("id", 4)
	r.callers(2000, 3, ids...)
	var acks []Acks
	for range ids {
		p := r.pop(1)
		job := p.Jobs[0]
		eq(t, "callers", job.Callers, 2000)
		acks = append(acks, Acks{Flight: p.Flight, Rest: true, IDs: []string{job.ID}, Answers: []Answer{
			{ID: job.ID, Callers: job.Callers, Result: make([]byte, lowkiq.MaxResultBytes), SetState: true, State: make([]byte, lowkiq.MaxStateBytes)},
		}})
	}
	counted(r.c)
	n, err := r.claim.Ack(r.ctx, acks...)
	eq(t, "acked", fmt.Sprint(n, err), "4 <nil>")
	t.Log(r.costs())
}

// TestBurialOfRepeatedCallsIsBounded buries calls that were repeated, beside their own burials.
func TestBurialOfRepeatedCallsIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	counted(r.c)
	for range 3 {
		r.callers(2000, 3, "a")
		n, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "a")
		eq(t, "killed", fmt.Sprint(n, err), "1 <nil>")
		r.callers(2000, 3, "a")
		_, flight := r.popOne("a")
		r.bury(flight, "a", Bury)
	}
	t.Log(r.costs())
}

// TestPushToAFlightIsBounded checks that a push of many payloads to an id in flight reads the record of the flight
// once, and not once per payload. The record may have a megabyte.
func TestPushToAFlightIsBounded(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	for form, more := range map[string]func(*lowkiq.Push){
		"plain": func(*lowkiq.Push) {}, "scored": score(1), "scheduled": func(p *lowkiq.Push) { p.PerformAt = time.Now().Add(time.Hour) },
	} {
		t.Run(form, func(t *testing.T) {
			r := newRig(t, b, func(cfg *Config) { cfg.Cluster = form })
			r.push(job("a", strings.Repeat("x", 1<<20)))
			_, flight := r.popOne("a")
			counted(r.c)
			jobs := make([]lowkiq.Push, 1000)
			for i := range jobs {
				jobs[i] = job("a", fmt.Sprint(i), more)
				if i%2 == 1 { // not one after the other
					jobs[i] = job(fmt.Sprint("b", i), "x", more)
				}
			}
			r.push(jobs...)
			r.costs()
			r.ack(flight, "a")
			eq(t, "jobs", len(r.find("a", map[bool]browse.State{true: browse.StateScheduled, false: browse.StateReady}[form == "scheduled"]).Payloads), 500)
		})
	}
}

// TestWorkIsCounted checks that the count itself detects too much work.
func TestWorkIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	counted(r.c)
	r.crowds(100, 3, "a")
	before := r.costs()["push"]
	r.pop(1)
	pop := r.costs()["pop"]
	if before[0] < 200 || pop[0] < 250 || pop[0] > 1500 || pop[1] < 300 {
		t.Errorf("got %d values for the push and %v for the pop of 100 payloads, want about as many as they move", before[0], pop)
	}
}

// TestLargeMorgue drains the morgue of an id, which has no limit. Payloads leave it in order, and a handler gets a
// piece of them.
func TestLargeMorgue(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const rounds, each = 4, 5000
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	counted(r.c)
	for k := range rounds {
		jobs := make([]lowkiq.Push, each)
		for i := range jobs {
			jobs[i] = job("a", fmt.Sprint(k*each+i), score(float64(k/2))) // half of them have equal scores
		}
		r.push(jobs...)
		n, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "a")
		r.noErr(err)
		eq(t, "killed", n, 1)
	}
	r.push(job("a", "last", score(1)))
	n, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a")
	r.noErr(err)
	eq(t, "requeued", n, 1)
	r.costs()
	next := 0
	for next < rounds*each {
		got, flight := r.popOne("a")
		if len(got.Payloads) > 2000 {
			t.Fatalf("got %d payloads at once, want at most 2,000", len(got.Payloads))
		}
		if next%3 == 0 && next > 0 { // fails once in a while, and nothing overtakes it
			r.nack(flight, "a", Retry, 0, 0)
			got, flight = r.popOne("a")
		}
		for _, p := range got.Payloads {
			if want := fmt.Sprint(next); string(p.Data) != want && string(p.Data) != "last" {
				t.Fatalf("got payload %s, want %s", p.Data, want)
			}
			next++
		}
		r.ack(flight, "a")
	}
	r.costs()
}

// TestPiecesKeepTheOrder checks that a failed piece comes back before the payloads that waited behind it and those that
// were pushed meanwhile.
func TestPiecesKeepTheOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	r.crowds(5000, 4, "a")
	first, flight := r.popOne("a")
	eq(t, "first piece", len(first.Payloads), 2000)
	eq(t, "the rest", r.find("a", browse.StateInFlight).Parked, 3000)
	r.push(job("a", "lowest", score(-1)))
	r.nack(flight, "a", Retry, 3, time.Hour)
	eq(t, "together again", len(r.find("a", browse.StateRetry).Payloads), 5001)
	_, err := browse.Of(r.q).RunNow(r.ctx, "a")
	r.noErr(err)
	again, flight := r.popOne("a")
	eq(t, "retry count", again.RetryCount, 3)
	eq(t, "first of the second piece", string(again.Payloads[0].Data), "lowest")
	eq(t, "then", dataOf(again.Payloads[1:4]), dataOf(first.Payloads[:3]))
	r.ack(flight, "a")
	rest, _ := r.popOne("a")
	eq(t, "retry count of the rest", rest.RetryCount, -1)
	eq(t, "the rest begins", string(rest.Payloads[0].Data), string(first.Payloads[1999].Data))
}

// TestAcksInAnyOrderAreBounded sends acks in any order and number. A script finds named ids by one walk through the
// flights, not by one walk for each id. Acks in the order of their flight are at its head, and need no search.
func TestAcksInAnyOrderAreBounded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := &backend{url: server.URL()}
	for name, c := range map[string]struct {
		order func(ids []string) []string
		calls int // most LPOS in all
		sends int // scripts
	}{
		"as popped":     {func(ids []string) []string { return ids }, 4000, 3},
		"last to first": {reversed, 400, 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, b, func(cfg *Config) { cfg.Cluster = strings.ReplaceAll(name, " ", "-") })
			flights := r.longFlights()
			if name == "last to first" {
				slices.Reverse(flights)
			}
			var acks []Acks
			for _, f := range flights {
				acks = append(acks, Acks{Flight: f.Flight, IDs: c.order(f.IDs)})
			}
			r.noErr(r.c.DB().ForTests().Do(r.ctx, "CONFIG", "RESETSTAT").Err())
			n, err := r.claim.Ack(r.ctx, acks...)
			r.noErr(err)
			eq(t, "acked", n, 4000)
			calls := r.calls()
			if calls["lpos"] > c.calls || calls["lrem"] > c.calls || calls["evalsha"]+calls["eval"] > c.sends+1 {
				t.Errorf("got %d LPOS, %d LREM and %d scripts, want at most %d of each and %d scripts", calls["lpos"], calls["lrem"], calls["evalsha"], c.calls, c.sends)
			}
			if name == "as popped" && calls["lset"]+calls["lrange"] > 0 {
				t.Errorf("got %d LSET and %d LRANGE for acks in order, want none", calls["lset"], calls["lrange"])
			}
			n, err = r.claim.Ack(r.ctx, acks...)
			r.noErr(err)
			eq(t, "acked again", n, 0)
			eq(t, "left in flight", r.c.DB().ForTests().LLen(r.ctx, r.s.Keys().Flight).Val(), 0)
			eq(t, "open flights", r.pop(1).Open, nil)
		})
	}
}

// TestAcksEndTheIDsTheyName acks half of each flight by name, from its end, together with a pop, twice, with
// ids of no flight among them. Exactly these jobs are done, and the others keep their order.
func TestAcksEndTheIDsTheyName(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	flights := r.longFlights()
	var acks []Acks
	left := ""
	for _, f := range flights {
		var ids []string
		for i, id := range f.IDs {
			if i%2 == 0 {
				ids = append(ids, id)
			} else {
				left += id + "\n"
			}
		}
		acks = append(acks, Acks{Flight: f.Flight, IDs: slices.Concat([]string{"nobody", flights[0].IDs[1]}[:1+min(1, int(f.Flight)-1)], reversed(ids), ids[:3])})
	}
	slices.Reverse(acks)
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1 << 20, Acks: acks})
	r.noErr(err)
	eq(t, "open flights", len(p.Open), len(flights))
	eq(t, "left in flight", strings.Join(r.c.DB().ForTests().LRange(r.ctx, r.s.Keys().Flight, 0, -1).Val(), "\n")+"\n", left)
	n, err := r.claim.Ack(r.ctx, append(acks, Acks{Flight: 1, Rest: true}, Acks{Flight: 2, Rest: true}, Acks{Flight: 3, Rest: true}, Acks{Flight: 4, Rest: true})...)
	r.noErr(err)
	eq(t, "acked with the rest", n, 2000)
}

// TestAckOfVeryMany acks tens of thousands of ids in one call, as an importer's worker may. They are more
// than one script takes.
func TestAckOfVeryMany(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	r.push(job("a", "1"), job("b", "1"), job("c", "1"))
	p := r.pop(2)
	many := append(idsOf("nobody", 20_000), "b", "a")
	n, err := r.claim.Ack(r.ctx, Acks{Flight: p.Flight, IDs: many})
	r.noErr(err)
	eq(t, "acked", n, 2)
	_, flight := r.popOne("c")
	p, err = r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, Acks: []Acks{{Flight: flight, IDs: append(idsOf("nobody", 20_000), "c")}}})
	r.noErr(err)
	eq(t, "open after acks that went with a pop", p.Open, nil)
	var rests []Acks
	for i := range int64(10_000) {
		rests = append(rests, Acks{Flight: 100 + i, Rest: true})
	}
	n, err = r.claim.Ack(r.ctx, rests...)
	r.noErr(err)
	eq(t, "acked of flights that never were", n, 0)
}

// longFlights puts 4,000 ids of 500 bytes in flight, 1,000 in each of four flights.
func (r *rig) longFlights() (flights []Acks) {
	r.t.Helper()
	var jobs []lowkiq.Push
	for i := range 4000 {
		jobs = append(jobs, job(strings.Repeat("i", 495)+fmt.Sprintf("%05d", i), "1"))
	}
	r.push(jobs...)
	for range 4 {
		p := r.pop(1000)
		f := Acks{Flight: p.Flight}
		for _, j := range p.Jobs {
			f.IDs = append(f.IDs, j.ID)
		}
		eq(r.t, "ids of a flight", len(f.IDs), 1000)
		flights = append(flights, f)
	}
	return flights
}

func reversed(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Reverse(ids)
	return ids
}

// calls counts the calls of each command, those of scripts included, since CONFIG RESETSTAT.
func (r *rig) calls() map[string]int {
	r.t.Helper()
	calls := map[string]int{}
	for line := range strings.Lines(r.c.DB().ForTests().Info(r.ctx, "commandstats").Val()) {
		name, rest, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if number, _, _ := strings.Cut(rest, ","); found {
			calls[name], _ = strconv.Atoi(number)
		}
	}
	return calls
}
