package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/node/internal/lease"
	"github.com/lowkiq/lowkiq/queue"
	queuelease "github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

const ttl = 6 * time.Second

// process is one run of a node's process: instances that follow one another.
type process struct {
	w          *world
	name, boot string
	life       context.Context // ends when it crashes or has drained
	kill       context.CancelFunc
	stop       context.Context // ends when it is to drain
	drain      context.CancelFunc
	ended      chan struct{}
	absent     *AbsentInstances
	crashed    atomic.Bool
	cut        atomic.Int64 // its requests are lost until this time of the bubble, unix ns
	plan       atomic.Pointer[plan.Assignment]
	current    atomic.Pointer[instance]
}

// instance is what package node makes of a lease, its claims and its runners.
type instance struct {
	p          *process
	name       string
	claims     *Claims[*worker]
	keeper     *lease.Keeper
	work       context.Context // of handler calls
	cancel     context.CancelCauseFunc
	lanes      sync.WaitGroup
	subscribed sync.Map    // shards whose news arrive
	owned      atomic.Bool // each desired shard is owned, here or by a live instance
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
	go func() {
		defer close(p.ended)
		for n := 1; p.stop.Err() == nil; n++ {
			in := &instance{p: p, name: identity.Instance(p.name, p.boot, n)}
			if !in.live() {
				sleep(p.stop, 20*time.Millisecond+w.Below(ttl/10))
			}
		}
		p.kill()
	}()
}

// crash ends a process; its handler calls end with it.
func (p *process) crash() {
	p.w.mu.Lock()
	p.crashed.Store(true)
	maps.DeleteFunc(p.w.calls, func(_ lowkiq.Shard, k *worker) bool { return k.in.p == p })
	p.w.mu.Unlock()
	p.kill()
}

