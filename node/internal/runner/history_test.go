package runner

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/testing/historytest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestHistories runs runners against shards whose requests are lost, late and doubled, which
// freeze, refuse, and lose their claims, in processes that freeze, lose their leases, pause and
// stop, at random moments, while rules change: limits and groups, whose requests are lost, too, holds,
// times after which payloads expire; and people cancel what runs. In each history I1, I2 and I3 hold, no
// call begins that a rule forbids, what is put back for one costs no retry, all that was pushed has ended
// soon after the faults do, Redis is left alone then, and every goroutine ends.
//
//	LOWKIQ_HISTORIES=10000 go test -count=1 -run TestHistories ./node/internal/runner ./node/internal/claims
//
// says how many; see historytest for more.
func TestHistories(t *testing.T) {
	historytest.Run(t, tier.Of(3000, 1500, 3000), func(_ *testing.T, run *historytest.History) {
		h := newHistory(run)
		h.called = true
		if run.Seed%2 == 0 {
			h.rules.ShardJournal.Runs = journal.All
		}
		h.run()
	})
}

// TestMutations breaks the code in one place at a time. Some history must fail with each of these mutations.
func TestMutations(t *testing.T) {
	tier.Usual(t)
	historytest.Mutations(t, [][4]string{
		{"no check of the lease before a call", "watchdog.go", "if !c.process.MayWork() {", "if false {"},
		{"failed jobs are acknowledged", "complete.go", "r.queueAcks(batch.Flight, all.Done, result)", "r.queueAcks(batch.Flight, batch.Jobs, result)"},
		{"stopped jobs are acknowledged", "complete.go", "		if err == nil {\n			done", "		if err != lowkiq.ErrTimeout {\n			done"},
		{"acks are sent twice", "acks.go", "	a.waiting = nil\n	if taken != nil", "	if taken != nil"},
		{"acks without an answer are forgotten", "complete.go", "		r.acks.putBack(acks)\n", ""},
		{"an ack of the rest of a flight overtakes an answer", "complete.go", "rest && !named", "rest && (named || !named)"},
		{"lines of the journal are lost", "acks.go", "	a.waiting[last].Runs.Join(runs)\n", ""},
		{"acks of jobs that do not follow each other are joined", "acks.go", "	return place >= 0 && place == a.next\n", "	return true\n"},
		{"an answer is lost", "acks.go", "append(a.waiting[last].Answers, answers...)", "answers"},
		{"a release overtakes acks", "acks.go", "		<-flushing\n", ""},
		{"a batch is not put back", "flights.go", "	f.waiting = append([]flight{{batch.Flight, l.popped, l.place, batch.Jobs}}, f.waiting...)\n", ""},
		{"a pause returns no jobs", "runner.go", "	sent := r.sendNacks(", "	nacks = nil\n	sent := r.sendNacks("},
		{"a resume while jobs are returned is forgotten", "runner.go", "				continue // the", "				break // the"},
		{"returned jobs are not popped again", "runner.go", "		r.state.change(woken) // an open pop", "		// an open pop"},
		{"no lane replaces a lane that ends while jobs are returned", "runner.go", "		if r.state.mayStartLane() { // a lane", "		if false { // a lane"},
		{"a batch is taken twice", "flights.go", "	first.jobs, first.place = first.jobs[n:], first.place+n\n", "	if first.jobs, first.place = first.jobs[n:], first.place+n; n%3 == 2 {\n		first.jobs = part.jobs\n	}\n"},
		{"the shard is released while handlers run", "state.go", "	if len(s.lanes) == 0 {\n		s.change(lanesEnd)", "	if true {\n		s.change(lanesEnd)"},
		{"a paused shard is still while a call is about to begin", "state.go", "return len(l.ids) > 0 && l.began.Load() == 0", "return false"},
		{"a paused shard is still while a pop is on its way", "state.go", "s.phase != popping && s.phase != repopping && len(s.flights.waiting) == 0", "len(s.flights.waiting) == 0"},
		{"a wake-up during a pop is forgotten", "state.go", "return repopping, false", "return p, false"},
		{"the end of a flight starts no lane", "state.go", "return resting, p == waitsForFlights", "return resting, false"},
		{"no pop for jobs that the last pop has left", "state.go", "	s.due = s.due || s.more || again || p.Quarantine != protocol.NotQuarantined\n", ""},
		{"a wake-up causes no pop", "state.go", "	s.due = s.due || look || e == quarantineEnds\n", "	s.due = s.due || e == quarantineEnds\n"},
		{"a quarantine never ends", "state.go", "		s.change(quarantineEnds)\n", ""},
		{"the quarantine slot is kept", "state.go", "		s.quarantine.releaseSlot() // a paused", "		// also"},
		{"runners that wait for the quarantine slot are not woken", "quarantine.go", "		go other.wake()", "		_ = other"},
		{"an id runs that was held while its batch waited", "runner.go", "		if r.hasHeldJob(batch) { // the hold", "		if false { // the hold"},
		{"held ids stay that a release has not seen", "holds.go", "was == nil || was.held != held || ", "was == nil && "},
		{"a hold removes its neighbours, too", "flights.go", "keep(i)\n", "from = i + 1\n"},
		{"a handler slot is kept", "lane.go", "		l.queue.Slots.Release()\n", ""},
		{"an id runs that was held during the request for the rate", "runner.go", "if r.hasHeldJob(batch) || len(r.expiredJobs(batch)) > 0 {", "if len(r.expiredJobs(batch)) > 0 {"},
		{"a payload runs that has expired during the request for the rate", "runner.go", "if r.hasHeldJob(batch) || len(r.expiredJobs(batch)) > 0 {", "if r.hasHeldJob(batch) {"},
		{"changes during the request for groups are ignored", "runner.go", "		case asked:\n", "		case asked && l.groups == nil:\n"},
		{"a batch that did not use its grant of the rate uses it later", "runner.go", "		l.refused = true\n		l.release()\n		return false\n", "		r.dropExpired(batch, l)\n"},
		{"held ids are not released after a claim", "runner.go", "	if !claim.HasHeld() {\n", "	if true {\n"},
		{"a release of held ids that failed is not repeated", "holds.go", "func (r *Runner) RetryReleaseHeld() { r.releasedUnder.Store(nil) }", "func (r *Runner) RetryReleaseHeld() {}"},
		{"an id stays held if no hold follows its cancel", "complete.go", "			r.releaseAgain.Store(int64(r.process.Now()))\n", ""},
		{"expired payloads run", "../../../internal/verdict/expire.go", "if says && !at.After(now) {", "if says && !at.Add(time.Millisecond).After(now) {"},
		{"the rule expire has priority over the header", "../../../internal/verdict/expire.go", "if !says && r.Expire.After > 0 {", "if r.Expire.After > 0 {"},
		{"other payloads of the job expire, too", "../../../internal/verdict/expire.go", "		b.Places = e.places\n", ""},
		{"expired payloads are buried, not dropped", "../../../internal/verdict/expire.go", "		b.Policy = protocol.Drop\n", ""},
		{"an expiry counts as a retry", "../../../internal/verdict/expire.go", "RetryCount: job.RetryCount, Expired", "RetryCount: job.RetryCount + 1, Expired"},
		{"jobs left after an expiry count as jobs that follow each other", "complete.go", "batch.Jobs, l.place = left, noPlace", "batch.Jobs = left"},
		{"a refusal by a group counts as a retry", "../../../internal/verdict/group.go", "Kind: protocol.Postpone, RetryCount: job.RetryCount, Delay: l.Wait", "Kind: protocol.Retry, RetryCount: job.RetryCount + 1, Delay: l.Wait"},
		{"ids run that their group refuses", "../../../internal/verdict/admit.go", "		may := answer.Wait == 0\n", "		may := answer.Wait <= 5*time.Millisecond\n"},
		{"ids run without an answer about their group", "../limits/groups.go", "			err = a.err\n			continue\n", "			err = nil\n"},
		{"a lost answer about groups is forgotten", "../limits/groups.go", "			g.reportGroup(r.Groups[i].Group, r.Groups[i].Stop)\n", ""},
		{"lanes that asked while a request failed wait without end", "../limits/groups.go", "		asks, g.asks = append(asks, g.asks...), nil\n", ""},
		{"ids of groups never leave them", "runner.go", "		r.handleBatch(batch, l)\n		l.leaveRate()\n		r.leaveGroups(l)\n", "		r.handleBatch(batch, l)\n		l.leaveRate()\n		l.groups = nil\n"},
		{"an id leaves its group before its call has ended", "runner.go", "		r.handleBatch(batch, l)\n", "		if r.handleBatch(batch, l); l.groups != nil && len(l.groups) > 1 {\n			r.queue.Limits.EndCalls(l.groups[:1], 0)\n		}\n"},
		{"groups that a handler holds back are not stopped", "groups.go", "		r.queue.Limits.StopGroup(group, d)\n", "		_, _ = group, d\n"},
		{"jobs of a backlog that may begin are lost", "groups.go", "			left = append(left, part)\n", ""},
		{"jobs of a backlog that may begin keep their permits", "../limits/groups.go", "		q.EndCalls(open, 0)\n", ""},
		{"a backlog is lost if the request about it fails", "groups.go", "		return nil, parts\n", "		return nil, nil\n"},
		{"returned jobs of a backlog stay open", "groups.go", "			s.closeJobs(nacks[i].Flight, 1)\n", "			_ = i\n"},
		{"two requests about groups run at once", "../limits/groups.go", "	g.asking = true\n	return first\n", "	g.asking = true\n	return first || len(g.asks) > 0\n"},
		{"batches run that the rate refuses", "../limits/rate.go", "a.may, a.wait = i < grant.Batches,", "a.may, a.wait = err == nil && i <= grant.Batches,"},
		{"batches run without an answer about the rate", "../limits/rate.go", "a.may, a.wait = i < grant.Batches,", "a.may, a.wait = err != nil || i < grant.Batches,"},
		{"a lane that prepares a call at a rate blocks the others", "groups.go", "		l.queue.Limits.LeaveRate()\n", ""},
		{"the first lane that waits for the rate is forgotten", "../limits/rate.go", "	if wait <= 0 || len(p.lanes) == 0 {\n", "	if true {\n"},
		{"a node reports fewer permits than it uses", "../limits/limits.go", "p.Has = max(q.permits, p.Busy)", "p.Has = p.Busy"},
		{"new calls begin beside calls from before the limit", "../limits/limits.go", "q.permits = 0 //", "q.permits = 9 //"},
		{"a permit is kept", "lane.go", "		l.call.Release()\n", ""},
		{"ids beside a cancelled id have failed", "../../../internal/verdict/cancel.go", "all[id] = lowkiq.Postpone{Reason: \"another id of its batch was cancelled\"}", "all[id] = err"},
		{"the whole batch is cancelled", "../../../internal/verdict/cancel.go", "case named:", "case named || len(by) > 0:"},
		{"a cancelled run is done", "complete.go", "answer = verdict.Cancelled(batch.Jobs, answer, by, byHand)", "answer = lowkiq.Failed{}"},
		{"a cancelled run has failed", "complete.go", "if by := l.canceller.reasons(); len(by) > 0 {", "if by := l.canceller.reasons(); false && len(by) > 0 {"},
		{"a note does not count", "notes.go", "	case silent < w.after:\n", "	case false:\n"},
		{"a stuck call goes on", "notes.go", "		w.cancel(lowkiq.ErrStuck)\n", ""},
	})
}

