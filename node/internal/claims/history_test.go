package claims

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/historytest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// TestHistories runs three processes with their keepers and claims against a fake Redis. The fake
// loses, delays and repeats requests and replies. In some histories it forgets everything once, or
// ends leases early. Processes are crashed, cut off and drained, plans move shards, and the queue gets
// other shards.
//
// Each history must keep four promises. One process at a time handles a shard's jobs (I1). No process
// handles jobs of former and present shards of a queue at once (I1). Soon after the faults end, each
// shard is served by its process (I4). After a drain no shard has an owner, and no goroutine is left.
//
//	LOWKIQ_HISTORIES=10000 go test -count=1 -run TestHistories ./node/internal/runner ./node/internal/claims
//
// runs more histories; see historytest.
func TestHistories(t *testing.T) {
	historytest.Run(t, 1000, func(_ *testing.T, h *historytest.History) { newWorld(h).run() })
}

// TestMutations breaks the package in one way per copy. In each copy some history must fail.
func TestMutations(t *testing.T) {
	tier.Usual(t)
	historytest.Mutations(t, [][4]string{
		{"a living owner is seized", "decide.go", "	}\n	return wait\n", "	}\n	return seize\n"},
		{"a missing lease is a proof", "decide.go", "holder.missingFor >= max(shard.ttl, holder.ttl)", "true"},
		{"gossip is a proof", "decide.go", "case !holder.leased && holder.departed:", "case holder.departed:"},
		{"an absent claim is free", "decide.go", "shard.absentHeld && !shard.lastOwner", "false"},
		{"a dead owner is waited for", "claimer.go", "		if cause == wait {", "		if cause == wait || cause == seize {"},
		{"an owner that does not know it is waited for", "decide.go", "		return self\n", "		return wait\n"},
		{"requests for a release are not heeded", "claims.go", "	if shard == nil || ", "	if true || "},
		{"a missing lease is not looked for", "claimer.go", "return o.Fence == 0 })", "return false })"},
		{"the loss of a lease is forgotten", "absent.go", "	a.heldUntil = a.now() + ttl\n", ""},
		{"a shard is released while a call runs", "handover.go", "			<-idle\n", "			_ = idle\n"},
		{"the next instance begins while one runs", "handover.go", "	returned()\n", ""},
		{"a runner without a claim stays", "handover.go", "desired && !fenced && !outOfSync ||", "desired && (!fenced || true) ||"},
		{"a runner of a former shard stays", "handover.go", "if !c.isPresent(o.Claim.Shard) {\n\t\t\to.", "if false {\n\t\t\to."},
		{"a claim of a former shard is used", "claimer.go", "if !c.isPresent(s) {", "if false {"},
		{"wake-ups of a former shard stay", "claimer.go", " && cl.c.isPresent(s)", ""},
		{"present shards do not wait for former shards", "process_test.go", "in.claims.OwnsAny(\"q\")", "false"},
		{"a claim ignores what was read", "process_test.go", "if owner != seen || ", "if "},
		{"a release ignores the fence", "process_test.go", "w.fenced(claim); refusal != nil {", "w.fenced(claim); refusal != nil && w.all == nil {"},
	})
}

// world is a fake Redis and the processes around it.
type world struct {
	*historytest.History
	wipes   bool          // Redis forgets everything
	early   bool          // leases end early
	cluster bool          // a plan says who owns which shard; otherwise each process desires all
	longest time.Duration // the longest handler call

	asked atomic.Int64 // the number of requests
	calm  atomic.Bool  // there are no more faults

	mu       sync.Mutex
	wiped    time.Time
	shards   *[]*protocol.Shard                     // as registered
	sets     map[*protocol.Shard]*[]*protocol.Shard // all shards with the shards of their time
	gone     map[*protocol.Shard]bool               // former shards whose keys are deleted
	closed   time.Time                              // until when nobody can own a shard
	owners   map[*protocol.Shard]protocol.Owner
	leases   map[string]time.Time // when they expire
	index    map[string][]byte
	calls    map[*protocol.Shard]*worker // running handler calls
	plan     *plan.Assignment
	procs    map[string]*process // by node
	all      []*process
	restarts sync.WaitGroup
}

func newWorld(h *historytest.History) *world {
	w := &world{
		History: h, wipes: h.Seed%4 == 1, early: h.Seed%4 == 2, cluster: h.Seed%8 < 6, longest: 3 * time.Second,
		sets: map[*protocol.Shard]*[]*protocol.Shard{}, gone: map[*protocol.Shard]bool{}, owners: map[*protocol.Shard]protocol.Owner{}, leases: map[string]time.Time{}, index: map[string][]byte{},
		calls: map[*protocol.Shard]*worker{}, procs: map[string]*process{},
	}
	w.register()
	w.replan()
	return w
}

