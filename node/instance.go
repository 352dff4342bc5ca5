package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/lease"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
)

// sinceBoot is the clock of leases and timers: no wall clock has a part in it.
var sinceBoot = lease.SinceBoot

// instance is one lease's worth of a process's life.
type instance struct {
	node   *Node
	name   string
	log    *slog.Logger
	keeper *lease.Keeper
	calls  *lease.Calls // handler calls, and what ends them
	// stop ends when the instance is to drain.
	stop context.Context
	// work ends handlers: the lease is lost, or the shutdown's patience is over. io ends
	// Redis calls; it outlives work, so that finished jobs can still be acknowledged.
	work       context.Context
	cancelWork context.CancelCauseFunc
	io         context.Context
	cancelIO   context.CancelFunc

	start    time.Time     // by Redis's clock
	begun    time.Duration // sinceBoot when it was made
	offset   atomic.Int64  // from sinceBoot to Redis's clock, unix ns
	slots    *runner.Slots
	queues   map[string]*runner.Queue // by name; not written
	process  *runner.Process
	lanes    sync.WaitGroup // lanes of all runners
	claims   *claims.Claims[*runner.Runner]
	number   int // counts the instances of this boot
	draining atomic.Bool
	refusals *refusedOps
	failures failureLog
	quiet    *quiet
	wakes    *queue.Wakes
}

func newInstance(stop context.Context, n *Node, number int) *instance {
	in := &instance{
		stop: stop, node: n, name: identity.Instance(n.cfg.Name, n.boot, number), number: number, begun: sinceBoot(),
		slots: runner.NewSlots(n.cfg.Concurrency), queues: make(map[string]*runner.Queue, len(n.queues)),
		quiet: newQuiet(), refusals: newRefusedOps(),
	}
	for name, on := range n.queues {
		in.queues[name] = on.forRunners(n.cfg.FormatError)
	}
	in.log = n.log.With("instance", in.name)
	in.work, in.cancelWork = context.WithCancelCause(context.Background())
	in.io, in.cancelIO = context.WithCancel(context.Background())
	in.wakes = n.client.NewWakes(in.io, in.name)
	in.keeper = lease.NewKeeper(n.cfg.TTL, n.cfg.now, in.info, func(err error) bool { return n.outOfReach("renew the lease", err) }, in.log)
	in.calls = lease.NewCalls(in.keeper, in.running, func(why error) { in.cancelWork(why) }, func() { n.cfg.OnOverrun(runner.Stacks()) })
	in.process = in.facts()
	in.claims = in.newClaims()
	return in
}

// facts are what runners need to know of this instance.
func (in *instance) facts() *runner.Process {
	return &runner.Process{
		Work: in.work, IO: in.io, Log: in.log, Lanes: &in.lanes, Slots: in.slots, Quarantine: &runner.QuarantineSlot{},
		Now: sinceBoot, RedisTime: in.redisAt, SawRedisTime: in.clock, MayWork: in.mayWork, Kick: func() { in.claims.Kick() },
		Trouble: in.troubled, Worked: in.worked,
		Fenced: func(op string, calls func() int64) {
			in.node.metrics.Fenced(op)
			in.calls.EndWithClaim(calls)
		},
		MayLog: func(queueName, kind string) (int, bool) {
			return in.failures.may(queueName, failureKind(kind), sinceBoot())
		},
	}
}

// mayWork is asked right before every handler call (I1).
func (in *instance) mayWork() bool { return in.keeper.Holds() && in.work.Err() == nil }

// clock takes in Redis's time.
func (in *instance) clock(redis time.Time) {
	if !redis.IsZero() {
		in.offset.Store(redis.UnixNano() - int64(sinceBoot()))
	}
}

// redisAt estimates Redis's clock at a time of sinceBoot, for figures and timers only. This host's wall
// clock has no part in it: it may jump.
func (in *instance) redisAt(d time.Duration) time.Time {
	return time.Unix(0, in.offset.Load()+int64(d))
}