// All histories share the metrics: to make them takes longer than most histories do.
var testMetrics = metrics.New(prometheus.NewRegistry()).Queue("orders")

const testTTL = 3 * time.Second

// history is one run of a process and those after it.
type history struct {
	*historytest.History
	faulty int         // percent of requests with a fault
	calm   atomic.Bool // no faults any more
	shards []*shard
	judge  *judge
	group  sync.WaitGroup // all that the history starts
	paused atomic.Bool
	scarce bool
	called bool         // somebody waits for the ends of some ids
	slow   bool         // most calls take long
	lazy   bool         // some answers are late even without faults
	others atomic.Int64 // permits, and ids of each group in calls, that other processes have

	features // what rules of the history there may be
	mu       sync.Mutex
	rules    Rules                // in force; guarded by mu
	pushed   map[string]int       // payloads by id; guarded by mu
	expires  map[string]time.Time // by id and payload; guarded by mu
	stops    map[string]time.Time // until when handlers hold groups back, of those that said so when all was calm; guarded by mu
}

// features are which rules a history has, and how: most have few.
type features struct {
	limited, grouped bool
	crowded          bool // many ids of one group come at once, and few of them may be in calls
	stuck            bool
	expire           bool
	after            time.Duration // of the rule that has payloads expire, where there is one
}