// register gives the queue other shards. The former shards are deleted, or stay as they are.
func (w *world) register() {
	var fresh []*protocol.Shard
	for i := range 1 + w.IntN(4) {
		fresh = append(fresh, &protocol.Shard{Shard: lowkiq.Shard{Queue: "q", Index: i}})
	}
	gone := w.IntN(2) == 0
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.sets {
		w.gone[s] = w.gone[s] || gone
	}
	for _, s := range fresh {
		w.sets[s] = &fresh
	}
	w.shards = &fresh
	if len(w.procs) > 0 && w.IntN(2) == 0 { // their jobs are on their way
		w.closed = time.Now().Add(w.Below(ttl))
	}
	w.Trace("the queue has %d other shards, former shards deleted: %v", len(fresh), gone)
}

func (w *world) registered() *[]*protocol.Shard {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shards
}

func (w *world) first() lowkiq.Shard { return (*w.registered())[0].Shard }

var nodes = []string{"n1", "n2", "n3"}

// run plays a history: faults for up to 6 ttl, then a calm time in which all must become well, then
// a drain.
func (w *world) run() {
	if w.IntN(4) == 0 { // its recovery takes some ttl
		w.owners[ghost] = protocol.Owner{Instance: "n9/X.1", Fence: 7}
	}
	for _, name := range nodes {
		w.restart(name, ttl/4)
	}
	for faults := w.Below(6 * ttl); time.Since(w.Start) < faults; {
		time.Sleep(100*time.Millisecond + w.Below(2*time.Second))
		w.disturb()
	}
	w.restarts.Wait()
	w.replan()
	w.calm.Store(true)
	for _, p := range w.procs {
		p.cut.Store(0)
	}
	for end := time.Now().Add(12 * ttl); w.findFault() != ""; time.Sleep(ttl / 6) {
		if time.Now().After(end) {
			w.Fault("it waits for ever: %s", w.findFault())
			break
		}
	}
	w.drain()
	synctest.Wait()
	for _, s := range *w.shards {
		if owner := w.owners[s]; owner.Instance != "" {
			w.Fault("after all drained %s owns %s", owner.Instance, s.Shard)
		}
	}
}

// disturb causes one fault.
func (w *world) disturb() {
	p := w.processOf(nodes[w.IntN(len(nodes))])
	switch fault := w.IntN(13); {
	case fault == 12:
		w.register()
		w.replan()
	case w.wipes && fault < 4 && w.sinceWipe() > 2*ttl:
		w.wipe()
	case p == nil:
	case fault < 3:
		w.replan()
	case fault < 7:
		p.cut.Store(time.Now().Add(w.Below(2 * ttl)).UnixNano())
	case fault < 8:
		p.crash()
		w.restart(p.name, ttl)
	case fault < 9:
		p.drain()
		w.restart(p.name, ttl)
	case w.early:
		if in := p.current.Load(); in != nil {
			w.mu.Lock()
			delete(w.leases, in.name)
			w.mu.Unlock()
		}
	}
}

// restart starts a node's next process. It waits if Redis has forgotten everything a short while
// ago: a first lease just after that is a limit of I1.
func (w *world) restart(name string, most time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.procs, name)
	w.restarts.Go(func() {
		time.Sleep(w.Below(most))
		for w.sinceWipe() < ttl {
			time.Sleep(ttl / 6)
		}
		w.start(name)
	})
}

// replan gives the shards to some of the nodes, which learn the plan sooner or later.
func (w *world) replan() {
	a := &plan.Assignment{Nodes: nodes, Queues: []plan.Placement{{Queue: "q"}}}
	for range *w.registered() {
		a.Queues[0].Owners = append(a.Queues[0].Owners, int32(w.IntN(len(nodes))))
	}
	w.mu.Lock()
	if w.plan != nil {
		a.Generation.Index = w.plan.Generation.Index + 1
	}
	w.plan = a
	w.mu.Unlock()
	for _, p := range w.processes() {
		time.AfterFunc(w.Below(ttl/2), func() {
			if p.plan.Load().Generation.Index < a.Generation.Index {
				p.plan.Store(a)
			}
		})
	}
}

// wipe makes Redis forget everything, if all processes have a lease and know it; see restart.
func (w *world) wipe() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.procs {
		if in := p.current.Load(); p.life.Err() != nil || in == nil || !in.keeper.Holds() || !w.isLeased(in.name) {
			return
		}
	}
	w.wiped = time.Now()
	w.Trace("Redis forgets everything")
	clear(w.owners)
	clear(w.leases)
	clear(w.index)
}