// info is what the lease says.
func (in *instance) info() []byte {
	info := identity.Lease{
		Node: in.node.cfg.Name, Boot: in.node.boot, Instance: in.name, Start: in.start,
		HTTP: in.node.URL(), Version: in.node.cfg.Version, Weight: in.node.cfg.Weight,
		Queues: in.owned(), Draining: in.leaves(), TTL: in.node.cfg.TTL.Milliseconds(), Process: in.node.process,
		Refused: in.refusals.list(), Unready: in.node.unready.told(), Features: queue.Features(),
	}
	if c := in.node.cluster; c != nil {
		info.Gossip, info.Raft, info.RaftInfo = c.Address(), c.RaftAddress(), c.RaftInfo()
	}
	value, err := json.Marshal(info)
	if err != nil {
		panic("node: lease: " + err.Error()) // plain strings and numbers always marshal
	}
	return value
}

// owned counts the shards of each handled queue.
func (in *instance) owned() map[string]int {
	counts := make(map[string]int, len(in.node.queues))
	for name := range in.node.queues {
		counts[name] = 0
	}
	for shard := range in.claims.Held() {
		counts[shard.Queue]++
	}
	return counts
}

// live runs the instance until it is to stop or the lease is lost. An error says that there
// was no lease to begin with.
func (in *instance) live() error {
	defer in.cancelIO()
	defer in.cancelWork(lowkiq.ErrShutdown)
	in.start, _ = in.node.client.Time(in.stop) // zero if unknown; for people
	in.clock(in.start)
	if err := in.node.registerAnew(in.stop); err != nil {
		return err
	}
	who, err := json.Marshal(identity.Identity{Process: in.node.process, TTL: in.node.cfg.TTL.Milliseconds(), Children: in.node.hasChildren()})
	if err != nil {
		return err
	}
	var taken *queue.Lease
	err = in.keeper.Take(in.stop, func(ctx context.Context) (err error) {
		taken, err = in.node.leases.TakeLease(ctx, in.name, who, in.info(), in.node.cfg.TTL)
		return err
	})
	if err != nil {
		return err
	}
	in.log.Info("lease taken", "ttl", in.node.cfg.TTL)
	in.grant() // before the first batch: a frozen node cannot end what it has granted nothing (I1)
	in.node.freeName(in.io, in.node.cfg.Name)
	in.node.metrics.LeaseRemaining(in.keeper.Remaining)
	in.node.settled.Store(false)
	in.node.current.Store(in)
	defer in.node.current.CompareAndSwap(in, nil)
	in.announce()
	in.serve(taken)
	return nil
}