// timed reports whether calls are ended that take long: what they answer then is a failure.
func (h *history) timed() bool { return h.stuck || h.now().HandlerTimeout > 0 }

// now are the rules in force.
func (h *history) now() Rules {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rules
}

// draw draws limits, groups, and when payloads expire and calls are stuck.
func (h *history) draw(to *Rules) {
	to.Limit, to.Groups, to.Expire.After, to.StuckAfter = rules.Limit{}, rules.Groups{}, 0, 0
	if h.limited {
		to.Limit = h.drawLimit()
	}
	if h.grouped && h.IntN(4) > 0 {
		to.Groups = rules.Groups{By: []string{"d", "d", "0", "t"}[h.IntN(4)], Limit: h.drawLimit()}
	}
	if h.crowded {
		to.Groups = rules.Groups{By: "d", Limit: rules.Limit{Concurrency: 1 + h.IntN(3)}}
	}
	if h.expire && h.IntN(2) == 0 {
		to.Expire.After = h.after
	}
	if h.stuck && h.IntN(3) > 0 {
		to.StuckAfter = 5*time.Millisecond + h.Below(40*time.Millisecond)
	}
}

func (h *history) drawLimit() (l rules.Limit) {
	if h.IntN(2) == 0 {
		l.Concurrency = 1 + h.IntN(4)
	}
	if h.IntN(2) == 0 {
		l.Rate, l.Burst = rules.Rate{N: 20 + h.IntN(1000), Per: time.Second}, 1+h.IntN(5)
	}
	return l
}

