// Package claims decides which shards an instance owns. It claims the shards that the instance should run and has no runner for
// (I4). It gives back the shards that the instance runs and should not run (I1).
//
// # The states of a shard
//
// This is one shard as one instance sees it. Redis alone says who owns a shard. The claim in Redis
// names an instance and a fence, and Redis changes nothing for a worker that does not hold the claim
// (I1). The states below are therefore what this instance believes, and never a right to work.
//
//	state    it means                              event                                        next
//	none     no runner here; if the shard is       Redis grants a claim of cause fresh,         running
//	         desired, the supervisor tries to      self or seize
//	         claim it every 0.1 s to 1 s, and      another instance owns it                     none
//	         at once when its owner releases it    the answer to a claim is lost; the next try  none
//	                                               finds the shard claimed by this instance
//	running  its runner pops and calls handlers    the shard is not desired any more            leaving
//	                                               its queue has other shards now               leaving
//	                                               Redis has refused the runner by its fence    leaving
//	                                               Redis and runner are out of sync             leaving
//	                                               the instance ends: drain, or lease lost      leaving
//	leaving  nothing is popped; running calls      the calls have returned, and Redis has the   none
//	         return, or the lease or the claim     last acks and the release
//	         cancels them                          the same, and Redis refused by the fence     none
//	                                               the same, and Redis cannot be asked in time  none
//
// An instance sends a release only in state leaving, and only when no call of the shard runs (I1). If the queue has other
// shards now, the runner is revoked, its calls are cancelled, and no release is sent. The former shard is frozen or deleted
// then, so no other instance waits for it.
//
// Two accidents leave this process as the owner of a shard that it does not know about: the answer
// to a claim is lost, or a release cannot be sent. If the shard is desired here, the supervisor
// claims it again with cause self. If not, the instance that waits for the shard tells this instance,
// and ReleaseForgotten releases it. If that fails, too, the shard is free when the lease runs out.
//
// Only changeState changes the state.
//
// # Who may claim
//
// decideClaim is the rule; its comment has the table. inspectHolder finds out what the rule needs to
// know about the present owner.
package claims

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Redis has the requests that claims send. If a request that changes something returns an error,
// Redis may or may not have executed it.
type Redis interface {
	Owners(context.Context, []*protocol.Shard) ([]protocol.Owner, error)
	// Claim makes an instance the owner if the claim in Redis is still seen. Otherwise it returns protocol.ErrHeld. It
	// returns protocol.ErrMoving if nobody can own the shard yet.
	Claim(ctx context.Context, s *protocol.Shard, instance string, cause protocol.Cause, seen protocol.Owner) (*protocol.Claim, error)
	Release(context.Context, *protocol.Claim) error
	// Adopt returns the claim that an instance has with this fence. It does not ask Redis.
	Adopt(s *protocol.Shard, instance string, fence int64) *protocol.Claim
	// RequestRelease tells the owner that another instance waits for the shard.
	RequestRelease(ctx context.Context, s *protocol.Shard, owner protocol.Owner) error

	Instance(ctx context.Context, name string) (lease.Instance, error)
	Instances(context.Context) ([]lease.Instance, error)
	EndLease(ctx context.Context, name string) error  // for an instance that is proven dead
	DropLease(ctx context.Context, name string) error // does the same, and removes it from the index

	Subscribe(context.Context, ...*protocol.Shard) error // to the wake-ups of shards
	Unsubscribe(context.Context, ...*protocol.Shard) error
}

// Runner works on a claimed shard. package runner implements it.
type Runner interface {
	Wake()                             // makes it look for work
	MarkSubscribed()                   // says that the shard's wake-ups arrive from now on
	Stop() (idle <-chan struct{})      // ends its pops; idle is closed when no call runs
	Revoke()                           // cancels its calls, because the queue has other shards now; then Fenced returns true
	Fenced() (fenced, taken bool)      // reports a refusal by the fence, and whether another instance has the shard
	OutOfSync() bool                   // reports whether Redis has forgotten some of its changes
	Release(ctx context.Context) error // sends the last acks and the release, again and again until ctx ends
	Close()
}

// Process has the facts about its process and instance that claims need.
type Process[R Runner] struct {
	Instance string
	TTL      time.Duration // of its lease
	Redis    Redis
	Log      *slog.Logger
	Now      func() time.Duration // a clock that never jumps and counts suspend

	Stop context.Context // ends when the instance must drain
	IO   context.Context // for requests whose answer counts even while the instance ends
	Lost <-chan struct{} // closed when the lease is lost

	MayWork      func() bool // reports whether the lease holds (I1)
	LeaseMissing func()      // ends the instance, because Redis has lost its lease
	Desired      func(was *Desired) *Desired
	Shards       func() []*protocol.Shard           // present shards of all queues that are handled here
	Shard        func(lowkiq.Shard) *protocol.Shard // nil if no queue that is handled here has it at present
	Placed       func() bool                        // reports whether the plan takes account of this node
	Prunes       func() bool                        // reports whether this process reads all leases anyway

	IsGone             func(identity.Process) bool  // reports whether a process is proven to exist no more
	IsGoneWithChildren func(identity.Identity) bool // the same, for a process and all its child processes

	// Gossip returns what gossip says about an instance. succeeded means that its process
	// goes on as a later instance. departed means that its process is dead or has left.
	Gossip func(instance string) (succeeded, departed bool)

	Start    func(*protocol.Claim) R // makes a runner, which does nothing until Wake
	OpFailed func(op string, shard any, err error)
	Observer Observer
}

