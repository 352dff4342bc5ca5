package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/node/internal/lease"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Random histories: three processes with their keepers and claims, a fake Redis that loses, delays and repeats
// requests and replies, workers that are crashed, cut off, drained, and plans that move shards. Time is a bubble's.
// In each history one process at a time handles a shard's jobs (I1); once faults have ended each shard is served by
// the process that is to serve it, and after a drain no shard has an owner; no goroutine is left.

const (
	ttl    = 6 * time.Second
	shards = 4
	chaos  = 12 * ttl // faults happen
	settle = 12 * ttl // no more faults: all is to be well within this time
)

var errLost = fmt.Errorf("fake: %w", io.ErrUnexpectedEOF) // queue.Unreachable

// rules are those that a mutation breaks.
type rules struct {
	decide         func(queue.Owner, string, holderState, shardState) step
	deafOwners     bool // RequestRelease tells nobody
	trustAnyway    bool // an instance does not notice that its lease is missing when claims are absent
	forgetLoss     bool // the next instance does not know that a lease was lost
	releaseEarly   bool // a runner is stopped before its call has returned
	succeedEarly   bool // the next instance begins before the calls of the last one have returned
	claimBlindly   bool // Redis grants a claim that has changed since it was read
	releaseBlindly bool // Redis takes a release of an earlier fence
	keepFenced     bool // a runner that was fenced, or is out of sync, stays
	needsWipe      bool // it matters only if Redis forgets everything
}

// world is a Redis and the processes around it.
type world struct {
	rules
	wipes   bool // Redis forgets everything once
	early   bool // leases end early
	cluster bool // a plan says who has which shard; else each process wants all

	mu      sync.Mutex
	random  *rand.Rand
	calm    bool
	owners  map[lowkiq.Shard]queue.Owner
	leases  map[string]time.Time // when they expire
	index   map[string][]byte
	calls   map[lowkiq.Shard]map[*worker]bool // handler calls that run
	wiped   time.Time
	plan    *plan.Assignment
	procs   map[string]*process // by node
	all     []*process
	wrong   string
	handled int
	asked   int           // requests to Redis
	call    time.Duration // a handler call takes as long at most
}

func (w *world) fail(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
	}
}

// draw is a random number below n; mu is not held.
func (w *world) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}

func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.draw(int(most-least)/1e6+1))*time.Millisecond
}

// process is one run of a node's process.
type process struct {
	w       *world
	name    string
	boot    string
	life    context.Context // ends when it crashes or has drained
	kill    context.CancelFunc
	stop    context.Context // ends when it is to drain
	drain   context.CancelFunc
	ended   chan struct{}
	absent  *AbsentInstances
	crashed atomic.Bool
	cut     atomic.Int64 // its requests are lost until this time of the bubble, unix ns
	plan    atomic.Pointer[plan.Assignment]
	current atomic.Pointer[incarnation]
}

// incarnation is one instance of a process.
type incarnation struct {
	p      *process
	name   string
	claims *Claims[*worker]
	keeper *lease.Keeper
	calls  *lease.Calls
	work   context.Context
	cancel context.CancelCauseFunc
	lanes  sync.WaitGroup
	heard  sync.Map    // shards whose news arrive
	owned  atomic.Bool // each desired shard is owned, here or by a live instance
}

func clock() time.Duration { return time.Duration(time.Now().UnixNano()) }

func (w *world) start(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &process{w: w, name: name, boot: fmt.Sprint("B", len(w.all)), ended: make(chan struct{}), absent: NewAbsentInstances(clock)}
	p.life, p.kill = context.WithCancel(context.Background())
	p.stop, p.drain = context.WithCancel(p.life)
	p.plan.Store(w.plan)
	w.procs[name] = p
	w.all = append(w.all, p)
	go p.run()
}

