package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/clock"
	"github.com/lowkiq/lowkiq/internal/process/handling"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/lease"
	"github.com/lowkiq/lowkiq/node/internal/limits"
	"github.com/lowkiq/lowkiq/node/internal/relay"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	queuelease "github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/timings"
)

// sinceBoot is the clock of leases and timers. It does not depend on the wall clock.
var sinceBoot = clock.SinceBoot

// instance is the part of a process's life in which it holds one lease. It joins the lease, the claims, their runners and
// the wake-ups.
type instance struct {
	node   *Node
	name   string
	number int // of the instance within its boot
	log    *slog.Logger
	start  time.Time // by Redis's clock, for people

	// stop ends when the instance must drain.
	stop context.Context
	// work is the context of handler calls. It ends when the lease is lost, or when the time of the shutdown is over.
	// io is the context of requests to Redis. It outlives work, so that finished jobs can still be acknowledged.
	work       context.Context
	cancelWork context.CancelCauseFunc
	io         context.Context
	cancelIO   context.CancelFunc

	clock     clock.Remote // Redis's clock
	keeper    *lease.Keeper
	calls     *lease.Calls // ends handler calls
	ops       *operations
	slots     *limits.Slots
	lanes     sync.WaitGroup // of all runners
	claims    *claims.Claims[*runner.Runner]
	ownership *ownership
	wakeups   *wakeups
	relay     *relay.Relay
	limits    map[string]*limits.Queue
	waits     waits
	broken    error // why the process must end; written before the keeper ends
}

// newInstance builds an instance. It first builds the parts that other parts need.
func newInstance(stop context.Context, n *Node, number int) *instance {
	in := &instance{
		stop: stop, node: n, name: identity.InstanceName(n.cfg.Name, n.boot, number), number: number, slots: limits.NewSlots(n.cfg.Concurrency),
	}
	in.log = n.log.With("instance", in.name)
	in.work, in.cancelWork = context.WithCancelCause(context.Background())
	in.io, in.cancelIO = context.WithCancel(context.Background())
	in.keeper = lease.NewKeeper(n.cfg.TTL, n.cfg.now, in.leaseText, func(err error) bool {
		n.redis.setFailed(err)
		return n.outages.reportFailure("renew the lease", err)
	}, in.log)
	in.ops = &operations{outages: &n.outages, io: in.io, log: in.log, changed: in.keeper.RenewNow}
	in.ownership = &ownership{
		node: n.cfg.Name, boot: n.boot, ttl: n.cfg.TTL, begun: sinceBoot(), cluster: n.cluster.Load(), keeper: in.keeper,
		queues: &n.queues, metrics: n.metrics, drained: &n.drained,
	}
	in.calls = lease.NewCalls(in.keeper, in.ownership.countCalls, func(why error) { in.cancelWork(why) }, in.endProcess)
	news := n.client.NewWakes(in.io, in.name)
	in.relay = in.newRelay()
	in.claims = claims.New(in.claimsProcess(news), n.absent)
	in.ownership.claims = in.claims
	in.wakeups = &wakeups{
		client: n.client, news: news, claims: in.claims, clock: &in.clock, ops: in.ops, interval: n.cfg.PollInterval, io: in.io, drain: n.setDrained,
		relay: in.relay,
	}
	return in
}

