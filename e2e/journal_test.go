//go:build linux

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestJournalAgrees kills nodes of a cluster, and kills Redis and starts it again with its file. Meanwhile handlers
// count payloads in the states of their ids, and answer with the count. A part of their calls fails. Each payload is
// handled and counts once, and its caller learns its count, sometimes later by a token. The journal has one line for
// each accepted run, in the order of the runs. LOWKIQ_KILLS says how many nodes are killed.
func TestJournalAgrees(t *testing.T) {
	t.Parallel()
	kills := fromEnv(t, "LOWKIQ_KILLS", tier.Of(0, 6, 20), strconv.Atoi)
	random := randomly(t)
	r := newRig(t, 4, redistest.Durable...)
	f := &fleet{rig: r, nodes: map[string]*process{}, settings: settings{
		TTL: 2 * ttl, MaxCrashes: 1000, Handler: "count", Journal: true, Work: 25 * time.Millisecond, Bind: "127.0.0.1:0", HTTP: "127.0.0.1:0"}}
	f.http = &http.Client{Timeout: patience / 2, Transport: &http.Transport{DisableKeepAlives: true}}
	nodes := names(3)
	f.upAll(nodes...)
	c := &callers{r: r, enough: make(chan struct{})}
	for i := range 8 {
		one := &caller{callers: c, id: "id" + strconv.Itoa(i), dice: rand.New(rand.NewPCG(random.Uint64(), 0))}
		c.all = append(c.all, one)
		c.group.Go(one.run)
	}
	c.goOn("at first")
	killed, restarts := 0, 0
	crash := func(names ...string) {
		killed += len(names)
		f.crash(names...)
	}
	for killed < kills {
		<-time.After(upTo(random, 150*time.Millisecond)) // the random instant
		if killed/10 >= restarts {
			for _, name := range nodes {
				f.lease(name) // it has begun: that it cannot do without Redis
			}
			restarts++
			r.redis.Kill()
			r.redis.Restart()
			c.goOn("after Redis was killed")
			<-time.After(upTo(random, 150*time.Millisecond))
		}
		random.Shuffle(len(nodes), func(i, k int) { nodes[i], nodes[k] = nodes[k], nodes[i] })
		die := nodes[:min(1+random.IntN(len(nodes)), kills-killed)]
		crash(die...)
		f.upAll(die...)
		c.goOn(fmt.Sprint("after ", die, " were killed"))
	}
	// The random instants may have cut off no run. All nodes are killed as one begins, until one is cut off.
	count := func(word string) int { return bytes.Count(append([]byte("\n"), r.read()...), []byte("\n"+word+" ")) }
	for cut, tries := 0, 1; cut <= 0; tries++ {
		if tries == 20 {
			t.Fatal("no run was cut off when all nodes were killed")
		}
		began := count("start")
		r.await("a run begins", patience, func() bool { return count("start") > began })
		crash(nodes...)
		cut = count("start") - count("end") - count("fail")
		f.upAll(nodes...)
		c.goOn("after all were killed")
	}
	close(c.enough)
	c.group.Wait()
	r.drained()
	c.askAll()
	for _, name := range f.list() {
		f.lease(name) // from then on it knows what SIGTERM means
		f.leave(name)
	}
	f.sound()
	v := r.verdict(judge.Config{ShardConcurrency: 1, MaxDuplicates: -1})
	if v.Deaths != killed || v.Interrupted == 0 || c.late.Load() == 0 {
		t.Errorf("got %d deaths that cut off %d runs, and %d replies by token, want %d and some: the test would show little", v.Deaths, v.Interrupted, c.late.Load(), killed)
	}
	lines := r.lines()
	found := map[journal.Verdict]int{}
	for _, one := range c.all {
		for _, fault := range disagree(lines[one.id], one.counts) {
			t.Errorf("%s: %s", one.id, fault)
		}
		for _, line := range lines[one.id] {
			found[line.Verdict]++
		}
	}
	t.Logf("%d payloads of calls, %d answered by token; lines of runs: %v; Redis was killed %d times", len(r.pushed), c.late.Load(), found, restarts)
}

// callers are those of a test.
type callers struct {
	r        *rig
	all      []*caller
	group    sync.WaitGroup
	enough   chan struct{} // closed when no more calls are wanted
	answered atomic.Int64  // payloads
	late     atomic.Int64  // of these: by a token
}

// goOn waits until calls are answered, those before it left out.
func (c *callers) goOn(when string) {
	c.r.t.Helper()
	want, began := c.answered.Load()+int64(len(c.all)), time.Now()
	defer func() {
		c.r.t.Logf("%6s until calls were answered %s", time.Since(began).Round(time.Millisecond), when)
	}()
	c.r.await("calls are answered "+when, patience, func() bool { return c.r.t.Failed() || c.answered.Load() >= want })
}

// caller calls for one id.
type caller struct {
	*callers
	id     string
	dice   *rand.Rand
	sent   int      // payloads
	counts []int    // of payloads, as answered
	open   []called // the calls without an end
}

// called is a call whose reply is to be asked for.
type called struct {
	token string
	maybe bool // it is unknown whether its payload was stored
}

