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
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/node/internal/lease"
	queuelease "github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

const ttl = 6 * time.Second

// process is one run of a node's process. It has one instance after another.
type process struct {
	w          *world
	name, boot string
	life       context.Context // ends when the process crashes or has drained
	kill       context.CancelFunc
	stop       context.Context // ends when the process must drain
	drain      context.CancelFunc
	ended      chan struct{}
	absent     *AbsentInstances
	crashed    atomic.Bool
	cut        atomic.Int64 // its requests are lost until this time, in unix ns of the bubble
	plan       atomic.Pointer[plan.Assignment]
	registered atomic.Pointer[[]*protocol.Shard] // as this process has read them
	bound      atomic.Pointer[[]*protocol.Shard] // the shards that it works on if they are registered
	current    atomic.Pointer[instance]
}

// instance joins a lease, its claims and its runners as package node does.
type instance struct {
	p          *process
	name       string
	claims     *Claims[*worker]
	keeper     *lease.Keeper
	work       context.Context // for handler calls
	cancel     context.CancelCauseFunc
	lanes      sync.WaitGroup
	subscribed sync.Map    // shards whose wake-ups arrive
	owned      atomic.Bool // whether each desired shard is owned, here or by a live instance
}

func clock() time.Duration { return time.Duration(time.Now().UnixNano()) }

func (w *world) start(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &process{w: w, name: name, boot: fmt.Sprint("B", len(w.all)), ended: make(chan struct{}), absent: NewAbsentInstances(clock)}
	p.life, p.kill = context.WithCancel(context.Background())
	p.stop, p.drain = context.WithCancel(p.life)
	p.plan.Store(w.plan)
	p.registered.Store(w.shards)
	p.bound.Store(w.shards)
	w.procs[name] = p
	w.all = append(w.all, p)
	go func() {
		defer close(p.ended)
		for n := 1; p.stop.Err() == nil; n++ {
			in := &instance{p: p, name: identity.InstanceName(p.name, p.boot, n)}
			if !in.live() {
				sleepFor(p.stop, 20*time.Millisecond+w.Below(ttl/10))
			}
		}
		p.kill()
	}()
}

// crash ends a process and its handler calls.
func (p *process) crash() {
	p.w.mu.Lock()
	p.crashed.Store(true)
	maps.DeleteFunc(p.w.calls, func(_ *protocol.Shard, k *worker) bool { return k.in.p == p })
	p.w.mu.Unlock()
	p.kill()
}

// countOwned returns the number of shards with a runner.
func (p *process) countOwned() int {
	if in := p.current.Load(); in != nil {
		return len(in.claims.All())
	}
	return 0
}

func sleepFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// live runs an instance in the same order as package node.
func (in *instance) live() (lived bool) {
	p := in.p
	in.keeper = lease.NewKeeper(ttl, clock, func() []byte { return nil }, func(error) bool { return true }, slog.New(slog.DiscardHandler))
	if in.keeper.Take(p.stop, in.take) != nil {
		return false
	}
	in.work, in.cancel = context.WithCancelCause(p.life)
	defer in.cancel(nil)
	calls := lease.NewCalls(in.keeper, func() int64 { return 0 }, func(why error) { in.cancel(why) }, func() {})
	in.claims = New(in.claimsProcess(), p.absent)
	p.current.Store(in)
	defer p.current.Store(nil)
	var group sync.WaitGroup
	defer group.Wait()
	keep, stopKeeping := context.WithCancel(p.life)
	defer stopKeeping()
	loops, stopLoops := context.WithCancel(p.life)
	group.Go(func() { in.keeper.KeepRenewing(keep, in, func(context.Context) { in.rebind() }) })
	group.Go(func() { in.claims.ScanOrphans(loops, in.orphans()) })
	supervised, handedBack := make(chan struct{}), make(chan struct{})
	group.Go(func() { calls.WatchLease(handedBack) })
	group.Go(func() { defer close(supervised); in.claims.Supervise(loops) })
	select {
	case <-p.stop.Done():
	case <-in.keeper.Lost():
		in.cancel(lowkiq.ErrLeaseLost)
		p.w.Trace("%s: %v", in.name, in.keeper.LostReason())
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

// rebind follows a change of the queue's shards, as package node does after each renewal.
func (in *instance) rebind() {
	p := in.p
	now := p.w.registered()
	if p.registered.Store(now); p.bound.Load() == now {
		return
	}
	if !in.claims.OwnsAny("q") {
		p.bound.Store(now)
		p.absent.ClearLastOwners("q")
	}
	in.claims.Kick()
}

// present returns the shards of the queue, nil while the process works on former shards.
func (p *process) present() []*protocol.Shard {
	if bound := p.bound.Load(); bound == p.registered.Load() {
		return *bound
	}
	return nil
}

func (in *instance) claimsProcess() Process[*worker] {
	p, w := in.p, in.p.w
	return Process[*worker]{
		Instance: in.name, TTL: ttl, Redis: in, Log: slog.New(slog.DiscardHandler), Now: clock,
		Stop: p.stop, IO: p.life, Lost: in.keeper.Lost(), MayWork: in.keeper.Holds, LeaseMissing: in.keeper.LeaseMissing,
		Desired: func(was *Desired) *Desired {
			s := Situation{Clustered: w.cluster, Plan: p.plan.Load(), MayStart: in.keeper.Holds() && p.stop.Err() == nil}
			return s.DesiredShards(p.name, was, in.claims.OwnedSet)
		},
		Placed: func() bool { return true }, Prunes: func() bool { return true },
		Shards: func() []*protocol.Shard { return slices.Clone(p.present()) },
		Shard: func(s lowkiq.Shard) *protocol.Shard {
			if all := p.present(); s.Queue == "q" && s.Index < len(all) {
				return all[s.Index]
			}
			return nil
		},
		IsGone: func(identity.Process) bool { return false },
		// Processes know the death of every second process, as if it ran on the same host.
		IsGoneWithChildren: func(id identity.Identity) bool {
			other := w.ofBoot(id.Start)
			return other != nil && other.crashed.Load() && (len(other.boot)+len(p.boot))%2 == 0
		},
		Gossip: in.gossip, Start: in.run, OpFailed: func(op string, _ any, err error) {
			if errors.Is(err, protocol.ErrMoving) {
				w.Fault("%s: reported although it only has to wait: %v", op, err)
			}
		},
		Observer: Observer{
			Claimed: func(*protocol.Claim, time.Duration) {}, Removed: func(lowkiq.Shard) {
				if p.present() == nil {
					in.keeper.RenewNow()
				}
			}, HandedBack: func(time.Duration) {},
			Fenced: func(string) {}, AllOwned: in.owned.Store,
		},
	}
}

// gossip says at times that a living process is dead, unless leases end early in this history. Both
// together are a limit of I1.
func (in *instance) gossip(name string) (succeeded, departed bool) {
	w := in.p.w
	for _, p := range w.processes() {
		if now := p.current.Load(); now != nil && identity.SameBoot(now.name, name) {
			succeeded = now.name != name
			departed = !w.wipes && !w.early && w.IntN(10) == 0
		} else if identity.SameBoot(identity.InstanceName(p.name, p.boot, 1), name) {
			departed = p.crashed.Load()
		}
	}
	return succeeded, departed
}

// ghost is a shard of a queue that no node handles. A dead process owns it in the beginning.
var ghost = &protocol.Shard{Shard: lowkiq.Shard{Queue: "ghost"}}

func (in *instance) orphans() OrphanScan {
	n := func() int { return len(*in.p.w.registered()) }
	return OrphanScan{
		Leads: func(context.Context) ([]identity.Lease, bool) {
			return []identity.Lease{{Queues: map[string]int{"q": n()}}}, true
		},
		Queues: func() map[string]int { return map[string]int{"q": n(), ghost.Queue: 1} },
		Shards: func(_ context.Context, name string) ([]*protocol.Shard, error) {
			if name == "q" { // its number of shards has just changed
				return nil, nil
			}
			return []*protocol.Shard{ghost}, nil
		},
		Found: func(string, []*protocol.Shard, bool) {}, Forget: func(string) {}, Scanned: func() {}, Resign: func() {},
	}
}

var errLost = fmt.Errorf("fake: %w", io.ErrUnexpectedEOF) // satisfies protocol.Unreachable

// sendFaulty executes a request, or does not. The request or its reply may be lost. It may be
// executed late, even after the caller has given up, and it may be executed twice. do is called with
// mu held.
func sendFaulty[T any](in *instance, ctx context.Context, do func() (T, error)) (answer T, err error) {
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
		if sleepFor(ctx, w.Below(2*time.Second)); ctx.Err() != nil {
			return answer, context.Cause(ctx)
		}
		return execute()
	default:
		return execute()
	}
	sleepFor(ctx, w.Below(time.Second))
	return answer, errLost
}

// sendRequest is sendFaulty for requests without an answer.
func (in *instance) sendRequest(ctx context.Context, do func() error) error {
	_, err := sendFaulty(in, ctx, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (w *world) isLeased(instance string) bool { return time.Now().Before(w.leases[instance]) }

func (in *instance) take(ctx context.Context) error {
	w := in.p.w
	id, _ := json.Marshal(identity.Identity{Process: identity.Process{Host: "h", PID: 1, Start: in.p.boot}, TTL: ttl.Milliseconds()})
	return in.sendRequest(ctx, func() error {
		if _, used := w.index[in.name]; used {
			return errors.New("the name was used")
		}
		w.Trace("%s takes its lease", in.name)
		w.index[in.name], w.leases[in.name] = id, time.Now().Add(ttl)
		return nil
	})
}

// Renew renews the lease for the keeper.
func (in *instance) Renew(ctx context.Context, _ []byte, _ time.Duration) error {
	return in.sendRequest(ctx, func() error {
		if !in.p.w.isLeased(in.name) {
			return queuelease.ErrGone
		}
		in.p.w.leases[in.name] = time.Now().Add(ttl)
		return nil
	})
}

func (in *instance) Owners(ctx context.Context, page []*protocol.Shard) ([]protocol.Owner, error) {
	return sendFaulty(in, ctx, func() (list []protocol.Owner, _ error) {
		for _, s := range page {
			list = append(list, in.p.w.owners[s])
		}
		return list, nil
	})
}

func (in *instance) Claim(ctx context.Context, s *protocol.Shard, name string, cause protocol.Cause, seen protocol.Owner) (*protocol.Claim, error) {
	w := in.p.w
	return sendFaulty(in, ctx, func() (*protocol.Claim, error) {
		owner := w.owners[s]
		if w.gone[s] {
			return nil, errors.New("the shard is deleted")
		}
		if s != ghost && time.Now().Before(w.closed) {
			return nil, fmt.Errorf("shard %s: %w", s.Shard, protocol.ErrMoving)
		}
		if owner != seen || owner.Instance != "" && cause == protocol.Fresh {
			return nil, protocol.ErrHeld
		}
		w.Trace("%s claims %s (%s), was %v", name, s.Shard, cause, owner)
		fence := max(owner.Fence+1, time.Now().UnixMilli())
		w.owners[s] = protocol.Owner{Instance: name, Fence: fence}
		return &protocol.Claim{Shard: s, Instance: name, Fence: fence}, nil
	})
}

func (in *instance) Adopt(s *protocol.Shard, name string, fence int64) *protocol.Claim {
	return &protocol.Claim{Shard: s, Instance: name, Fence: fence}
}

func (in *instance) Release(ctx context.Context, claim *protocol.Claim) error {
	w, s := in.p.w, claim.Shard
	return in.sendRequest(ctx, func() error {
		if refusal := w.fenced(claim); refusal != nil {
			return refusal
		}
		w.Trace("%s releases %s", in.name, s.Shard)
		w.owners[s] = protocol.Owner{Fence: w.owners[s].Fence}
		for _, p := range w.all {
			if other := p.current.Load(); other != nil && (w.calm.Load() || w.IntN(4) > 0) {
				if _, subscribed := other.subscribed.Load(s); subscribed {
					other.claims.RetryFreed(s.Shard)
				}
			}
		}
		return nil
	})
}

// fenced returns Redis's refusal if a claim is not held. mu must be held.
func (w *world) fenced(claim *protocol.Claim) error {
	owner := w.owners[claim.Shard]
	if w.gone[claim.Shard] {
		owner = protocol.Owner{}
	}
	if owner.Instance != claim.Instance || owner.Fence != claim.Fence {
		return &protocol.FencedError{Owner: owner}
	}
	return nil
}

func (in *instance) RequestRelease(ctx context.Context, s *protocol.Shard, owner protocol.Owner) error {
	return in.sendRequest(ctx, func() error {
		for _, p := range in.p.w.all {
			if other := p.current.Load(); other != nil && other.name == owner.Instance {
				go other.claims.ReleaseForgotten(s.Shard, owner.Fence)
			}
		}
		return nil
	})
}

func (in *instance) Instance(ctx context.Context, name string) (queuelease.Instance, error) {
	return sendFaulty(in, ctx, func() (queuelease.Instance, error) { return in.p.w.indexEntry(name), nil })
}

// indexEntry returns what the index and the leases say about an instance. mu must be held.
func (w *world) indexEntry(name string) queuelease.Instance {
	i := queuelease.Instance{Name: name, Identity: w.index[name]}
	if w.isLeased(name) {
		i.Lease = []byte("{}")
	}
	return i
}

func (in *instance) Instances(ctx context.Context) ([]queuelease.Instance, error) {
	return sendFaulty(in, ctx, func() (list []queuelease.Instance, _ error) {
		for name := range in.p.w.index {
			list = append(list, in.p.w.indexEntry(name))
		}
		return list, nil
	})
}

func (in *instance) EndLease(ctx context.Context, name string) error {
	return in.sendRequest(ctx, func() error { delete(in.p.w.leases, name); return nil })
}

func (in *instance) DropLease(ctx context.Context, name string) error {
	return in.sendRequest(ctx, func() error { delete(in.p.w.leases, name); delete(in.p.w.index, name); return nil })
}

func (in *instance) Subscribe(_ context.Context, page ...*protocol.Shard) error {
	for _, s := range page {
		in.subscribed.Store(s, true)
		in.claims.ConfirmSubscription(s.Shard)
	}
	return nil
}

func (in *instance) Unsubscribe(_ context.Context, page ...*protocol.Shard) error {
	for _, s := range page {
		in.subscribed.Delete(s)
	}
	return nil
}

// worker is a runner. It pops, checks the lease, calls the handler and acknowledges until it is
// stopped.
type worker struct {
	in     *instance
	claim  *protocol.Claim
	work   context.Context
	cancel context.CancelCauseFunc
	begun  sync.Once
	halted context.Context // no more pops
	halt   context.CancelFunc
	idle   chan struct{}

	fenced, taken, outOfSync atomic.Bool
}

func (in *instance) run(claim *protocol.Claim) *worker {
	k := &worker{in: in, claim: claim, idle: make(chan struct{})}
	k.work, k.cancel = context.WithCancelCause(in.work)
	k.halted, k.halt = context.WithCancel(k.work)
	return k
}

func (k *worker) Wake()                        { k.begun.Do(func() { k.in.lanes.Go(k.lane) }) }
func (k *worker) MarkSubscribed()              {}
func (k *worker) Fenced() (fenced, taken bool) { return k.fenced.Load(), k.taken.Load() }
func (k *worker) OutOfSync() bool              { return k.outOfSync.Load() }
func (k *worker) Close()                       { k.cancel(lowkiq.ErrShutdown) }

func (k *worker) Revoke() {
	if !k.fenced.Swap(true) {
		k.cancel(lowkiq.ErrLeaseLost)
		k.halt()
		k.in.claims.Kick()
	}
}

func (k *worker) Stop() <-chan struct{} {
	k.halt()
	k.begun.Do(func() { close(k.idle) })
	return k.idle
}

func (k *worker) Release(ctx context.Context) error {
	for {
		err := k.in.Release(ctx, k.claim)
		if err == nil || !protocol.Transient(err) || ctx.Err() != nil {
			return err
		}
		sleepFor(ctx, 20*time.Millisecond)
	}
}

func (k *worker) lane() {
	defer close(k.idle)
	w := k.in.p.w
	for k.halted.Err() == nil {
		sleepFor(k.halted, w.Below(time.Second)) // until a job is due
		if !k.sendFenced(k.halted) || !k.in.keeper.Holds() || k.halted.Err() != nil {
			continue
		}
		w.beginCall(k)
		if sleepFor(k.work, w.Below(w.longest)); k.work.Err() != nil {
			time.Sleep(w.Below(ttl/5 - ttl/60)) // a handler has 0.2 ttl to return
		}
		w.endCall(k)
		k.sendFenced(k.work)
	}
}

// sendFenced is a pop or an ack. Redis executes it only if the claim is held.
func (k *worker) sendFenced(ctx context.Context) (ok bool) {
	w := k.in.p.w
	refusal, err := sendFaulty(k.in, ctx, func() (error, error) { return w.fenced(k.claim), nil })
	switch {
	case err != nil:
		return false
	case refusal != nil:
		var by *protocol.FencedError
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