// claimsProcess returns the dependencies of the claims on this instance.
func (in *instance) claimsProcess(news *protocol.Wakes) claims.Process[*runner.Runner] {
	n, own := in.node, in.ownership
	process, queues := in.runnerProcess(), make(map[string]*runner.Queue, len(n.queues.handled))
	in.limits = map[string]*limits.Queue{}
	for name, on := range n.queues.handled {
		in.limits[name] = limits.New(limits.Config{
			Node: in.slotsFor(on), Processes: on.processes, AskRate: n.askRate(on), AskGroups: in.askGroups(name), Go: in.lanes.Go,
		})
		queues[name] = on.forRunners(handling.Home{Redis: n.client.Redis(), Cluster: n.client.Cluster()}, n.cfg.FormatError, in.limits[name])
		change := in.rulesApplier(on, queues[name])
		on.change.Store(&change)
	}
	return claims.Process[*runner.Runner]{
		Instance: in.name, TTL: n.cfg.TTL, Redis: claimsRedis{n.client, n.client.Leases(), news}, Log: in.log, Now: n.cfg.now,
		Stop: in.stop, IO: in.io, Lost: in.keeper.Lost(),
		MayWork: in.mayWork, LeaseMissing: in.keeper.LeaseMissing, Desired: own.desiredShards, Placed: own.isPlaced,
		Prunes: func() bool { return !own.cluster.LooksAway() },
		Shards: n.queues.allShards, Shard: n.queues.findShard,
		IsGone: n.process.IsGone, IsGoneWithChildren: n.process.IsGoneWithChildren, Gossip: own.cluster.InstanceGone,
		Start: func(claim *protocol.Claim) *runner.Runner {
			s := claim.Shard.Shard
			return runner.New(process, queues[s.Queue], s, claim.Fence, claim)
		},
		OpFailed: in.ops.logWarning,
		Observer: claims.Observer{
			Claimed: func(claim *protocol.Claim, unowned time.Duration) {
				own.countClaim(claim, unowned)
				in.reportRecovery(claim)
				if claim.Outgoing {
					in.relay.Kick(claim.Shard, true)
				}
			},
			Removed: func(s lowkiq.Shard) {
				in.relay.Forget(s)
				in.ops.forgetShard(s)
				own.countRelease(s)
				if n.queues.present(n.queues.handled[s.Queue]) == nil {
					in.keeper.RenewNow() // afterRenewal waits for the last runner of a former shard
				}
			},
			Fenced: n.metrics.Fenced, AllOwned: n.settled.Store,
			HandedBack: func(took time.Duration) { n.metrics.Handover.Observe(took.Seconds()) },
		},
	}
}

// slotsFor returns the slots for calls of a queue. A built-in queue has its own, so that it does not wait for handlers of
// users. Its calls are short.
func (in *instance) slotsFor(on *handled) *limits.Slots {
	if on.builtIn {
		return limits.NewSlots(builtInSlots)
	}
	return in.slots
}

const builtInSlots = 4

// runnerProcess returns the dependencies of runners on this instance.
func (in *instance) runnerProcess() *runner.Process {
	return &runner.Process{
		Work: in.work, IO: in.io, Log: in.log, Lanes: &in.lanes, Quarantine: &runner.QuarantineSlot{},
		Now: sinceBoot, RedisTime: in.clock.At, SetRedisTime: in.clock.Set, MayWork: in.mayWork, Kick: func() { in.claims.Kick() },
		OpFailed: in.ops.reportFailure, OpDone: in.ops.reportSuccess, HasListeners: in.node.events.Wanted, PublishRuns: in.publishRuns,
		FollowUpEncoder: in.node.client.FollowUpEncoder,
		Fenced:          in.node.metrics.Fenced, EndCalls: func(calls func() int64) { in.calls.EndLostClaim(calls) },
		MayLog: func(queueName, kind string) (int, bool) { return in.ops.lines.mayLog(queueName + ": " + kind) },
	}
}

// mayWork reports whether the lease holds. Runners ask it right before every handler call (I1).
func (in *instance) mayWork() bool { return in.keeper.Holds() && in.work.Err() == nil }

// endProcess ends the process, because a handler ignores its cancelled context.
func (in *instance) endProcess() {
	in.log.Error("a handler ignores its cancelled context, and another node may get its shard")
	in.node.cfg.OnOverrun(runner.AllStacks())
}