func (w *world) sinceWipe() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.wiped)
}

// drain ends all processes.
func (w *world) drain() {
	for _, p := range w.procs {
		p.drain()
	}
	for _, p := range w.processes() {
		<-p.ended
	}
}

func (w *world) processOf(name string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[name]
}

func (w *world) processes() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[:len(w.all):len(w.all)]
}

func (w *world) ofBoot(boot string) *process {
	for _, p := range w.processes() {
		if p.boot == boot {
			return p
		}
	}
	return nil
}

// beginCall and endCall record handler calls.
func (w *world) beginCall(k *worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := k.claim.Shard
	if k.in.p.crashed.Load() {
		return
	}
	if other := w.calls[s]; other != nil {
		w.Fault("I1: a handler call of shard %s begins in %s with fence %d, while one runs in %s with fence %d",
			s.Shard, k.in.name, k.claim.Fence, other.in.name, other.claim.Fence)
	}
	for _, other := range w.calls {
		if other.in.p == k.in.p && w.sets[other.claim.Shard] != w.sets[s] {
			w.Fault("I1: a handler call of shard %s begins in %s, while one of the former or next shards runs", s.Shard, k.in.name)
		}
	}
	w.calls[s] = k
	w.Trace("%s begins %s", k.in.name, s.Shard)
}

func (w *world) endCall(k *worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := k.claim.Shard; w.calls[s] == k {
		w.Trace("%s ends %s", k.in.name, s.Shard)
		delete(w.calls, s)
	}
}

// findFault returns a state that must not last without faults, "" if there is none.
func (w *world) findFault() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if owner := w.owners[ghost]; owner.Instance != "" {
		return fmt.Sprintf("%s owns a shard that no node handles", owner.Instance)
	}
	for name, p := range w.procs {
		if in := p.current.Load(); in == nil || !in.owned.Load() {
			return fmt.Sprintf("%s does not say that all its shards are owned", name)
		}
	}
	for name, p := range w.procs {
		for s := range p.current.Load().subscribed.Range {
			if !slices.Contains(*w.shards, s.(*protocol.Shard)) {
				return fmt.Sprintf("%s is subscribed to a former shard", name)
			}
		}
	}
	for _, shard := range *w.shards {
		s, served := shard.Shard, false
		owner, planned := w.owners[shard], w.plan.Owner(s)
		for name, p := range w.procs {
			in := p.current.Load()
			if _, subscribed := in.subscribed.Load(shard); subscribed != (!w.cluster || planned == name) {
				return fmt.Sprintf("%s is subscribed to %s: %v", name, s, subscribed)
			}
			if o := in.claims.Get(s); o != nil && in.name == owner.Instance && (!w.cluster || planned == name) {
				served = o.Claim.Shard == shard && o.Claim.Fence == owner.Fence && o.Runner.halted.Err() == nil
			}
		}
		if !served {
			return fmt.Sprintf("shard %s, of %s by Redis and of %s by the plan, is not served", s, owner.Instance, planned)
		}
	}
	return ""
}

// runCalmly runs the process of n1 without faults until it has all shards. Then it calls run.
func runCalmly(t *testing.T, longest time.Duration, run func(t *testing.T, w *world, p *process)) {
	t.Parallel()
	historytest.One(t, 7, func(t *testing.T, h *historytest.History) {
		w := newWorld(h)
		w.calm.Store(true)
		w.longest = longest
		w.start("n1")
		p := w.procs["n1"]
		awaitCondition(t, "n1 has all shards", func() bool { return p.countOwned() == len(*w.registered()) })
		run(t, w, p)
		w.drain()
	})
}

// awaitCondition waits for a condition and returns how long that took.
func awaitCondition(t *testing.T, what string, holds func() bool) time.Duration {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		if took := time.Since(begun); holds() || took > time.Minute {
			if took > time.Minute {
				t.Error("not within a minute: " + what)
			}
			return took
		}
	}
}

// TestTakeoverByWakeUp checks that the release of a shard wakes the instances that wait for it. They need not poll.
func TestTakeoverByWakeUp(t *testing.T) {
	runCalmly(t, 3*time.Second, func(t *testing.T, w *world, first *process) {
		w.start("n2")
		second := w.procs["n2"]
		awaitCondition(t, "n2 waits", func() bool { in := second.current.Load(); return in != nil && in.owned.Load() })
		first.drain()
		awaitCondition(t, "n1 has released them", func() bool { return first.countOwned() == 0 })
		took := awaitCondition(t, "n2 has all shards", func() bool { return second.countOwned() == len(*w.registered()) })
		if took > minRetry/2 {
			t.Errorf("taken over after %s, want much less than %s", took, minRetry)
		}
	})
}