func (c *caller) run() {
	for {
		select {
		case <-c.enough:
			return
		case <-c.r.t.Context().Done(): // the test has failed
			return
		default:
		}
		if !c.call() {
			<-time.After(5 * time.Millisecond) // Redis is away
		}
		if len(c.open) > 0 && !c.open[0].maybe {
			c.ask()
		}
	}
}

// call pushes one to three payloads, and waits for their ends, or not for long. It says whether Redis took them.
func (c *caller) call() (taken bool) {
	jobs := make([]lowkiq.Push, 1+c.dice.IntN(3))
	for i := range jobs {
		c.sent++
		jobs[i] = lowkiq.Push{ID: c.id, Payload: fmt.Appendf(nil, "%d of %s", c.sent, c.id), Score: new(float64(c.sent))}
	}
	wait := patience
	if c.dice.IntN(3) == 0 {
		wait = time.Millisecond + upTo(c.dice, 5*time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(c.r.t.Context(), wait)
	defer cancel()
	at := judge.Now()
	all, err := c.r.client.Calls(ctx, queueName, time.Hour, jobs...)
	if err != nil { // nothing was sent
		return false
	}
	taken = true
	c.r.mu.Lock()
	for i := range all {
		p := judge.PushedOf(queueName, jobs[i], at)
		p.Optional = all[i].Reply.State == ""
		c.r.pushed = append(c.r.pushed, p)
	}
	c.r.mu.Unlock()
	for _, one := range all {
		switch one.Reply.State {
		case "":
			taken = false
			c.open = append(c.open, called{one.Reply.Token, true})
		case lowkiq.ReplyPending:
			if one.Err != nil {
				c.r.t.Errorf("call for %s: %v", c.id, one.Err)
			}
			c.open = append(c.open, called{one.Reply.Token, false})
		default:
			c.end(one.Reply)
		}
	}
	return taken
}

// ask asks for the reply to the oldest call without an end.
func (c *caller) ask() {
	first := c.open[0]
	reply, err := c.r.client.Reply(c.r.t.Context(), queueName, c.id, first.token)
	switch {
	case first.maybe && errors.Is(err, lowkiq.ErrNoReply): // it was not stored
		c.open = c.open[1:]
	case err != nil && (protocol.Transient(err) || c.r.t.Context().Err() != nil):
	case err != nil:
		c.r.t.Errorf("reply to a call for %s: %v", c.id, err)
		c.open = c.open[1:]
	case reply.State != lowkiq.ReplyPending:
		c.late.Add(1)
		c.end(reply)
		c.open = c.open[1:]
	}
}

// askAll asks for all replies, of payloads that have all ended.
func (c *callers) askAll() {
	c.r.t.Helper()
	for _, one := range c.all {
		c.r.await("all calls for "+one.id+" have an end", patience, func() bool {
			for n := len(one.open); n > 0 && len(one.open) > 0; n-- {
				one.ask()
			}
			return len(one.open) == 0
		})
	}
}

func (c *caller) end(reply lowkiq.Reply) {
	n, err := strconv.Atoi(string(reply.Result))
	if reply.State != lowkiq.ReplyDone || err != nil {
		c.r.t.Errorf("call for %s: got %+v, want a count", c.id, reply)
	}
	c.counts = append(c.counts, n)
	c.answered.Add(1)
}

// lines are those of the journal, by id, in the order in which they were written.
func (r *rig) lines() map[string][]journal.Run {
	r.t.Helper()
	rdb, lines := r.client.DB().ForTests(), map[string][]journal.Run{}
	for _, s := range r.queue.All() {
		entries, err := rdb.XRange(r.t.Context(), s.Keys().Journal, "-", "+").Result()
		if err != nil {
			r.t.Fatal(err)
		}
		written := 0
		for _, e := range entries {
			text, _ := e.Values["l"].(string)
			instance, _ := e.Values["i"].(string)
			runs, err := journal.Parse(text, instance, time.Time{})
			if n := fmt.Sprint(len(runs)); err != nil || n != e.Values["n"] {
				r.t.Errorf("%s, entry %s: got %s lines, %v, want %v", s, e.ID, n, err, e.Values["n"])
			}
			for _, run := range runs {
				lines[run.ID] = append(lines[run.ID], run)
			}
			written += len(runs)
		}
		counted := rdb.HMGet(r.t.Context(), s.Keys().Count, "runs", "unlogged").Val()
		if len(counted) != 2 || fmt.Sprint(counted[0]) != strconv.Itoa(written) || counted[1] != nil {
			r.t.Errorf("%s: %v lines are counted, and left out, want %d and none", s, counted, written)
		}
	}
	// Who follows the journal gets the same.
	follows, cursor := map[string][]journal.Run{}, int64(0)
	for {
		list, err := browse.Of(r.queue).RunsAfter(r.t.Context(), cursor, browse.RunQuery{Limit: 1000})
		if err != nil {
			r.t.Fatal(err)
		}
		if len(list.List) == 0 {
			break
		}
		cursor = list.Cursor
		for _, run := range list.List {
			follows[run.ID] = append(follows[run.ID], run)
		}
	}
	sketch := func(runs []journal.Run) (all []string) {
		for _, run := range runs {
			all = append(all, fmt.Sprintf("%s %d %s", run.Verdict, run.RetryCount, run.Result))
		}
		return all
	}
	for id := range lines {
		if got, want := sketch(follows[id]), sketch(lines[id]); !slices.Equal(got, want) {
			r.t.Errorf("%s: who follows the journal gets %d lines, want the %d that are there in their order", id, len(got), len(want))
		}
	}
	return lines
}

// disagree says what is wrong with the lines of an id, in the order in which they were written, if these are the counts
// that its payloads are in: of each run that is done there is one line, with its count; of those that failed there is
// one for each retry.
func disagree(lines []journal.Run, counts []int) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	payloads := map[int]int{} // by the count they are in
	for _, n := range counts {
		payloads[n]++
	}
	runs, before := slices.Sorted(maps.Keys(payloads)), 0
	for _, n := range runs {
		if payloads[n] != n-before {
			fault("%d payloads are in the count %d, want %d, as the count before it is %d", payloads[n], n, n-before, before)
		}
		before = n
	}
	done, retry, popped := []int(nil), -1, time.Time{}
	for i, line := range lines {
		want := retry
		switch line.Verdict {
		case journal.Done:
			n, err := strconv.Atoi(string(line.Result))
			if err != nil {
				fault("line %d: result %q, want a count", i, line.Result)
			}
			done, retry = append(done, n), -1
		case journal.Failed:
			want++
			retry = line.RetryCount
		case journal.Crashed: // there may be one of a node's death
			popped = popped.Add(-1)
		default:
			fault("line %d: %s, want done, failed or crashed", i, line.Verdict)
		}
		if line.RetryCount != want {
			fault("line %d: %s with retry count %d, want %d", i, line.Verdict, line.RetryCount, want)
		}
		if !line.Popped.After(popped) {
			fault("line %d: popped at %s, the one before it at %s", i, line.Popped, popped)
		}
		popped = line.Popped
	}
	if len(done) != len(runs) {
		fault("%d lines of runs that are done, want %d", len(done), len(runs))
	}
	for i := range min(len(done), len(runs)) {
		if done[i] != runs[i] {
			fault("number %d of the runs that are done has the count %d, want %d", i, done[i], runs[i])
			break
		}
	}
	if retry != -1 {
		fault("the last run failed")
	}
	return faults
}

// TestDisagreements checks that the test finds a line that is missing, doubled, misplaced or changed.
func TestDisagreements(t *testing.T) {
	t.Parallel()
	var good []journal.Run
	line := func(verdict journal.Verdict, retry int, result string) {
		run := journal.Run{Verdict: verdict, RetryCount: retry, Ran: journal.Ran{Popped: time.UnixMicro(int64(1000 * (len(good) + 1)))}}
		if result != "" {
			run.Result = []byte(result)
		}
		good = append(good, run)
	}
	line(journal.Done, -1, "1")
	line(journal.Failed, 0, "")
	line(journal.Failed, 1, "")
	line(journal.Done, 1, "3")
	line(journal.Done, -1, "4")
	line(journal.Failed, 0, "")
	line(journal.Done, 0, "7")
	counts := []int{7, 1, 3, 3, 4, 7, 7}
	if faults := disagree(good, counts); faults != nil {
		t.Fatalf("got %q, want none", faults)
	}
	crashed := slices.Insert(slices.Clone(good), 2, journal.Run{Verdict: journal.Crashed, Ran: journal.Ran{Popped: good[1].Popped}})
	if faults := disagree(crashed, counts); faults != nil {
		t.Errorf("a crash: got %q, want none", faults)
	}
	bad := func(what string, lines []journal.Run, counts []int) {
		t.Helper()
		if disagree(lines, counts) == nil {
			t.Errorf("%s: got no fault", what)
		}
	}
	for i := range good {
		bad(fmt.Sprintf("line %d is missing", i), slices.Delete(slices.Clone(good), i, i+1), counts)
		bad(fmt.Sprintf("line %d is there twice", i), slices.Insert(slices.Clone(good), i, good[i]), counts)
		for k := range i {
			swapped := slices.Clone(good)
			swapped[i], swapped[k] = swapped[k], swapped[i]
			bad(fmt.Sprintf("lines %d and %d are in each other's place", k, i), swapped, counts)
		}
		changed := slices.Clone(good)
		changed[i].RetryCount++
		bad(fmt.Sprintf("line %d has another retry count", i), changed, counts)
	}
	changed := slices.Clone(good)
	changed[3].Result = []byte("2")
	bad("another result", changed, counts)
	changed[3] = good[3]
	changed[3].Verdict = journal.Exhausted
	bad("another verdict", changed, counts)
	bad("no lines", nil, counts)
	bad("a payload counted twice", good, append(slices.Clone(counts), 7))
	bad("a payload without a count", good, counts[1:])
	bad("a run that nobody was told of", good, slices.DeleteFunc(slices.Clone(counts), func(n int) bool { return n == 4 }))
}