// leaseText returns the text of the lease, which all nodes read.
func (in *instance) leaseText() []byte {
	n := in.node
	info := identity.Lease{
		Node: n.cfg.Name, Boot: n.boot, Instance: in.name, Start: in.start,
		HTTP: n.URL(), Version: n.cfg.lowkiqVersion(), Weight: n.cfg.Weight,
		Queues: in.ownership.countShards(), Draining: in.ownership.isLeaving(), TTL: n.cfg.TTL.Milliseconds(), Process: n.process,
		Refused: in.ops.stuck.refusalTexts(), Unready: n.ready.unreadyReasons(), Features: protocol.Features(),
		Recurring: slices.Sorted(maps.Keys(n.cfg.Recurring)), Paused: in.pausedQueues(), Waits: in.waits.shownWaits(),
		Static: n.cfg.static(), Outgoing: in.relay.Reasons(),
		Load: n.load.measure(sinceBoot(), in.slots.Use),
	}
	if dropped, lately := logbuf.Dropped(n.cfg.Log); lately {
		info.Unlogged = dropped
	}
	in.ownership.cluster.DescribeInLease(&info)
	value, err := json.Marshal(info)
	if err != nil {
		panic("node: lease: " + err.Error()) // plain strings and numbers always marshal
	}
	return value
}

// run runs the instance until it must stop or the lease is lost. It returns an error if it could not take a lease, or if the
// Splitter panics.
func (in *instance) run() error {
	n := in.node
	defer in.cancelIO()
	defer in.cancelWork(lowkiq.ErrShutdown)
	in.start, _ = n.client.Time(in.stop) // zero if unknown
	in.clock.Set(in.start)
	if err := in.chooseShards(); err != nil {
		return err
	}
	taken, err := in.takeLease()
	if err != nil {
		return err
	}
	n.naming.endReservation(in.io)
	n.metrics.LeaseRemaining(in.keeper.Remaining)
	n.settled.Store(false)
	n.current.Store(in)
	defer n.current.CompareAndSwap(in, nil)
	in.announceChange()
	in.workUntilStopped(taken)
	return in.broken
}

// takeLease takes the lease, and then reads the registry once more before any work begins. A command that pauses a queue
// waits for the nodes with a lease, so a node that has just taken its lease must know of the pause.
func (in *instance) takeLease() (taken *queuelease.Lease, err error) {
	n := in.node
	who, err := json.Marshal(identity.Identity{Process: n.process, TTL: n.cfg.TTL.Milliseconds(), Children: n.queues.haveChildren()})
	if err != nil {
		return nil, err
	}
	err = in.keeper.Take(in.stop, func(ctx context.Context) (err error) {
		taken, err = n.leases.Leases().Take(ctx, in.name, who, in.leaseText(), n.cfg.TTL)
		return err
	})
	if err != nil {
		return nil, err
	}
	in.log.Info("lease taken", "ttl", n.cfg.TTL)
	// Child processes get their time before the first batch. A frozen node could not end children that have none (I1).
	n.queues.grantChildren(in.keeper.Remaining())
	ctx, cancel := context.WithTimeout(in.io, n.cfg.TTL/6)
	defer cancel()
	in.afterRenewal(ctx)
	return taken, nil
}

// workUntilStopped works until the instance must stop or the lease is lost, and then hands back all shards.
//
// The order at the end keeps I1. The loops end first, so nothing is claimed any more. HandBack then waits until no call
// runs, and releases the shards. The keeper renews the lease until then, so that calls can finish during a drain. The lease
// is deleted last. A lost lease is not deleted, because it is missing already or expires by itself.
func (in *instance) workUntilStopped(taken *queuelease.Lease) {
	var group sync.WaitGroup
	keep, stopKeeping := context.WithCancel(context.Background())
	loops, stopLoops := context.WithCancel(context.Background())
	defer group.Wait()
	defer stopKeeping()
	group.Go(func() { in.keeper.KeepRenewing(keep, taken, in.afterRenewal) })
	for _, loop := range in.backgroundLoops() {
		group.Go(func() { loop(loops) })
	}
	handedBack := make(chan struct{})
	group.Go(func() { in.calls.WatchLease(handedBack) })
	supervised := make(chan struct{})
	group.Go(func() { defer close(supervised); in.claims.Supervise(loops) })
	select {
	case <-in.stop.Done():
		in.ownership.draining.Store(true)
		in.log.Info("draining", "shards", len(in.claims.All()))
		if in.ownership.cluster != nil {
			in.announceChange()
			in.ownership.handOver(in.io)
		}
	case <-in.keeper.Lost():
		in.log.Warn("lease lost", "err", in.keeper.LostReason())
		in.cancelWork(in.keeper.LostReason())
		in.node.absent.LeaseLost(in.node.cfg.TTL)
	}
	stopLoops()
	<-supervised
	in.claims.HandBack(in.awaitCalls)
	close(handedBack)
	if in.stop.Err() != nil && !in.keeper.Ended() {
		stopKeeping()
		in.dropLease(taken)
	}
}