// TestFencedShardsWaitQuietly checks that shards that have lost their claims wait for their handlers. In the meantime
// they keep neither the supervisor nor Redis busy.
func TestFencedShardsWaitQuietly(t *testing.T) {
	runCalmly(t, time.Hour, func(t *testing.T, w *world, p *process) {
		time.Sleep(2 * time.Second) // until each shard has a handler call
		in := p.current.Load()
		for _, o := range in.claims.All() {
			o.Runner.fenced.Store(true)
		}
		in.claims.Kick()
		before := w.asked.Load()
		time.Sleep(10 * time.Second)
		if got := w.asked.Load() - before; got > 30 {
			t.Errorf("%d requests in 10 s, want the ten or so of the lease and the scanner", got)
		}
	})
}

// TestDrainWithoutRedis checks that a process that must stop does not wait for Redis while Redis is away, not even if
// it is giving shards back at that time.
func TestDrainWithoutRedis(t *testing.T) {
	runCalmly(t, 3*time.Second, func(t *testing.T, _ *world, p *process) {
		in := p.current.Load()
		p.cut.Store(time.Now().Add(time.Hour).UnixNano())
		for _, o := range in.claims.All() {
			o.Runner.outOfSync.Store(true)
		}
		in.claims.Kick()
		time.Sleep(time.Second) // until they are leaving
		begun := time.Now()
		p.drain()
		<-p.ended
		if took := time.Since(begun); took > 2*releasePatience {
			t.Errorf("the process has ended after %s, want %s or little more", took, releasePatience)
		}
	})
}

// TestResync checks that a shard that is out of sync with Redis is claimed anew at once. If that happens again soon, it
// is claimed anew after a pause.
func TestResync(t *testing.T) {
	runCalmly(t, 3*time.Second, func(t *testing.T, w *world, p *process) {
		s, claims := w.first(), p.current.Load().claims
		for i, rest := range []time.Duration{0, resyncPause, resyncPause} {
			was := claims.Get(s)
			was.Runner.outOfSync.Store(true)
			claims.Kick()
			took := awaitCondition(t, "the shard is claimed anew", func() bool { now := claims.Get(s); return now != nil && now != was })
			if took < rest || took > rest+4*time.Second { // a handler call takes 3 s
				t.Errorf("claimed anew %s after the disagreement %d, want a rest of %s", took, i, rest)
			}
		}
	})
}

// TestOtherShards gives a queue other shards while a call of a former shard runs. The call is cancelled. The present shards
// are claimed once it has returned, and not before.
func TestOtherShards(t *testing.T) {
	runCalmly(t, time.Hour, func(t *testing.T, w *world, p *process) {
		awaitCondition(t, "each shard has a handler call", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.calls) == len(*w.shards)
		})
		in, former := p.current.Load(), *w.registered()
		w.register()
		in.keeper.RenewNow()
		awaitCondition(t, "n1 has the present shards", func() bool {
			for _, s := range *w.registered() {
				if o := in.claims.Get(s.Shard); o == nil || o.Claim.Shard != s {
					return false
				}
			}
			return p.countOwned() == len(*w.registered())
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, s := range former {
			if w.calls[s] != nil {
				t.Errorf("the handler call of the former shard %s was not cancelled", s.Shard)
			}
		}
		if p.current.Load() != in {
			t.Error("the instance has ended")
		}
	})
}

// TestClosedShards checks that shards that a reshard has not opened are claimed as soon as they open. Until then the
// process lacks no shard and reports no failure.
func TestClosedShards(t *testing.T) {
	runCalmly(t, time.Second, func(t *testing.T, w *world, p *process) {
		in := p.current.Load()
		w.register()
		w.mu.Lock()
		w.closed = time.Now().Add(time.Hour)
		w.mu.Unlock()
		in.keeper.RenewNow()
		awaitCondition(t, "n1 has left the former shards", func() bool { return p.countOwned() == 0 })
		time.Sleep(10 * time.Second)
		if !in.owned.Load() {
			t.Error("the process says that it lacks shards")
		}
		w.mu.Lock()
		w.closed = time.Time{}
		w.mu.Unlock()
		for _, s := range *w.registered() {
			in.claims.RetryFreed(s.Shard)
		}
		took := awaitCondition(t, "n1 has the present shards", func() bool { return p.countOwned() == len(*w.registered()) })
		if took > minRetry/2 {
			t.Errorf("claimed after %s, want much less than %s", took, minRetry)
		}
	})
}
