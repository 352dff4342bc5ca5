package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/internal/logbuf"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/lease"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	queuelease "github.com/lowkiq/lowkiq/queue/lease"
)

// sinceBoot is the clock of leases and timers: no wall clock has a part in it.
var sinceBoot = lease.SinceBoot

// redisClock estimates Redis's clock, for figures and timers only. This host's wall clock has no
// part in it: it may jump.
type redisClock struct{ offset atomic.Int64 } // from sinceBoot to Redis's clock, unix ns

// saw takes in what Redis's clock is now; zero: unknown.
func (c *redisClock) saw(now time.Time) {
	if !now.IsZero() {
		c.offset.Store(now.UnixNano() - int64(sinceBoot()))
	}
}

// at is Redis's clock at a time of sinceBoot.
func (c *redisClock) at(d time.Duration) time.Time { return time.Unix(0, c.offset.Load()+int64(d)) }

// instance is one lease's worth of a process's life. It joins the lease, the claims, their runners
// and what wakes them.
type instance struct {
	node   *Node
	name   string
	number int // counts the instances of this boot
	log    *slog.Logger
	start  time.Time // by Redis's clock, for people

	// stop ends when the instance is to drain.
	stop context.Context
	// work ends handlers: the lease is lost, or the shutdown's patience is over. io ends
	// Redis calls; it outlives work, so that finished jobs can still be acknowledged.
	work       context.Context
	cancelWork context.CancelCauseFunc
	io         context.Context
	cancelIO   context.CancelFunc

	clock     redisClock
	keeper    *lease.Keeper
	calls     *lease.Calls // handler calls, and what ends them
	ops       *operations
	slots     *runner.Slots
	lanes     sync.WaitGroup // of all runners
	claims    *claims.Claims[*runner.Runner]
	ownership *ownership
	wakeups   *wakeups
	queues    map[string]*runner.Queue
}

// newInstance builds the parts of an instance: those that others need come first.
func newInstance(stop context.Context, n *Node, number int) *instance {
	in := &instance{
		stop: stop, node: n, name: identity.Instance(n.cfg.Name, n.boot, number), number: number, slots: runner.NewSlots(n.cfg.Concurrency),
	}
	in.log = n.log.With("instance", in.name)
	in.work, in.cancelWork = context.WithCancelCause(context.Background())
	in.io, in.cancelIO = context.WithCancel(context.Background())
	in.keeper = lease.NewKeeper(n.cfg.TTL, n.cfg.now, in.info, func(err error) bool { return n.outages.note("renew the lease", err) }, in.log)
	in.ops = &operations{outages: &n.outages, io: in.io, log: in.log, changed: in.keeper.Poke}
	in.ownership = &ownership{
		node: n.cfg.Name, boot: n.boot, ttl: n.cfg.TTL, begun: sinceBoot(), cluster: n.cluster.Load(), keeper: in.keeper,
		queues: &n.queues, metrics: n.metrics, drained: &n.drained,
	}
	in.calls = lease.NewCalls(in.keeper, in.ownership.running, func(why error) { in.cancelWork(why) }, in.overrun)
	news := n.client.NewWakes(in.io, in.name)
	in.claims = claims.New(in.claimant(news), n.absent)
	in.ownership.claims = in.claims
	in.wakeups = &wakeups{
		client: n.client, news: news, claims: in.claims, clock: &in.clock, ops: in.ops, interval: n.cfg.PollInterval, io: in.io, drain: n.drain,
	}
	return in
}