// header is what a payload says.
func (h *history) header(id string, n int) lowkiq.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, there := h.expires[fmt.Sprint(id, "/", n)]
	if !there {
		return ""
	}
	return lowkiq.Header(fmt.Sprintf(`{"expires":%q}`, at.Format(time.RFC3339Nano)))
}

func newHistory(run *historytest.History) *history {
	h := &history{History: run, faulty: []int{0, 5, 20, 50}[run.IntN(4)], scarce: run.IntN(2) == 0, slow: run.Seed%8 == 7, pushed: map[string]int{},
		expires: map[string]time.Time{}, stops: map[string]time.Time{}}
	h.judge = newJudge(h)
	for i := range 1 + h.IntN(2) {
		h.shards = append(h.shards, &shard{
			Shard: lowkiq.Shard{Queue: "orders", Index: i}, h: h,
			ids: map[string]*record{}, flights: map[int64][]string{}, taken: map[int64][]string{}, crashes: map[string]int{},
		})
	}
	h.rules = Rules{
		Rules:       rules.Rules{BatchSize: 1 + h.IntN(3), ShardConcurrency: 1 + h.IntN(4), Prefetch: 10, MaxRetryCount: 3 + h.IntN(20), Exhausted: protocol.Skip, Scheduler: []rules.Scheduler{rules.Seq, rules.Lag}[h.IntN(2)]},
		RetryFunc:   func(int) time.Duration { return h.Below(100 * time.Millisecond) },
		FormatError: error.Error,
	}
	if h.IntN(4) == 0 {
		h.rules.HandlerTimeout = 30 * time.Millisecond
	}
	h.features = features{limited: h.IntN(3) == 0, grouped: h.IntN(3) == 0, crowded: h.IntN(12) == 0, stuck: h.IntN(4) == 0, expire: h.IntN(3) == 0, after: time.Millisecond + h.Below(time.Second)}
	h.slow = h.slow || h.crowded && h.IntN(2) == 0
	h.rules.Expire.To = []rules.ExpireTo{"", rules.ExpireDrop}[h.IntN(2)]
	return h
}