// backgroundLoops returns the loops that run beside the lease and the claims until the instance ends.
func (in *instance) backgroundLoops() []func(context.Context) {
	n := in.node
	minute := &lastMinute{
		read: n.metrics.Durations,
		publish: func(ctx context.Context, all map[string]timings.Minute) error {
			return timings.Publish(ctx, n.client, in.name, all)
		},
		failed: func(err error) { in.ops.logWarning("publish timings", nil, err) },
	}
	scan := &orphanScan{
		instance: in.name, cluster: in.ownership.cluster, queues: &n.queues, leases: n.leases, metrics: n.metrics, found: &n.orphans,
		static: n.cfg.static() != nil, log: in.log, warn: in.ops.logWarning, relay: in.relayUnowned,
	}
	return []func(context.Context){
		in.wakeups.followNews, in.wakeups.pollShards, minute.run, in.trimMorgues, in.followRules, in.sharePermits, in.tendGroups, in.watchWaits, in.watchMemory, in.relay.Run,
		func(ctx context.Context) { n.ready.watchHandlers(ctx, in.log, in.keeper.RenewNow) },
		func(ctx context.Context) { in.claims.ScanOrphans(ctx, scan.scanConfig()) },
	}
}

// every calls do after each d, until ctx ends.
func every(ctx context.Context, d time.Duration, do func()) {
	ticker := time.NewTicker(d)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

// awaitCalls returns when no handler call runs. During a shutdown it cancels calls that take too long.
func (in *instance) awaitCalls() {
	returned := make(chan struct{})
	go func() { in.lanes.Wait(); close(returned) }()
	if in.stop.Err() != nil {
		in.calls.AwaitShutdown(returned, in.node.cfg.ShutdownTimeout, in.log)
	}
	<-returned
}

// announceChange tells the cluster about a change of this instance at once.
func (in *instance) announceChange() {
	in.keeper.RenewNow()
	in.ownership.cluster.AnnounceInstance(in.number, in.ownership.isLeaving())
}

// dropLease deletes the lease at the end of a drain.
func (in *instance) dropLease(taken *queuelease.Lease) {
	ctx, cancel := context.WithTimeout(in.io, time.Second)
	defer cancel()
	if err := taken.Drop(ctx); err != nil {
		in.log.Warn("lease was not deleted and will expire", "err", err)
	}
}

// afterRenewal is called after each good renewal of the lease. It reads the registry and the settings, pauses or resumes
// queues, and follows changes of their shards.
func (in *instance) afterRenewal(ctx context.Context) {
	n := in.node
	n.outages.reportAnswer()
	n.redis.clearFailed()
	n.queues.grantChildren(in.keeper.Remaining())
	registry, err := n.queues.readRegistry(ctx)
	if err != nil {
		in.ops.logWarning("read the registry", nil, err)
		return
	}
	if err := n.queues.readRules(ctx); err != nil {
		in.ops.logWarning("read the rules", nil, err)
	}
	if err := n.findListeners(ctx); err != nil {
		in.ops.logWarning("read the listeners of events", nil, err)
	}
	for name, on := range n.queues.handled {
		entry, there := registry.entries[name]
		unfit, was, found := registry.damaged[name], on.queue.Load(), (*protocol.Queue)(nil)
		if unfit == nil && there {
			unfit = on.checkEntry(entry, n.client.Redis())
		}
		switch {
		case !there && was == nil && on.builtIn && unfit == nil:
			continue
		case unfit != nil: // the queue is not handled here until the entry changes
		case !there && was != nil:
			n.queues.registerAgain(ctx, on) // Redis has lost the entry
			continue
		case was != nil && was.Serves(entry):
			unfit = entry.Stores(name, on.rules.Codec.Name)
		default:
			found, unfit = in.findAnew(ctx, on)
		}
		unreadable := in.ops.setUnreadable(name, unfit)
		in.setPaused(on, in.staysPaused(on, unreadable || isHalted(entry)))
		in.cancelForReshard(name, entry.Reshard)
		if found != nil {
			in.bind(on, found)
		}
	}
}

// isHalted reports whether no job of a queue may begin. A reshard halts its queue like a pause until the flip, so that the
// flights end and the shards can freeze.
func isHalted(entry protocol.RegistryEntry) bool { return entry.Paused || entry.Reshard != nil }

// cancelForReshard cancels the running calls of a queue if its reshard must not wait for them. Their jobs are due again, and
// the cancellation does not count as a failure.
func (in *instance) cancelForReshard(name string, r *protocol.Reshard) {
	if r == nil || !r.CancelCalls {
		return
	}
	for _, o := range in.claims.All() {
		if o.Shard().Queue == name {
			o.Runner.CancelAll(protocol.Cancellation{Then: protocol.ThenRetry, By: r.By, Why: "the queue is resharded"})
		}
	}
}

// findAnew finds a queue whose shards have changed, or whose entry could not be read before. It returns nil while a former
// shard has a runner or Redis does not answer. The next renewal then tries again. The supervisor revokes the runners of
// former shards. An id may be in a former and in a present shard, so no call of a present shard may begin before the calls
// of former shards have ended (I1). present returns nil meanwhile, and so nothing claims a present shard.
func (in *instance) findAnew(ctx context.Context, on *handled) (*protocol.Queue, error) {
	if in.claims.OwnsAny(on.rules.Name) {
		in.claims.Kick()
		return nil, nil
	}
	found, err := in.node.queues.findQueue(ctx, on)
	if err == nil {
		err = in.node.queues.readRules(ctx) // before the first runner
	}
	if err != nil && (protocol.Transient(err) || ctx.Err() != nil) {
		in.ops.logWarning("find the shards of queue "+on.rules.Name, nil, err)
		return nil, nil
	}
	return found, err
}

// bind makes the instance work on the shards of a queue that findAnew has found. The other queues go on. A static node
// chooses its shards again. If its Splitter panics, the process ends.
func (in *instance) bind(on *handled, found *protocol.Queue) {
	on.queue.Store(found)
	in.node.absent.ClearLastOwners(found.Name)
	in.log.Info("queue has other shards now", "queue", found.Name, "shards", found.Shards)
	if in.broken = in.chooseShards(); in.broken != nil {
		in.keeper.End(fmt.Errorf("%w: %w", lowkiq.ErrLeaseLost, in.broken))
	}
	in.claims.Kick()
	in.keeper.RenewNow() // the lease names the queue from now on, if it is a built-in queue
}

// rulesApplier returns a function that applies the rules in force to the runners of a queue.
func (in *instance) rulesApplier(on *handled, runners *runner.Queue) func() {
	return func() {
		rules := on.rulesNow()
		runners.Change(rules.forRunner(in.node.cfg.FormatError), on.maxCalls(rules))
		for _, o := range in.claims.All() {
			if o.Shard().Queue == rules.Name {
				o.Runner.ApplyRules()
			}
		}
	}
}

// pausedQueues returns the paused queues for the lease, sorted. It leaves out queues that are about to resume, and queues
// where this instance may still begin a handler call.
func (in *instance) pausedQueues() (names []string) {
	busy := map[string]bool{}
	for _, o := range in.claims.All() {
		if s := o.Shard(); in.node.queues.handled[s.Queue].paused.Load() && !o.Runner.IsStill() {
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

// staysPaused reports whether a queue must be paused now. paused is the state in the registry. A resumed queue stays paused
// until the next renewal, when the lease no longer says that it is paused. Otherwise a command that pauses the queue
// again at once would read the old lease and believe that the queue is quiet.
func (in *instance) staysPaused(on *handled, paused bool) bool {
	first := on.paused.Load() && !paused && !on.resumes
	on.resumes = first
	if first {
		in.keeper.RenewNow()
	}
	return paused || first
}

// setPaused makes the runners of a queue begin no calls, or look for work again.
func (in *instance) setPaused(on *handled, paused bool) {
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
	in.keeper.RenewNow() // the command that has paused the queue waits until the lease says so
}