// claimant is what the claims need to know of this instance.
func (in *instance) claimant(news *queue.Wakes) claims.Process[*runner.Runner] {
	n, own := in.node, in.ownership
	process, queues := in.worker(), make(map[string]*runner.Queue, len(n.queues.handled))
	in.queues = queues
	for name, on := range n.queues.handled {
		queues[name] = on.forRunners(n.cfg.FormatError, n.rate(on), in.askGroups(name))
		change := in.changed(on, queues[name])
		on.change.Store(&change)
	}
	return claims.Process[*runner.Runner]{
		Instance: in.name, TTL: n.cfg.TTL, Redis: claimsRedis{n.client, n.client.Leases(), news}, Log: in.log, Now: n.cfg.now,
		Stop: in.stop, IO: in.io, Lost: in.keeper.Lost(),
		MayWork: in.mayWork, LeaseMissing: in.keeper.Missing, Desired: own.desires, Placed: own.placed,
		Prunes: func() bool { return !own.cluster.LooksAway() },
		Shards: n.queues.shards, Shard: n.queues.shard,
		Gone: n.process.Gone, Ended: n.process.Ended, Gossip: own.cluster.Dead,
		Start: func(claim *queue.Claim) *runner.Runner {
			s := claim.Shard.Shard
			return runner.New(process, queues[s.Queue], s, claim.Fence, claim)
		},
		OpFailed: in.ops.warn,
		Told: claims.Told{
			Claimed: func(claim *queue.Claim, unowned time.Duration) { own.claimed(claim, unowned); in.recovered(claim) },
			Gone:    func(s lowkiq.Shard) { in.ops.released(s); own.released(s) },
			Fenced:  n.metrics.Fenced, AllOwned: n.settled.Store,
			Left: func(took time.Duration) { n.metrics.Handover.Observe(took.Seconds()) },
		},
	}
}

// worker is what runners need to know of this instance.
func (in *instance) worker() *runner.Process {
	return &runner.Process{
		Work: in.work, IO: in.io, Log: in.log, Lanes: &in.lanes, Slots: in.slots, Quarantine: &runner.QuarantineSlot{},
		Now: sinceBoot, RedisTime: in.clock.at, SawRedisTime: in.clock.saw, MayWork: in.mayWork, Kick: func() { in.claims.Kick() },
		OpFailed: in.ops.failed, OpDone: in.ops.done, Listened: in.node.events.Wanted, Ran: in.ran,
		Fenced: func(op string, calls func() int64) {
			in.node.metrics.Fenced(op)
			in.calls.EndWithClaim(calls)
		},
		MayLog: func(queueName, kind string) (int, bool) { return in.ops.lines.may(queueName + ": " + kind) },
	}
}

// mayWork is asked right before every handler call (I1).
func (in *instance) mayWork() bool { return in.keeper.Holds() && in.work.Err() == nil }

// overrun ends the process.
func (in *instance) overrun() {
	in.log.Error("a handler ignores its cancelled context, and another node may get its shard")
	in.node.cfg.OnOverrun(runner.Stacks())
}

// info is what the lease says.
func (in *instance) info() []byte {
	n := in.node
	info := identity.Lease{
		Node: n.cfg.Name, Boot: n.boot, Instance: in.name, Start: in.start,
		HTTP: n.URL(), Version: n.cfg.Version, Weight: n.cfg.Weight,
		Queues: in.ownership.counts(), Draining: in.ownership.leaves(), TTL: n.cfg.TTL.Milliseconds(), Process: n.process,
		Refused: in.ops.stuck.list(), Unready: n.ready.told(), Features: queue.Features(),
		Recurring: slices.Sorted(maps.Keys(n.cfg.Recurring)), Paused: in.still(),
	}
	if dropped, lately := logbuf.Dropped(n.cfg.Log); lately {
		info.Unlogged = dropped
	}
	in.ownership.cluster.Describe(&info)
	value, err := json.Marshal(info)
	if err != nil {
		panic("node: lease: " + err.Error()) // plain strings and numbers always marshal
	}
	return value
}

// live runs the instance until it is to stop or the lease is lost. An error says that there
// was no lease to begin with.
func (in *instance) live() error {
	n := in.node
	defer in.cancelIO()
	defer in.cancelWork(lowkiq.ErrShutdown)
	in.start, _ = n.client.Time(in.stop) // zero if unknown
	in.clock.saw(in.start)
	taken, err := in.take()
	if err != nil {
		return err
	}
	n.naming.free(in.io)
	n.metrics.LeaseRemaining(in.keeper.Remaining)
	n.settled.Store(false)
	n.current.Store(in)
	defer n.current.CompareAndSwap(in, nil)
	in.announce()
	in.serve(taken)
	return nil
}