// run lets processes follow one another until the faults end, waits until the last one has done
// all, and stops it.
func (h *history) run() {
	faults := h.Below(4 * time.Second)
	h.lazy = true
	h.draw(&h.rules)
	for _, s := range h.shards {
		s.header = h.header
	}
	h.group.Go(func() { h.produce(faults) })
	h.group.Go(func() { h.disturb(faults) })
	var p *process
	for seize := false; ; seize = h.IntN(2) == 0 {
		p = h.startProcess(seize)
		if time.Since(h.Start) >= faults {
			break
		}
		time.Sleep(min(h.Below(2*time.Second), faults-time.Since(h.Start)+time.Millisecond))
		if h.IntN(2) == 0 { // told to stop: its successor comes after it
			p.stop()
			continue
		}
		p.end() // its lease is lost: its successor comes when that may be, whatever this one does
	}
	time.Sleep(time.Second)
	h.calm.Store(true)
	h.judge.resumed()
	h.paused.Store(false)
	h.others.Store(0)
	h.hold(p, nil)
	for _, s := range h.shards {
		s.mu.Lock()
		s.refuses, s.frozen = false, time.Time{}
		s.mu.Unlock()
	}
	time.Sleep(time.Second) // what is late has come
	p.lookAtAll()
	// From here on no poll finds what a wake-up, an alarm or a flight's end misses.
	push := func(s *shard, id string) {
		h.mu.Lock() // the producer may still be at work
		n := h.pushed[id]
		h.pushed[id]++
		h.mu.Unlock()
		p.hear(s, s.push(id, n))
	}
	for n := range 10 { // wake-ups that meet a pop
		push(h.shards[0], fmt.Sprint("last", n%3))
		switch n {
		case 2:
			if h.IntN(2) == 0 {
				h.hold(p, []rules.Hold{{ID: "last1"}})
				h.shards[0].suspect("last2")
			}
		case 7:
			h.hold(p, nil)
		case 5:
			h.pause(p, h.Below(20*time.Millisecond))
		case 8:
			for i, s := range h.shards {
				push(s, fmt.Sprint("crashed", i))
				s.suspect(fmt.Sprint("crashed", i))
			}
			p.lookAtAll()
		}
		time.Sleep(h.Below(1500 * time.Microsecond))
	}
	for end := time.Now().Add(10 * time.Minute); h.work() > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			for _, s := range h.shards {
				s.fault("something waits for ever: ready %v, suspects %v, flights %v, held %v", s.ready, s.suspects, s.flights, s.held)
			}
			break
		}
	}
	time.Sleep(time.Second)
	for _, s := range h.shards {
		calls := s.calls.Load()
		time.Sleep(time.Minute)
		if n := s.calls.Load() - calls; n > 0 {
			s.fault("%d requests in a minute in which there is nothing to do", n)
		}
	}
	p.gates.told()
	for _, r := range p.all() {
		r.mu.Lock()
		if open := r.state.flights.open; len(open) > 0 {
			h.Fault("%s has flights of which jobs are open, when all are done: %v", r.Shard, open)
		}
		r.mu.Unlock()
	}
	p.stop()
	h.group.Wait()
	for _, s := range h.shards {
		if s.held {
			s.fault("the claim is held at the end")
		}
	}
	h.judge.all(h.pushed)
}

// shardOf finds a shard.
func (h *history) shardOf(of lowkiq.Shard) *shard {
	for _, s := range h.shards {
		if s.Shard == of {
			return s
		}
	}
	return nil
}

// work is how many ids are not done.
func (h *history) work() (n int) {
	for _, s := range h.shards {
		n += s.work()
	}
	return n
}

// produce pushes, and sends wake-ups of which some are lost.
func (h *history) produce(during time.Duration) {
	ids, pushes, burst := 1+h.IntN(6), 1+h.IntN(25), 1
	if h.crowded {
		ids, pushes, burst = 60, 40+h.IntN(60), 30
	}
	for range pushes {
		id := fmt.Sprint("id", h.IntN(ids))
		s := h.shards[int(id[2]-'0')%len(h.shards)]
		h.mu.Lock()
		n := h.pushed[id]
		h.pushed[id]++
		h.mu.Unlock()
		if h.expire && h.IntN(3) == 0 {
			at := time.Now().Add(h.Below(300 * time.Millisecond))
			h.mu.Lock()
			h.expires[fmt.Sprint(id, "/", n)] = at
			h.mu.Unlock()
		}
		published := s.push(id, n)
		if h.IntN(8) == 0 {
			s.suspect(id)
		}
		if p := h.judge.process.Load(); p != nil && (h.calm.Load() || h.IntN(10) > 0) {
			p.hear(s, published)
		}
		if h.IntN(burst) == 0 {
			time.Sleep(min(h.Below(200*time.Millisecond), during/10))
		}
	}
}