// serve works until it must stop, then hands everything back.
func (in *instance) serve(taken *queue.Lease) {
	var group sync.WaitGroup
	keep, stopKeeping := context.WithCancel(context.Background())
	loops, stopLoops := context.WithCancel(context.Background())
	defer group.Wait()
	defer stopKeeping()
	group.Go(func() { in.keeper.Run(keep, taken, in.renewed) })
	group.Go(func() { in.listen(loops) })
	group.Go(func() { in.poll(loops) })
	group.Go(func() { in.tellTimings(loops) })
	group.Go(func() { in.watchHandlers(loops) })
	group.Go(func() { in.claims.ScanOrphans(loops, in.orphans()) })
	handedBack := make(chan struct{})
	group.Go(func() { in.calls.EndWithLease(handedBack) })
	supervised := make(chan struct{})
	group.Go(func() { defer close(supervised); in.claims.Supervise(loops) })
	select {
	case <-in.stop.Done():
		in.draining.Store(true)
		in.log.Info("draining", "shards", len(in.claims.All()))
		in.handOver()
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
	if c := in.node.cluster; c != nil {
		c.Announce(in.number, in.leaves())
	}
}

// leaves reports whether the instance gives its shards away.
func (in *instance) leaves() bool { return in.draining.Load() || in.node.drained.Load() }

// drain gives all shards away, or takes some again, until the process ends.
func (n *Node) drain(on bool) {
	if n.drained.Swap(on) == on {
		return
	}
	n.log.Info("drain", "on", on)
	if in := n.current.Load(); in != nil {
		in.announce()
		in.claims.Kick()
	}
}

// drop deletes the lease at the end of a drain.
func (in *instance) drop(taken *queue.Lease) {
	ctx, cancel := context.WithTimeout(in.io, time.Second)
	defer cancel()
	if err := taken.Drop(ctx); err != nil {
		in.log.Warn("lease not dropped; it will expire", "err", err)
	}
}

// grant tells handlers that are processes for how long they may run on without news.
func (in *instance) grant() {
	for _, on := range in.node.queues {
		if on.grant != nil {
			on.grant(in.keeper.Remaining())
		}
	}
}

// errAnew ends an instance that knows a queue by shards of the past, or by none as its entry was damaged; the next one finds those of now.
var errAnew = errors.New("a queue was deleted and registered anew since this node started, or its entry was mended")

// renewed is called after each good renewal.
func (in *instance) renewed(ctx context.Context) {
	in.node.inReach()
	in.grant()
	registry, err := in.node.readRegistry(ctx)
	if err != nil {
		in.trouble("read the registry", nil, err)
		return
	}
	for name, on := range in.node.queues {
		entry, there := registry.all[name]
		unfit := registry.damaged[name]
		if unfit == nil && there {
			unfit = in.node.unfit(on, entry)
		}
		if unfit == nil && on.queue == nil {
			unfit = on.refused.holds(entry, in.node.cfg.TTL)
		}
		switch {
		case unfit != nil: // known or not, it is not handled here, and the next instance would not find it, either
		case !there && on.queue != nil:
			in.node.registerAgain(ctx, on) // Redis lost it
			continue
		case on.queue == nil || !on.queue.Serves(entry):
			in.keeper.End(fmt.Errorf("%w: %w: %q", lowkiq.ErrLeaseLost, errAnew, name))
			return
		}
		paused := in.cannotRead(name, cmp.Or(unfit, entry.Stores(name, on.rules.Push.Codec.Name))) || entry.Paused
		if was := on.paused.Swap(paused); was != paused {
			in.log.Info("queue paused or resumed", "queue", name, "paused", paused)
			for _, o := range in.claims.All() {
				switch {
				case o.Shard().Queue != name:
				case paused:
					o.Runner.Pause()
				default:
					o.Runner.Wake()
				}
			}
		}
	}
}

// cannotRead notes why a queue is not handled here, in the log and in every node's status, or that it is again; nil
// is no reason. It reports whether there is one. What handlers have is finished, as in a pause.
func (in *instance) cannotRead(name string, err error) bool {
	const op = "read the jobs of a queue"
	whole := lowkiq.Shard{Queue: name, Index: -1} // none of its own: all of them
	switch {
	case err == nil && in.refusals.end(whole, op):
		in.log.Info("the queue can be read again", "queue", name)
	case err != nil && in.refusals.note(whole, op, err):
		in.log.Error("this node cannot read the jobs of a queue: it handles none of them until that is mended", "queue", name, "err", err)
	default:
		return err != nil
	}
	in.keeper.Poke()
	return err != nil
}

// running is how many handler calls run.
func (in *instance) running() (n int64) {
	for _, o := range in.claims.All() {
		n += o.Runner.Calls()
	}
	return n
}

// trouble logs an error of Redis, the same one at most once a second, and that it is out of reach as outOfReach does.
func (in *instance) trouble(op string, shard any, err error) {
	if in.io.Err() != nil || errors.Is(err, context.Canceled) || in.node.outOfReach(op, err) || !in.quiet.may(op+err.Error()) {
		return
	}
	in.log.Warn("redis operation not done, repeating", "op", op, "shard", shard, "err", err)
}

// quiet keeps a log readable during an outage.
type quiet struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func newQuiet() *quiet { return &quiet{last: map[string]time.Time{}} }

func (q *quiet) may(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if now.Sub(q.last[key]) < time.Second {
		return false
	}
	if len(q.last) > 100 {
		clear(q.last)
	}
	q.last[key] = now
	return true
}