func (p *process) run() {
	defer close(p.ended)
	for n := 1; p.stop.Err() == nil; n++ {
		in := &incarnation{p: p, name: identity.Instance(p.name, p.boot, n)}
		if !in.live() {
			sleep(p.stop, p.w.between(20*time.Millisecond, 500*time.Millisecond))
		}
	}
	p.kill()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// live is the order of things in an instance of package node.
func (in *incarnation) live() (lived bool) {
	p := in.p
	in.keeper = lease.NewKeeper(ttl, clock, func() []byte { return []byte("{}") }, func(error) bool { return true }, slog.New(slog.DiscardHandler))
	id, _ := json.Marshal(identity.Identity{Process: identity.Process{Host: "h", PID: 1, Start: p.boot}, TTL: ttl.Milliseconds()})
	if in.keeper.Take(p.stop, func(ctx context.Context) error { return in.take(ctx, id) }) != nil {
		return false
	}
	in.work, in.cancel = context.WithCancelCause(p.life)
	defer in.cancel(nil)
	in.calls = lease.NewCalls(in.keeper, func() int64 { return 0 }, func(why error) { in.cancel(why) }, func() {})
	in.claims = New(in.process(), p.absent)
	in.claims.decide = p.w.decide
	p.current.Store(in)
	defer p.current.Store(nil)
	var group sync.WaitGroup
	defer group.Wait()
	keep, stopKeeping := context.WithCancel(p.life)
	defer stopKeeping()
	loops, stopLoops := context.WithCancel(p.life)
	group.Go(func() { in.keeper.Run(keep, in, func(context.Context) {}) })
	group.Go(func() { in.claims.ScanOrphans(loops, in.orphans()) })
	supervised, handedBack := make(chan struct{}), make(chan struct{})
	group.Go(func() { in.calls.EndWithLease(handedBack) })
	group.Go(func() { defer close(supervised); in.claims.Supervise(loops) })
	select {
	case <-p.stop.Done():
	case <-in.keeper.Lost():
		in.cancel(lowkiq.ErrLeaseLost)
		if !p.w.forgetLoss {
			p.absent.LeaseLost(ttl)
		}
	}
	stopLoops()
	<-supervised
	in.claims.HandBack(func() {
		if !p.w.succeedEarly {
			in.lanes.Wait()
		}
	})
	close(handedBack)
	if p.stop.Err() != nil {
		stopKeeping()
		in.DropLease(p.life, in.name) //nolint:errcheck // it expires
	}
	return true
}

func (in *incarnation) process() Process[*worker] {
	p, w := in.p, in.p.w
	all := make([]*queue.Shard, shards)
	for i := range all {
		all[i] = &queue.Shard{Shard: lowkiq.Shard{Queue: "q", Index: i}}
	}
	return Process[*worker]{
		Instance: in.name, TTL: ttl, Redis: in, Log: slog.New(slog.DiscardHandler), Now: clock,
		Stop: p.stop, IO: p.life, Lost: in.keeper.Lost(), MayWork: in.keeper.Holds, LeaseMissing: in.keeper.Missing,
		Desired: func(was *Desired) *Desired {
			s := Situation{Clustered: w.cluster, Plan: p.plan.Load(), MayStart: in.keeper.Holds() && p.stop.Err() == nil}
			return s.Decide(p.name, was, in.claims.Held)
		},
		Placed: func() bool { return true }, Prunes: func() bool { return true },
		Shards: func() []*queue.Shard { return slices.Clone(all) },
		Shard: func(s lowkiq.Shard) *queue.Shard {
			if s.Queue != "q" {
				return nil
			}
			return all[s.Index]
		},
		Gone: func(identity.Process) bool { return false },
		// A process on the same host, of every second one, is proven to be gone.
		Ended: func(id identity.Identity) bool {
			other := w.ofBoot(id.Start)
			return other != nil && other.crashed.Load() && (len(other.boot)+len(p.boot))%2 == 0
		},
		Gossip: in.gossip, Start: in.start, Trouble: func(string, any, error) {},
		Told: Told{
			Claimed: func(*queue.Claim, time.Duration) {}, Gone: func(lowkiq.Shard) {}, Left: func(time.Duration) {},
			Fenced: func(string) {}, AllOwned: in.owned.Store,
		},
	}
}

func (w *world) ofBoot(boot string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.all {
		if p.boot == boot {
			return p
		}
	}
	return nil
}

// gossip may take a living process for dead, unless leases end early: that both happen at once is a limit of I1.
func (in *incarnation) gossip(instance string) (succeeded, departed bool) {
	for _, p := range slices.Clone(in.p.w.procList()) {
		if now := p.current.Load(); now != nil && identity.SameBoot(now.name, instance) {
			succeeded = now.name != instance
			departed = !in.p.w.wipes && !in.p.w.early && in.p.w.draw(10) == 0
		} else if identity.SameBoot(identity.Instance(p.name, p.boot, 1), instance) {
			departed = p.crashed.Load()
		}
	}
	return succeeded, departed
}

func (w *world) procList() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

func (in *incarnation) orphans() Orphans {
	return Orphans{
		Leads: func(context.Context) ([]identity.Lease, bool) {
			return []identity.Lease{{Queues: map[string]int{"q": shards}}}, true
		},
		Queues: func() map[string]int { return map[string]int{"q": shards, "ghost": 1} },
		Shards: func(context.Context, string) ([]*queue.Shard, error) {
			return []*queue.Shard{{Shard: ghost}}, nil
		},
		Found: func(string, []*queue.Shard, bool) {}, Forget: func(string) {}, Resign: func() {},
	}
}

// ghost is a shard of a queue that no node handles, in the beginning owned by a process that has died.
var ghost = lowkiq.Shard{Queue: "ghost"}

// ask has a request executed, or not: it or its reply may be lost, it may come late, even after the caller has given
// up, and it may come twice. do is called with mu held.
func ask[T any](in *incarnation, ctx context.Context, do func() (T, error)) (answer T, err error) {
	w, p := in.p.w, in.p
	execute := func() (T, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return do()
	}
	again := func() { execute() } //nolint:errcheck // no caller waits
	w.mu.Lock()
	fate, calm := w.random.IntN(100), w.calm
	w.asked++
	w.mu.Unlock()
	if calm {
		fate = 100
	}
	if p.life.Err() == nil {
		sleep(ctx, w.between(0, 5*time.Millisecond))
	}
	switch {
	case ctx.Err() != nil || p.life.Err() != nil:
		return answer, context.Canceled
	case time.Now().UnixNano() < p.cut.Load(), fate < 3: // the request is lost
	case fate < 8: // the reply is lost
		again()
	case fate < 10: // it comes after its caller has given up
		time.AfterFunc(w.between(time.Second, 2*ttl), again)
	case fate < 12: // it comes twice, and the second time late
		time.AfterFunc(w.between(0, 2*ttl), again)
		return execute()
	case fate < 14: // it comes twice, and the second reply is the answer
		again()
		return execute()
	case fate < 20: // it is slow
		sleep(ctx, w.between(0, 2*time.Second))
		if ctx.Err() != nil {
			return answer, context.Cause(ctx)
		}
		return execute()
	default:
		return execute()
	}
	sleep(ctx, w.between(0, time.Second))
	return answer, errLost
}

// tell is ask for requests without an answer.
func (in *incarnation) tell(ctx context.Context, do func() error) error {
	_, err := ask(in, ctx, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (w *world) living(instance string) bool { return time.Now().Before(w.leases[instance]) }

func (in *incarnation) take(ctx context.Context, id []byte) error {
	w := in.p.w
	return in.tell(ctx, func() error {
		if _, used := w.index[in.name]; used {
			return errors.New("the name was used")
		}
		w.index[in.name], w.leases[in.name] = id, time.Now().Add(ttl)
		return nil
	})
}

// Renew is the keeper's.
func (in *incarnation) Renew(ctx context.Context, _ []byte, _ time.Duration) error {
	return in.tell(ctx, func() error {
		if !in.p.w.living(in.name) {
			return queue.ErrLeaseGone
		}
		in.p.w.leases[in.name] = time.Now().Add(ttl)
		return nil
	})
}

func (in *incarnation) Owners(ctx context.Context, page []*queue.Shard) ([]queue.Owner, error) {
	return ask(in, ctx, func() (list []queue.Owner, _ error) {
		for _, s := range page {
			list = append(list, in.p.w.owners[s.Shard])
		}
		return list, nil
	})
}

func (in *incarnation) Claim(ctx context.Context, s *queue.Shard, instance string, cause queue.Cause, seen queue.Owner) (*queue.Claim, error) {
	w := in.p.w
	return ask(in, ctx, func() (*queue.Claim, error) {
		owner := w.owners[s.Shard]
		if !w.claimBlindly && (owner != seen || owner.Instance != "" && cause == queue.Fresh) {
			return nil, queue.ErrHeld
		}
		fence := max(owner.Fence+1, time.Now().UnixMilli())
		w.owners[s.Shard] = queue.Owner{Instance: instance, Fence: fence}
		return &queue.Claim{Shard: s, Instance: instance, Fence: fence}, nil
	})
}

func (in *incarnation) Adopt(s *queue.Shard, instance string, fence int64) *queue.Claim {
	return &queue.Claim{Shard: s, Instance: instance, Fence: fence}
}

func (in *incarnation) Release(ctx context.Context, claim *queue.Claim) error {
	w, s := in.p.w, claim.Shard.Shard
	return in.tell(ctx, func() error {
		if err := w.fenced(claim); err != nil && !w.releaseBlindly {
			return err
		}
		w.owners[s] = queue.Owner{Fence: w.owners[s].Fence}
		for _, p := range w.all {
			if other := p.current.Load(); other != nil && (w.calm || w.random.IntN(4) > 0) {
				if _, listens := other.heard.Load(s); listens {
					other.claims.Freed(s)
				}
			}
		}
		return nil
	})
}

// fenced is Redis's answer to a claim that is not held; mu is held.
func (w *world) fenced(claim *queue.Claim) error {
	if owner := w.owners[claim.Shard.Shard]; owner.Instance != claim.Instance || owner.Fence != claim.Fence {
		return &queue.FencedError{Owner: owner}
	}
	return nil
}

func (in *incarnation) RequestRelease(ctx context.Context, s *queue.Shard, owner queue.Owner) error {
	w := in.p.w
	return in.tell(ctx, func() error {
		for _, p := range w.all {
			if other := p.current.Load(); other != nil && other.name == owner.Instance && !w.deafOwners {
				go other.claims.Wanted(s.Shard, owner.Fence)
			}
		}
		return nil
	})
}

func (in *incarnation) Instance(ctx context.Context, name string) (queue.Instance, error) {
	w := in.p.w
	i, err := ask(in, ctx, func() (queue.Instance, error) { return w.instance(name), nil })
	if name == in.name && w.trustAnyway {
		i.Lease = []byte("{}")
	}
	return i, err
}

func (w *world) instance(name string) queue.Instance {
	i := queue.Instance{Name: name, Identity: w.index[name]}
	if w.living(name) {
		i.Lease = []byte("{}")
	}
	return i
}

func (in *incarnation) Instances(ctx context.Context) ([]queue.Instance, error) {
	return ask(in, ctx, func() (list []queue.Instance, _ error) {
		for _, name := range slices.Sorted(maps.Keys(in.p.w.index)) {
			list = append(list, in.p.w.instance(name))
		}
		return list, nil
	})
}

func (in *incarnation) EndLease(ctx context.Context, name string) error {
	return in.tell(ctx, func() error { delete(in.p.w.leases, name); return nil })
}

func (in *incarnation) DropLease(ctx context.Context, name string) error {
	return in.tell(ctx, func() error { delete(in.p.w.leases, name); delete(in.p.w.index, name); return nil })
}

func (in *incarnation) Subscribe(_ context.Context, page ...*queue.Shard) error {
	for _, s := range page {
		in.heard.Store(s.Shard, true)
		in.claims.Subscribed(s.Shard)
	}
	return nil
}

func (in *incarnation) Unsubscribe(_ context.Context, page ...*queue.Shard) error {
	for _, s := range page {
		in.heard.Delete(s.Shard)
	}
	return nil
}

// worker is a runner: it pops, looks at the lease, calls the handler and acknowledges, until it is stopped.
type worker struct {
	in     *incarnation
	claim  *queue.Claim
	work   context.Context
	cancel context.CancelCauseFunc
	begun  sync.Once
	halted context.Context // no more pops
	halt   context.CancelFunc
	idle   chan struct{}

	mu                       sync.Mutex
	fenced, taken, outOfSync bool
}

func (in *incarnation) start(claim *queue.Claim) *worker {
	k := &worker{in: in, claim: claim, idle: make(chan struct{})}
	k.work, k.cancel = context.WithCancelCause(in.work)
	k.halted, k.halt = context.WithCancel(k.work)
	return k
}

func (k *worker) Wake() { k.begun.Do(func() { k.in.lanes.Go(k.lane) }) }

func (k *worker) Subscribed() {}

func (k *worker) Stop() <-chan struct{} {
	k.halt()
	k.begun.Do(func() { close(k.idle) })
	if k.in.p.w.releaseEarly {
		early := make(chan struct{})
		close(early)
		return early
	}
	return k.idle
}

func (k *worker) Fenced() (fenced, taken bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fenced && !k.in.p.w.keepFenced, k.taken
}

func (k *worker) OutOfSync() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.outOfSync && !k.in.p.w.keepFenced
}

func (k *worker) Close() { k.cancel(lowkiq.ErrShutdown) }

func (k *worker) lane() {
	defer close(k.idle)
	w := k.in.p.w
	for k.halted.Err() == nil {
		sleep(k.halted, w.between(0, time.Second)) // no job is due
		if !k.ask(k.halted) || !k.in.keeper.Holds() || k.halted.Err() != nil {
			continue
		}
		w.begin(k)
		sleep(k.work, w.between(0, w.call))
		if k.work.Err() != nil {
			sleep(k.in.p.life, w.between(0, ttl/5-ttl/60-time.Millisecond)) // a handler has 0.2 ttl to return
		}
		w.end(k)
		k.ask(k.work)
	}
}

// ask is a pop or an ack: Redis executes it only if the claim is held.
func (k *worker) ask(ctx context.Context) (ok bool) {
	fenced, err := ask(k.in, ctx, func() (error, error) { return k.in.p.w.fenced(k.claim), nil })
	if err != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if fenced != nil && !k.fenced {
		var refusal *queue.FencedError
		errors.As(fenced, &refusal)
		k.fenced, k.taken = true, refusal.Owner.Fence != 0
		k.cancel(lowkiq.ErrLeaseLost)
		k.halt()
		k.in.claims.Kick()
	}
	if fenced == nil && !k.in.p.w.isCalm() && k.in.p.w.draw(200) == 0 {
		k.outOfSync = true
		k.halt()
		k.in.claims.Kick()
	}
	return fenced == nil
}

func (k *worker) Release(ctx context.Context) error {
	for {
		err := k.in.Release(ctx, k.claim)
		if err == nil || !queue.Transient(err) || ctx.Err() != nil {
			return err
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

func (w *world) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// begin and end are of handler calls.
func (w *world) begin(k *worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := k.claim.Shard.Shard
	if k.in.p.crashed.Load() {
		return
	}
	for other := range w.calls[s] {
		w.fail("I1: a handler call of shard %s begins in %s with fence %d, while one runs in %s with fence %d",
			s, k.in.name, k.claim.Fence, other.in.name, other.claim.Fence)
	}
	if w.calls[s] == nil {
		w.calls[s] = map[*worker]bool{}
	}
	w.calls[s][k] = true
	w.handled++
}

func (w *world) end(k *worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls[k.claim.Shard.Shard], k)
}

// crash ends a process; its handler calls end with it.
func (p *process) crash() {
	p.w.mu.Lock()
	p.crashed.Store(true)
	for _, calls := range p.w.calls {
		maps.DeleteFunc(calls, func(k *worker, _ bool) bool { return k.in.p == p })
	}
	p.w.mu.Unlock()
	p.kill()
}

var nodes = []string{"n1", "n2", "n3"}

// replan gives the shards to some of the nodes, which learn of it early or late.
func (w *world) replan() {
	a := &plan.Assignment{Nodes: nodes, Queues: []plan.Placement{{Queue: "q"}}}
	for range shards {
		a.Queues[0].Owners = append(a.Queues[0].Owners, int32(w.draw(len(nodes))))
	}
	w.mu.Lock()
	if w.plan != nil {
		a.Generation.Index = w.plan.Generation.Index + 1
	}
	w.plan = a
	w.mu.Unlock()
	for _, p := range w.procList() {
		time.AfterFunc(w.between(0, ttl/2), func() {
			if p.plan.Load().Generation.Index < a.Generation.Index {
				p.plan.Store(a)
			}
		})
	}
}

// wipe has Redis forget everything, if all processes have a lease and know it: a process that takes its first lease
// right after that is a limit of I1.
func (w *world) wipe() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.procs {
		if in := p.current.Load(); p.life.Err() != nil || in == nil || !in.keeper.Holds() || !w.living(in.name) {
			return
		}
	}
	w.wiped, w.wipes = time.Now(), false
	clear(w.owners)
	clear(w.leases)
	clear(w.index)
}

func (w *world) sinceWipe() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.wiped)
}

// disturb is one fault.
func (w *world) disturb(restart func(name string)) {
	p := w.process(nodes[w.draw(len(nodes))])
	switch fault := w.draw(12); {
	case p == nil:
	case fault < 3:
		w.replan()
	case fault < 7:
		p.cut.Store(time.Now().Add(w.between(0, 2*ttl)).UnixNano())
	case fault < 8:
		p.crash()
		restart(p.name)
	case fault < 9:
		p.drain()
		restart(p.name)
	case fault < 10 && w.wipes:
		w.wipe()
	case w.early:
		if in := p.current.Load(); in != nil {
			w.mu.Lock()
			delete(w.leases, in.name)
			w.mu.Unlock()
		}
	}
}

func (w *world) process(name string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[name]
}

func newWorld(seed uint64, broken rules) *world {
	w := &world{
		rules: broken, random: rand.New(rand.NewPCG(seed, 1)), wipes: seed%4 == 1, early: seed%4 == 2, cluster: seed%8 < 6,
		owners: map[lowkiq.Shard]queue.Owner{ghost: {Instance: "n9/X.1", Fence: 7}}, leases: map[string]time.Time{}, index: map[string][]byte{},
		calls: map[lowkiq.Shard]map[*worker]bool{}, procs: map[string]*process{}, call: 3 * time.Second,
	}
	if w.decide == nil {
		w.decide = decideClaim
	}
	return w
}

// history is one run; it returns what went wrong.
func history(t *testing.T, seed uint64, broken rules) (wrong string, handled int) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(seed, broken)
		w.replan()
		var restarts sync.WaitGroup
		restart := func(name string) {
			w.mu.Lock()
			delete(w.procs, name)
			w.mu.Unlock()
			restarts.Go(func() {
				time.Sleep(w.between(0, ttl))
				for w.sinceWipe() < ttl {
					time.Sleep(ttl / 6)
				}
				w.start(name)
			})
		}
		for _, name := range nodes {
			restart(name)
		}
		for begun := time.Now(); time.Since(begun) < chaos; {
			time.Sleep(w.between(100*time.Millisecond, 3*time.Second))
			w.disturb(restart)
		}
		restarts.Wait()
		w.replan()
		w.mu.Lock()
		w.calm = true
		for _, p := range w.procs {
			p.cut.Store(0)
		}
		w.mu.Unlock()
		end := time.Now().Add(settle)
		for w.amiss() != "" && time.Now().Before(end) {
			time.Sleep(ttl / 6)
		}
		if amiss := w.amiss(); amiss != "" {
			w.mu.Lock()
			w.fail("it waits for ever: %s after %s without faults", amiss, settle)
			w.mu.Unlock()
		}
		for _, p := range w.procs {
			p.drain()
		}
		for _, p := range w.procList() {
			<-p.ended
		}
		synctest.Wait()
		for s, owner := range w.owners {
			if owner.Instance != "" && w.wrong == "" {
				w.fail("after all drained %s owns %s", owner.Instance, s)
			}
		}
		wrong, handled = w.wrong, w.handled
	})
	return wrong, handled
}