// Observer gets the events that metrics and the lease report.
type Observer struct {
	Claimed    func(claim *protocol.Claim, unowned time.Duration) // unowned is the time since the first attempt
	Removed    func(lowkiq.Shard)                                 // the shard has no runner any more
	HandedBack func(took time.Duration)                           // a shard that was not desired was given back
	Fenced     func(op string)                                    // Redis refused an operation by the fence
	AllOwned   func(bool)                                         // whether each desired shard has a runner here or a live owner elsewhere
}

type state string

const (
	none    state = ""
	running state = "running"
	leaving state = "leaving"
)

// Owned is a shard that has a runner.
type Owned[R Runner] struct {
	Claim  *protocol.Claim
	Runner R
	state  state // guarded by Claims.mu
}

// Shard returns the shard that is owned.
func (o *Owned[R]) Shard() lowkiq.Shard { return o.Claim.Shard.Shard }

// Claims are the claims of an instance.
type Claims[R Runner] struct {
	p      Process[R]
	absent *AbsentInstances

	desired    atomic.Pointer[Desired]
	rechecks   chan struct{}     // makes the supervisor check all shards; holds one value
	freed      chan lowkiq.Shard // shards whose owner has perhaps released them
	removed    chan struct{}     // says that a shard has no runner any more; holds one value
	departures sync.WaitGroup    // shards that startLeaving has put into state leaving
	prunedAt   time.Duration     // Now() of the last pruneIndex, 0 if there was none; only the supervisor uses it

	mu         sync.Mutex
	owned      map[lowkiq.Shard]*Owned[R] // guarded by mu
	subscribed map[lowkiq.Shard]bool      // shards whose wake-ups arrive; guarded by mu
}

// New makes the claims of an instance. They do nothing until Supervise runs. absent belongs to the
// process and outlives the instance.
func New[R Runner](p Process[R], absent *AbsentInstances) *Claims[R] {
	c := &Claims[R]{
		p: p, absent: absent,
		rechecks: make(chan struct{}, 1), freed: make(chan lowkiq.Shard, pageSize), removed: make(chan struct{}, 1),
		owned: map[lowkiq.Shard]*Owned[R]{}, subscribed: map[lowkiq.Shard]bool{},
	}
	c.desired.Store(&Desired{})
	return c
}

// changeState changes a shard's state. It returns false if the table of the package does not have
// that change, for example because another goroutine has made it already.
func (c *Claims[R]) changeState(o *Owned[R], to state) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch from := o.state; {
	case from == none && to == running:
		c.owned[o.Shard()] = o
		if c.subscribed[o.Shard()] {
			o.Runner.MarkSubscribed()
		}
	case from == running && to == leaving:
	case from == leaving && to == none:
		delete(c.owned, o.Shard())
	default:
		return false
	}
	o.state = to
	return true
}

// Get returns the runner of a shard and its claim, or nil if the shard has no runner here.
func (c *Claims[R]) Get(s lowkiq.Shard) *Owned[R] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owned[s]
}

// All returns the shards that have a runner.
func (c *Claims[R]) All() []*Owned[R] {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*Owned[R], 0, len(c.owned))
	for _, o := range c.owned {
		list = append(list, o)
	}
	return list
}

// isPresent reports whether a queue still has a shard, and not another shard in its place.
func (c *Claims[R]) isPresent(s *protocol.Shard) bool { return c.p.Shard(s.Shard) == s }

// OwnsAny reports whether a shard of a queue has a runner.
func (c *Claims[R]) OwnsAny(queueName string) bool {
	return slices.ContainsFunc(c.All(), func(o *Owned[R]) bool { return o.Shard().Queue == queueName })
}

// Kick makes the supervisor check its shards now.
func (c *Claims[R]) Kick() { trySend(c.rechecks) }

// Removed returns a channel that gets a value when a shard has lost its runner.
func (c *Claims[R]) Removed() <-chan struct{} { return c.removed }

// trySend puts a value into a channel with room for one value. A value that is there already says the same.
func trySend(slot chan struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}

// ConfirmSubscription records that the wake-ups of a shard arrive from now on. It returns the runner
// of the shard, nil if there is none.
func (c *Claims[R]) ConfirmSubscription(s lowkiq.Shard) *Owned[R] {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribed[s] = true
	o := c.owned[s]
	if o != nil {
		o.Runner.MarkSubscribed()
	}
	return o
}

// ForgetSubscriptions records that wake-ups may be lost until subscriptions are confirmed again.
func (c *Claims[R]) ForgetSubscriptions() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.subscribed)
}

// RetryFreed makes the supervisor try to claim a shard whose owner has perhaps released it. It must
// not block. A shard that does not fit into the channel is claimed by the supervisor's next round.
func (c *Claims[R]) RetryFreed(s lowkiq.Shard) {
	select {
	case c.freed <- s:
	default:
	}
}

// ReleaseForgotten releases a claim that this instance holds without a runner. Another instance asks for that, because it waits
// for the shard. This instance does not know about the claim, because the answer was lost and the shard is not desired here any
// more. Without ReleaseForgotten the other instance would wait as long as this instance lives (I4).
//
// The release is safe (I1). The shard has no runner here, so no call runs. If the supervisor claims
// the shard in the meantime, its claim has a higher fence, and Redis refuses this release.
func (c *Claims[R]) ReleaseForgotten(s lowkiq.Shard, fence int64) {
	shard := c.p.Shard(s)
	if shard == nil || c.Get(s) != nil || c.IsDesired(s) {
		return
	}
	if err := c.p.Redis.Release(c.p.IO, c.p.Redis.Adopt(shard, c.p.Instance, fence)); err != nil && !isFenced(err) {
		c.p.OpFailed("release", s, err)
	}
}