// take takes the lease, and looks at the registry once more before anything begins: who pauses a queue
// waits for those whose leases there are.
func (in *instance) take() (taken *queuelease.Lease, err error) {
	n := in.node
	who, err := json.Marshal(identity.Identity{Process: n.process, TTL: n.cfg.TTL.Milliseconds(), Children: n.queues.haveChildren()})
	if err != nil {
		return nil, err
	}
	err = in.keeper.Take(in.stop, func(ctx context.Context) (err error) {
		taken, err = n.leases.Leases().Take(ctx, in.name, who, in.info(), n.cfg.TTL)
		return err
	})
	if err != nil {
		return nil, err
	}
	in.log.Info("lease taken", "ttl", n.cfg.TTL)
	// Before the first batch: a frozen node cannot end what it has granted nothing (I1).
	n.queues.grant(in.keeper.Remaining())
	ctx, cancel := context.WithTimeout(in.io, n.cfg.TTL/6)
	defer cancel()
	in.renewed(ctx)
	return taken, nil
}

// serve works until it must stop, then hands everything back.
func (in *instance) serve(taken *queuelease.Lease) {
	var group sync.WaitGroup
	keep, stopKeeping := context.WithCancel(context.Background())
	loops, stopLoops := context.WithCancel(context.Background())
	defer group.Wait()
	defer stopKeeping()
	group.Go(func() { in.keeper.Run(keep, taken, in.renewed) })
	for _, loop := range in.loops() {
		group.Go(func() { loop(loops) })
	}
	handedBack := make(chan struct{})
	group.Go(func() { in.calls.EndWithLease(handedBack) })
	supervised := make(chan struct{})
	group.Go(func() { defer close(supervised); in.claims.Supervise(loops) })
	select {
	case <-in.stop.Done():
		in.ownership.draining.Store(true)
		in.log.Info("draining", "shards", len(in.claims.All()))
		if in.ownership.cluster != nil {
			in.announce()
			in.ownership.handOver(in.io)
		}
	case <-in.keeper.Lost():
		in.log.Warn("lease lost", "err", in.keeper.Why())
		in.cancelWork(in.keeper.Why())
		if !errors.Is(in.keeper.Why(), errAnew) { // then Redis has lost nothing
			in.node.absent.LeaseLost(in.node.cfg.TTL)
		}
	}
	stopLoops()
	<-supervised
	in.claims.HandBack(in.awaitCalls)
	close(handedBack)
	if in.stop.Err() != nil && !in.keeper.Ended() {
		stopKeeping()
		in.drop(taken)
	}
}

// loops are what runs beside the lease and the claims until the instance ends.
func (in *instance) loops() []func(context.Context) {
	n := in.node
	timings := &timings{
		read: n.metrics.Durations,
		publish: func(ctx context.Context, all map[string]browse.Timing) error {
			return browse.PublishTimings(ctx, n.client, in.name, all)
		},
		failed: func(err error) { in.ops.warn("publish timings", nil, err) },
	}
	scan := &orphanScan{
		instance: in.name, cluster: in.ownership.cluster, queues: &n.queues, leases: n.leases, metrics: n.metrics, found: &n.orphans, warn: in.ops.warn,
	}
	return []func(context.Context){
		in.wakeups.listen, in.wakeups.poll, timings.run, in.trimMorgues, in.releaseHeld, in.sharePermits, in.tendGroups,
		func(ctx context.Context) { n.ready.watch(ctx, in.log, in.keeper.Poke) },
		func(ctx context.Context) { in.claims.ScanOrphans(ctx, scan.needs()) },
	}
}

// awaitCalls returns when no handler call runs; a shutdown ends those that take too long.
func (in *instance) awaitCalls() {
	returned := make(chan struct{})
	go func() { in.lanes.Wait(); close(returned) }()
	if in.stop.Err() != nil {
		in.calls.AwaitShutdown(returned, in.node.cfg.ShutdownTimeout, in.log)
	}
	<-returned
}