// amiss is what is not as it should be without faults, "" for nothing.
func (w *world) amiss() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if owner := w.owners[ghost]; owner.Instance != "" {
		return fmt.Sprintf("%s owns a shard that no node handles", owner.Instance)
	}
	for i := range shards {
		s := lowkiq.Shard{Queue: "q", Index: i}
		owner, served := w.owners[s], false
		for name, p := range w.procs {
			in := p.current.Load()
			if in == nil || in.name != owner.Instance || w.cluster && w.plan.Owner(s) != name {
				continue
			}
			o := in.claims.Get(s)
			served = o != nil && o.Claim.Fence == owner.Fence && o.Runner.halted.Err() == nil
		}
		if !served {
			return fmt.Sprintf("shard %s, of %s by Redis and of %s by the plan, is not served", s, owner.Instance, w.plan.Owner(s))
		}
	}
	for name, p := range w.procs {
		in := p.current.Load()
		if in == nil || !in.owned.Load() {
			return fmt.Sprintf("%s does not say that all its shards are owned", name)
		}
		for i := range shards {
			s := lowkiq.Shard{Queue: "q", Index: i}
			if _, listens := in.heard.Load(s); listens != (!w.cluster || w.plan.Owner(s) == name) {
				return fmt.Sprintf("%s is subscribed to %s: %v", name, s, listens)
			}
		}
	}
	return ""
}