// disturb freezes shards, takes claims away, has requests refused, pauses the queue, and changes its rules.
func (h *history) disturb(during time.Duration) {
	for range h.IntN(6) {
		time.Sleep(h.Below(during / 3))
		if h.calm.Load() {
			return
		}
		s, p := h.shards[h.IntN(len(h.shards))], h.judge.process.Load()
		switch h.IntN(9) {
		case 0:
			s.mu.Lock()
			s.frozen = time.Now().Add(h.Below(time.Second))
			s.mu.Unlock()
		case 1:
			s.lose()
		case 2:
			s.mu.Lock()
			s.refuses = true
			s.mu.Unlock()
			time.Sleep(h.Below(300 * time.Millisecond))
			s.mu.Lock()
			s.refuses = false
			s.mu.Unlock()
		case 3:
			h.pause(p, h.Below(300*time.Millisecond))
		case 4, 7:
			h.change(p)
		case 8:
			h.others.Store(int64(h.IntN(4)))
		case 6:
			for range 20 {
				time.Sleep(h.Below(10 * time.Millisecond))
				h.cancel(h.judge.process.Load())
			}
		case 5:
			h.hold(p, [][]rules.Hold{nil, {{Prefix: "id"}}, {{ID: "id0"}}, {{ID: "id1"}, {ID: "id2"}}}[h.IntN(4)])
		}
	}
}

// cancel ends the run of some id, if one runs.
func (h *history) cancel(p *process) {
	id, why := fmt.Sprint("id", h.IntN(6)), protocol.Cancellation{Then: protocol.Thens()[h.IntN(4)], By: "ann"}
	h.judge.cancels(id, why.Then)
	for _, r := range p.all() {
		if r.Cancel(id, why) {
			h.Trace("cancelled: %s, then %s", id, why.Then) // nobody holds it: it comes back by itself
		}
	}
}

// hold has people hold these ids, and no others.
func (h *history) hold(p *process, holds []rules.Hold) {
	h.Trace("held: %v", holds)
	h.mu.Lock()
	h.rules.Held = rules.NewHeld(holds)
	now := h.rules
	h.mu.Unlock()
	p.gates.change(now, h.IntN(3))
	for _, r := range p.all() {
		r.ApplyRules()
	}
	if h.IntN(2) == 0 { // else with the next tick: there may be other holds by then
		p.release()
	}
}

// change puts other rules in force.
func (h *history) change(p *process) {
	now := h.now()
	now.BatchSize, now.ShardConcurrency = 1+h.IntN(4), 1+h.IntN(4)
	h.draw(&now)
	h.mu.Lock()
	now.Held = h.rules.Held
	h.rules = now
	h.mu.Unlock()
	concurrency := h.IntN(3)
	h.Trace("batches of %d, lanes %d, calls %d, limit %+v, groups %+v, expire %+v, stuck %s",
		now.BatchSize, now.ShardConcurrency, concurrency, now.Limit, now.Groups, now.Expire, now.StuckAfter)
	p.gates.change(now, concurrency)
	for _, r := range p.all() {
		r.ApplyRules()
	}
}

// pause pauses the queue for a time.
func (h *history) pause(p *process, d time.Duration) {
	h.Trace("paused")
	h.paused.Store(true)
	for _, r := range p.all() {
		r.Pause()
	}
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(min(time.Until(end), time.Millisecond+h.Below(10*time.Millisecond))) {
		for _, r := range p.all() {
			if r.IsStill() {
				h.judge.still(r)
			}
		}
	}
	h.judge.resumed()
	h.paused.Store(false)
	h.Trace("resumed")
	h.judge.process.Load().lookAtAll()
}