// announce tells the cluster at once what changed of this instance.
func (in *instance) announce() {
	in.keeper.Poke()
	in.ownership.cluster.Announce(in.number, in.ownership.leaves())
}

// drop deletes the lease at the end of a drain.
func (in *instance) drop(taken *queuelease.Lease) {
	ctx, cancel := context.WithTimeout(in.io, time.Second)
	defer cancel()
	if err := taken.Drop(ctx); err != nil {
		in.log.Warn("lease not dropped; it will expire", "err", err)
	}
}

// errAnew ends an instance that knows a queue by shards of the past, or by none as its entry was
// damaged; the next one finds those of now.
var errAnew = errors.New("a queue was deleted and registered anew since this node started, or its entry was mended")

// renewed is called after each good renewal.
func (in *instance) renewed(ctx context.Context) {
	n := in.node
	n.outages.answered()
	n.queues.grant(in.keeper.Remaining())
	registry, err := n.queues.read(ctx)
	if err != nil {
		in.ops.warn("read the registry", nil, err)
		return
	}
	if err := n.queues.readRules(ctx); err != nil {
		in.ops.warn("read the rules", nil, err)
	}
	if err := n.listened(ctx); err != nil {
		in.ops.warn("look who listens", nil, err)
	}
	for name, on := range n.queues.handled {
		entry, there := registry.all[name]
		unfit := registry.damaged[name]
		if unfit == nil && there {
			unfit = on.fits(entry, n.client.Redis())
		}
		if unfit == nil && on.queue == nil {
			unfit = on.refused.holds(entry, n.cfg.TTL)
		}
		switch {
		case unfit != nil: // it is not handled here, and the next instance would not find it, either
		case !there && on.queue != nil:
			n.queues.registerAgain(ctx, on) // Redis lost it
			continue
		case on.queue == nil || !on.queue.Serves(entry):
			in.keeper.End(fmt.Errorf("%w: %w: %q", lowkiq.ErrLeaseLost, errAnew, name))
			return
		}
		unreadable := in.ops.unreadable(name, cmp.Or(unfit, entry.Stores(name, on.rules.Push.Codec.Name)))
		in.pause(on, in.stays(on, unreadable || entry.Paused))
	}
}

// changed is what has the runners of a queue go by the rules in force.
func (in *instance) changed(on *handled, runners *runner.Queue) func() {
	return func() {
		rules := on.rulesNow()
		runners.Change(rules.forRunner(in.node.cfg.FormatError), on.concurrency(rules))
		for _, o := range in.claims.All() {
			if o.Shard().Queue == rules.Name {
				o.Runner.Changed()
			}
		}
	}
}

// still are the queues of which this instance begins nothing any more, as they are paused.
func (in *instance) still() (names []string) {
	busy := map[string]bool{}
	for _, o := range in.claims.All() {
		if s := o.Shard(); in.node.queues.handled[s.Queue].paused.Load() && !o.Runner.Still() {
			busy[s.Queue] = true
		}
	}
	for name, on := range in.node.queues.handled {
		if on.paused.Load() && !on.resumes && !busy[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// stays reports whether a queue is to be paused by what the registry says now. One that is resumed
// begins with the next renewal, when the lease does not say any more that it is paused: else who
// pauses it again at once would take that for an answer.
func (in *instance) stays(on *handled, paused bool) bool {
	first := on.paused.Load() && !paused && !on.resumes
	on.resumes = first
	if first {
		in.keeper.Poke()
	}
	return paused || first
}

// pause has the runners of a queue begin nothing, or look for work again.
func (in *instance) pause(on *handled, paused bool) {
	if on.paused.Swap(paused) == paused {
		return
	}
	in.log.Info("queue paused or resumed", "queue", on.rules.Name, "paused", paused)
	for _, o := range in.claims.All() {
		switch {
		case o.Shard().Queue != on.rules.Name:
		case paused:
			o.Runner.Pause()
		default:
			o.Runner.Wake()
		}
	}
	in.keeper.Poke() // who has paused it waits for the lease to say so
}