// TestHistories looks for a history that breaks a promise. LOWKIQ_HISTORIES says how many to try.
func TestHistories(t *testing.T) {
	t.Parallel()
	count := 150
	if n, err := strconv.Atoi(os.Getenv("LOWKIQ_HISTORIES")); err == nil {
		count = n
	}
	total := 0
	for seed := range uint64(count) {
		wrong, handled := history(t, seed, rules{})
		if wrong != "" {
			t.Fatalf("history %d: %s", seed, wrong)
		}
		total += handled
	}
	t.Logf("%d histories, %d handler calls", count, total)
}

// TestHistoriesFindMutations breaks one rule at a time.
func TestHistoriesFindMutations(t *testing.T) {
	t.Parallel()
	deciding := func(change func(owner queue.Owner, me string, holder holderState, shard shardState) step) rules {
		return rules{decide: change}
	}
	for name, broken := range map[string]rules{
		"a living owner is seized": deciding(func(owner queue.Owner, me string, holder holderState, shard shardState) step {
			if was := decideClaim(owner, me, holder, shard); was != wait || owner.Instance == "" {
				return was
			}
			return seize
		}),
		"a missing lease is a proof": deciding(func(owner queue.Owner, me string, holder holderState, shard shardState) step {
			holder.missingFor = time.Hour
			return decideClaim(owner, me, holder, shard)
		}),
		"gossip is a proof": deciding(func(owner queue.Owner, me string, holder holderState, shard shardState) step {
			holder.proven = holder.proven || holder.departed
			return decideClaim(owner, me, holder, shard)
		}),
		"an absent claim is free": deciding(func(owner queue.Owner, me string, holder holderState, shard shardState) step {
			shard.absentHeld = false
			return decideClaim(owner, me, holder, shard)
		}),
		"a dead owner is waited for": deciding(func(owner queue.Owner, me string, holder holderState, shard shardState) step {
			if was := decideClaim(owner, me, holder, shard); was != seize {
				return was
			}
			return wait
		}),
		"an owner that does not know it is waited for": deciding(func(owner queue.Owner, me string, holder holderState, shard shardState) step {
			if was := decideClaim(owner, me, holder, shard); was != self {
				return was
			}
			return wait
		}),
		"requests for a release are not heeded":   {deafOwners: true},
		"a missing lease is not looked for":       {trustAnyway: true, needsWipe: true},
		"the loss of a lease is forgotten":        {forgetLoss: true, needsWipe: true},
		"a shard is released while a call runs":   {releaseEarly: true},
		"the next instance begins while one runs": {succeedEarly: true},
		"a claim ignores what was read":           {claimBlindly: true},
		"a release ignores the fence":             {releaseBlindly: true},
		"a runner without a claim stays":          {keepFenced: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3000) {
				if broken.needsWipe && seed%4 != 1 {
					continue
				}
				if wrong, _ := history(t, seed, broken); wrong != "" {
					t.Logf("found by history %d: %s", seed, wrong)
					return
				}
			}
			t.Error("not found in 3,000 histories")
		})
	}
}