// owns is how many shards a process has runners for.
func (p *process) owns() int {
	if in := p.current.Load(); in != nil {
		return len(in.claims.All())
	}
	return 0
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// live is the order of things in an instance of package node.
func (in *instance) live() (lived bool) {
	p := in.p
	in.keeper = lease.NewKeeper(ttl, clock, func() []byte { return nil }, func(error) bool { return true }, slog.New(slog.DiscardHandler))
	if in.keeper.Take(p.stop, in.take) != nil {
		return false
	}
	in.work, in.cancel = context.WithCancelCause(p.life)
	defer in.cancel(nil)
	calls := lease.NewCalls(in.keeper, func() int64 { return 0 }, func(why error) { in.cancel(why) }, func() {})
	in.claims = New(in.facts(), p.absent)
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
	group.Go(func() { calls.EndWithLease(handedBack) })
	group.Go(func() { defer close(supervised); in.claims.Supervise(loops) })
	select {
	case <-p.stop.Done():
	case <-in.keeper.Lost():
		in.cancel(lowkiq.ErrLeaseLost)
		p.w.Trace("%s: %v", in.name, in.keeper.Why())
		p.absent.LeaseLost(ttl)
	}
	stopLoops()
	<-supervised
	in.claims.HandBack(in.lanes.Wait)
	close(handedBack)
	if p.stop.Err() != nil {
		stopKeeping()
		in.DropLease(p.life, in.name) //nolint:errcheck // it expires
	}
	return true
}

func (in *instance) facts() Process[*worker] {
	p, w := in.p, in.p.w
	return Process[*worker]{
		Instance: in.name, TTL: ttl, Redis: in, Log: slog.New(slog.DiscardHandler), Now: clock,
		Stop: p.stop, IO: p.life, Lost: in.keeper.Lost(), MayWork: in.keeper.Holds, LeaseMissing: in.keeper.Missing,
		Desired: func(was *Desired) *Desired {
			s := Situation{Clustered: w.cluster, Plan: p.plan.Load(), MayStart: in.keeper.Holds() && p.stop.Err() == nil}
			return s.Decide(p.name, was, in.claims.Held)
		},
		Placed: func() bool { return true }, Prunes: func() bool { return true },
		Shards: func() []*queue.Shard { return slices.Clone(w.shards) },
		Shard: func(s lowkiq.Shard) *queue.Shard {
			if s.Queue != "q" {
				return nil
			}
			return w.shards[s.Index]
		},
		Gone: func(identity.Process) bool { return false },
		// A process on the same host, of every second one, is proven to be gone.
		Ended: func(id identity.Identity) bool {
			other := w.ofBoot(id.Start)
			return other != nil && other.crashed.Load() && (len(other.boot)+len(p.boot))%2 == 0
		},
		Gossip: in.gossip, Start: in.run, OpFailed: func(string, any, error) {},
		Told: Told{
			Claimed: func(*queue.Claim, time.Duration) {}, Gone: func(lowkiq.Shard) {}, Left: func(time.Duration) {},
			Fenced: func(string) {}, AllOwned: in.owned.Store,
		},
	}
}

// gossip may take a living process for dead, unless leases end early: that both happen at once is a
// limit of I1.
func (in *instance) gossip(name string) (succeeded, departed bool) {
	w := in.p.w
	for _, p := range w.list() {
		if now := p.current.Load(); now != nil && identity.SameBoot(now.name, name) {
			succeeded = now.name != name
			departed = !w.wipes && !w.early && w.IntN(10) == 0
		} else if identity.SameBoot(identity.Instance(p.name, p.boot, 1), name) {
			departed = p.crashed.Load()
		}
	}
	return succeeded, departed
}

// ghost is a shard of a queue that no node handles, in the beginning owned by a process that has
// died.
var ghost = lowkiq.Shard{Queue: "ghost"}

func (in *instance) orphans() Orphans {
	n := len(in.p.w.shards)
	return Orphans{
		Leads: func(context.Context) ([]identity.Lease, bool) {
			return []identity.Lease{{Queues: map[string]int{"q": n}}}, true
		},
		Queues: func() map[string]int { return map[string]int{"q": n, ghost.Queue: 1} },
		Shards: func(context.Context, string) ([]*queue.Shard, error) { return []*queue.Shard{{Shard: ghost}}, nil },
		Found:  func(string, []*queue.Shard, bool) {}, Forget: func(string) {}, Resign: func() {},
	}
}

var errLost = fmt.Errorf("fake: %w", io.ErrUnexpectedEOF) // queue.Unreachable

// ask has a request executed, or not: it or its reply may be lost, it may come late, even after the
// caller has given up, and it may come twice. do is called with mu held.
func ask[T any](in *instance, ctx context.Context, do func() (T, error)) (answer T, err error) {
	w, p := in.p.w, in.p
	execute := func() (T, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return do()
	}
	again := func() { execute() } //nolint:errcheck // no caller waits
	fate := 100
	if w.asked.Add(1); !w.calm.Load() {
		fate = w.IntN(100)
	}
	time.Sleep(w.Below(5 * time.Millisecond))
	switch {
	case ctx.Err() != nil || p.life.Err() != nil:
		return answer, context.Canceled
	case time.Now().UnixNano() < p.cut.Load(), fate < 3: // the request is lost
	case fate < 8: // the reply is lost
		again()
	case fate < 10: // it comes after its caller has given up
		time.AfterFunc(time.Second+w.Below(2*ttl), again)
	case fate < 12: // it comes twice, and the second time late
		time.AfterFunc(w.Below(2*ttl), again)
		return execute()
	case fate < 14: // it comes twice, and the second reply is the answer
		again()
		return execute()
	case fate < 20: // it is slow
		if sleep(ctx, w.Below(2*time.Second)); ctx.Err() != nil {
			return answer, context.Cause(ctx)
		}
		return execute()
	default:
		return execute()
	}
	sleep(ctx, w.Below(time.Second))
	return answer, errLost
}

// tell is ask for requests without an answer.
func (in *instance) tell(ctx context.Context, do func() error) error {
	_, err := ask(in, ctx, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (w *world) living(instance string) bool { return time.Now().Before(w.leases[instance]) }

func (in *instance) take(ctx context.Context) error {
	w := in.p.w
	id, _ := json.Marshal(identity.Identity{Process: identity.Process{Host: "h", PID: 1, Start: in.p.boot}, TTL: ttl.Milliseconds()})
	return in.tell(ctx, func() error {
		if _, used := w.index[in.name]; used {
			return errors.New("the name was used")
		}
		w.Trace("%s takes its lease", in.name)
		w.index[in.name], w.leases[in.name] = id, time.Now().Add(ttl)
		return nil
	})
}

// Renew is the keeper's.
func (in *instance) Renew(ctx context.Context, _ []byte, _ time.Duration) error {
	return in.tell(ctx, func() error {
		if !in.p.w.living(in.name) {
			return queuelease.ErrGone
		}
		in.p.w.leases[in.name] = time.Now().Add(ttl)
		return nil
	})
}

func (in *instance) Owners(ctx context.Context, page []*queue.Shard) ([]queue.Owner, error) {
	return ask(in, ctx, func() (list []queue.Owner, _ error) {
		for _, s := range page {
			list = append(list, in.p.w.owners[s.Shard])
		}
		return list, nil
	})
}

func (in *instance) Claim(ctx context.Context, s *queue.Shard, name string, cause queue.Cause, seen queue.Owner) (*queue.Claim, error) {
	w := in.p.w
	return ask(in, ctx, func() (*queue.Claim, error) {
		owner := w.owners[s.Shard]
		if owner != seen || owner.Instance != "" && cause == queue.Fresh {
			return nil, queue.ErrHeld
		}
		w.Trace("%s claims %s (%s), was %v", name, s.Shard, cause, owner)
		fence := max(owner.Fence+1, time.Now().UnixMilli())
		w.owners[s.Shard] = queue.Owner{Instance: name, Fence: fence}
		return &queue.Claim{Shard: s, Instance: name, Fence: fence}, nil
	})
}

func (in *instance) Adopt(s *queue.Shard, name string, fence int64) *queue.Claim {
	return &queue.Claim{Shard: s, Instance: name, Fence: fence}
}

func (in *instance) Release(ctx context.Context, claim *queue.Claim) error {
	w, s := in.p.w, claim.Shard.Shard
	return in.tell(ctx, func() error {
		if refusal := w.fenced(claim); refusal != nil {
			return refusal
		}
		w.Trace("%s releases %s", in.name, s)
		w.owners[s] = queue.Owner{Fence: w.owners[s].Fence}
		for _, p := range w.all {
			if other := p.current.Load(); other != nil && (w.calm.Load() || w.IntN(4) > 0) {
				if _, subscribed := other.subscribed.Load(s); subscribed {
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

func (in *instance) RequestRelease(ctx context.Context, s *queue.Shard, owner queue.Owner) error {
	return in.tell(ctx, func() error {
		for _, p := range in.p.w.all {
			if other := p.current.Load(); other != nil && other.name == owner.Instance {
				go other.claims.Wanted(s.Shard, owner.Fence)
			}
		}
		return nil
	})
}

func (in *instance) Instance(ctx context.Context, name string) (queuelease.Instance, error) {
	return ask(in, ctx, func() (queuelease.Instance, error) { return in.p.w.entry(name), nil })
}

// entry is what the index and the leases say of an instance; mu is held.
func (w *world) entry(name string) queuelease.Instance {
	i := queuelease.Instance{Name: name, Identity: w.index[name]}
	if w.living(name) {
		i.Lease = []byte("{}")
	}
	return i
}

func (in *instance) Instances(ctx context.Context) ([]queuelease.Instance, error) {
	return ask(in, ctx, func() (list []queuelease.Instance, _ error) {
		for name := range in.p.w.index {
			list = append(list, in.p.w.entry(name))
		}
		return list, nil
	})
}

func (in *instance) EndLease(ctx context.Context, name string) error {
	return in.tell(ctx, func() error { delete(in.p.w.leases, name); return nil })
}

func (in *instance) DropLease(ctx context.Context, name string) error {
	return in.tell(ctx, func() error { delete(in.p.w.leases, name); delete(in.p.w.index, name); return nil })
}

func (in *instance) Subscribe(_ context.Context, page ...*queue.Shard) error {
	for _, s := range page {
		in.subscribed.Store(s.Shard, true)
		in.claims.Subscribed(s.Shard)
	}
	return nil
}

func (in *instance) Unsubscribe(_ context.Context, page ...*queue.Shard) error {
	for _, s := range page {
		in.subscribed.Delete(s.Shard)
	}
	return nil
}

// worker is a runner: it pops, looks at the lease, calls the handler and acknowledges, until it is
// stopped.
type worker struct {
	in     *instance
	claim  *queue.Claim
	work   context.Context
	cancel context.CancelCauseFunc
	begun  sync.Once
	halted context.Context // no more pops
	halt   context.CancelFunc
	idle   chan struct{}

	fenced, taken, outOfSync atomic.Bool
}

func (in *instance) run(claim *queue.Claim) *worker {
	k := &worker{in: in, claim: claim, idle: make(chan struct{})}
	k.work, k.cancel = context.WithCancelCause(in.work)
	k.halted, k.halt = context.WithCancel(k.work)
	return k
}

func (k *worker) Wake()                        { k.begun.Do(func() { k.in.lanes.Go(k.lane) }) }
func (k *worker) Subscribed()                  {}
func (k *worker) Fenced() (fenced, taken bool) { return k.fenced.Load(), k.taken.Load() }
func (k *worker) OutOfSync() bool              { return k.outOfSync.Load() }
func (k *worker) Close()                       { k.cancel(lowkiq.ErrShutdown) }

func (k *worker) Stop() <-chan struct{} {
	k.halt()
	k.begun.Do(func() { close(k.idle) })
	return k.idle
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

func (k *worker) lane() {
	defer close(k.idle)
	w := k.in.p.w
	for k.halted.Err() == nil {
		sleep(k.halted, w.Below(time.Second)) // no job is due
		if !k.ask(k.halted) || !k.in.keeper.Holds() || k.halted.Err() != nil {
			continue
		}
		w.begin(k)
		if sleep(k.work, w.Below(w.longest)); k.work.Err() != nil {
			time.Sleep(w.Below(ttl/5 - ttl/60)) // a handler has 0.2 ttl to return
		}
		w.end(k)
		k.ask(k.work)
	}
}

// ask is a pop or an ack: Redis executes it only if the claim is held.
func (k *worker) ask(ctx context.Context) (ok bool) {
	w := k.in.p.w
	refusal, err := ask(k.in, ctx, func() (error, error) { return w.fenced(k.claim), nil })
	switch {
	case err != nil:
		return false
	case refusal != nil:
		var by *queue.FencedError
		errors.As(refusal, &by)
		k.taken.Store(by.Owner.Fence != 0)
		k.fenced.Store(true)
		k.cancel(lowkiq.ErrLeaseLost)
	case !w.calm.Load() && w.IntN(200) == 0:
		k.outOfSync.Store(true)
	default:
		return true
	}
	k.halt()
	k.in.claims.Kick()
	return refusal == nil
}