// calmly runs processes without faults until the test's end.
func calmly(t *testing.T, run func(w *world, await func(what string, holds func() bool) time.Duration)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(7, rules{})
		w.calm = true
		w.replan()
		run(w, func(what string, holds func() bool) time.Duration {
			t.Helper()
			for begun := time.Now(); ; time.Sleep(time.Millisecond) {
				if took := time.Since(begun); holds() || took > time.Minute {
					if took > time.Minute {
						t.Error("not within a minute: " + what)
					}
					return took
				}
			}
		})
		for _, p := range w.procList() {
			p.drain()
			<-p.ended
		}
	})
}

// owns is how many shards a process has runners for.
func (p *process) owns() int {
	if in := p.current.Load(); in != nil {
		return len(in.claims.All())
	}
	return 0
}

// TestTakeoverByWakeUp: a release wakes those who wait for the shard; they need not look again by themselves.
func TestTakeoverByWakeUp(t *testing.T) {
	calmly(t, func(w *world, await func(string, func() bool) time.Duration) {
		w.start("n1")
		first := w.process("n1")
		await("n1 has all shards", func() bool { return first.owns() == shards })
		w.start("n2")
		second := w.process("n2")
		await("n2 waits", func() bool { in := second.current.Load(); return in != nil && in.owned.Load() })
		first.drain()
		await("n1 has released them", func() bool { return first.owns() == 0 })
		if took := await("n2 has all shards", func() bool { return second.owns() == shards }); took > retryLeast/2 {
			t.Errorf("taken over after %s, want much less than %s", took, retryLeast)
		}
	})
}

// TestFencedShardsWaitQuietly: shards whose claims are gone wait for their handlers without keeping the supervisor, and with
// it Redis, busy.
func TestFencedShardsWaitQuietly(t *testing.T) {
	calmly(t, func(w *world, await func(string, func() bool) time.Duration) {
		w.call = time.Hour
		w.start("n1")
		p := w.process("n1")
		await("n1 has all shards", func() bool { return p.owns() == shards })
		time.Sleep(2 * time.Second) // by then all have a handler call
		in := p.current.Load()
		for _, o := range in.claims.All() {
			o.Runner.mu.Lock()
			o.Runner.fenced = true
			o.Runner.mu.Unlock()
		}
		in.claims.Kick()
		asked := func() int { w.mu.Lock(); defer w.mu.Unlock(); return w.asked }
		before := asked()
		time.Sleep(10 * time.Second)
		if got := asked() - before; got > 30 {
			t.Errorf("%d requests in 10 s, want the ten or so of the lease and the scanner", got)
		}
	})
}

// TestDrainWithoutRedis: a process that is told to stop while it gives shards back, and while Redis is away, does not wait
// for Redis.
func TestDrainWithoutRedis(t *testing.T) {
	calmly(t, func(w *world, await func(string, func() bool) time.Duration) {
		w.start("n1")
		p := w.process("n1")
		await("n1 has all shards", func() bool { return p.owns() == shards })
		in := p.current.Load()
		p.cut.Store(time.Now().Add(time.Hour).UnixNano())
		for _, o := range in.claims.All() {
			o.Runner.mu.Lock()
			o.Runner.outOfSync = true
			o.Runner.mu.Unlock()
		}
		in.claims.Kick()
		time.Sleep(time.Second) // now they are leaving
		begun := time.Now()
		p.drain()
		<-p.ended
		if took := time.Since(begun); took > 2*releasePatience {
			t.Errorf("the process has ended after %s, want %s or little more", took, releasePatience)
		}
	})
}

// TestResync: a shard that is out of sync with Redis is claimed anew at once, and after a rest when that happens again soon.
func TestResync(t *testing.T) {
	calmly(t, func(w *world, await func(string, func() bool) time.Duration) {
		w.start("n1")
		p, s := w.process("n1"), lowkiq.Shard{Queue: "q"}
		await("n1 has all shards", func() bool { return p.owns() == shards })
		claims := p.current.Load().claims
		for i, rest := range []time.Duration{0, resyncPause, resyncPause} {
			was := claims.Get(s)
			was.Runner.mu.Lock()
			was.Runner.outOfSync = true
			was.Runner.mu.Unlock()
			claims.Kick()
			took := await("the shard is claimed anew", func() bool { now := claims.Get(s); return now != nil && now != was })
			if took < rest || took > rest+4*time.Second { // a handler call takes 3 s
				t.Errorf("claimed anew %s after the disagreement %d, want a rest of %s", took, i, rest)
			}
		}
	})
}
