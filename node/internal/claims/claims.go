// Package claims decides which shards an instance owns: it claims those that it should run and has
// no runner for, and gives back those that it has and should not run (I1, I4).
//
// # The states of a shard
//
// One shard, as one instance sees it. Redis alone says who owns it: its claim names an instance and
// a fence, and a script of a worker that does not hold the claim changes nothing (I1).
//
//	state    it means                              event                                        next
//	none     no runner here; when the shard is     Redis grants a claim of cause fresh,         running
//	         desired, a claim is decided every     self or seize
//	         0.1 s to 1 s, and at once when its    another instance has it                      none
//	         owner releases it                     a claim's answer is lost: the next look      none
//	                                               finds the shard claimed by this instance
//	running  its runner pops and calls handlers    the shard is not desired any more            leaving
//	                                               Redis has refused it by the fence            leaving
//	                                               Redis and runner are out of sync             leaving
//	                                               the instance ends: drain, or lease lost      leaving
//	leaving  nothing is popped; calls that run     the calls have returned, and Redis has the   none
//	         return, or are cancelled with the     last acks and the release
//	         lease or the claim                    the same, and Redis refused by the fence     none
//	                                               the same, and Redis cannot be asked in time  none
//
// A release is sent in state leaving only, when no call of the shard runs (I1). A claim whose
// answer was lost, and a release that could not be sent, leave a shard that this process owns
// without knowing: it is claimed again with cause self if it is desired; if not, the instance that
// waits for it tells this one, which releases it (Wanted); at last the lease runs out.
//
// move changes the state, and nothing else does.
//
// # Who may claim
//
// decideClaim is the rule, a table in its comment. What it needs to know of the owner, holder finds
// out.
package claims

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// Redis is all that the claims ask of Redis. After an error of a request that changes something it
// is unknown whether it was executed.
type Redis interface {
	Owners(context.Context, []*queue.Shard) ([]queue.Owner, error)
	// Claim makes an instance the owner, if the claim is still as seen; else queue.ErrHeld.
	Claim(ctx context.Context, s *queue.Shard, instance string, cause queue.Cause, seen queue.Owner) (*queue.Claim, error)
	Release(context.Context, *queue.Claim) error
	// Adopt is the claim that an instance has with this fence, without asking Redis.
	Adopt(s *queue.Shard, instance string, fence int64) *queue.Claim
	// RequestRelease tells the owner that another instance waits for the shard.
	RequestRelease(ctx context.Context, s *queue.Shard, owner queue.Owner) error

	Instance(ctx context.Context, name string) (lease.Instance, error)
	Instances(context.Context) ([]lease.Instance, error)
	EndLease(ctx context.Context, name string) error  // of an instance that is proven dead
	DropLease(ctx context.Context, name string) error // the same, and the index forgets it

	Subscribe(context.Context, ...*queue.Shard) error // to the wake-ups of shards
	Unsubscribe(context.Context, ...*queue.Shard) error
}

// Runner works on one claimed shard.
type Runner interface {
	Wake()                             // it looks for work
	Subscribed()                       // the shard's wake-ups arrive from now on
	Stop() (idle <-chan struct{})      // no more pops; closed when no call runs
	Fenced() (fenced, taken bool)      // Redis refused it by the fence; another instance has the shard
	OutOfSync() bool                   // Redis has forgotten some of what it did
	Release(ctx context.Context) error // sends the last acks and the release, and repeats them while ctx lasts
	Close()
}

// Process is what the claims need of the process and the instance that they are of.
type Process[R Runner] struct {
	Instance string
	TTL      time.Duration // of its lease
	Redis    Redis
	Log      *slog.Logger
	Now      func() time.Duration // a clock that never jumps and counts suspend

	Stop context.Context // ends when the instance is to drain
	IO   context.Context // of requests to Redis whose answer counts also at the instance's end
	Lost <-chan struct{} // closed when the lease is lost

	MayWork      func() bool // the lease holds (I1)
	LeaseMissing func()      // Redis has lost the lease: the instance ends
	Desired      func(was *Desired) *Desired
	Shards       func() []*queue.Shard           // of all queues that are handled here
	Shard        func(lowkiq.Shard) *queue.Shard // nil: its queue is not handled here
	Placed       func() bool                     // the plan takes account of this node
	Prunes       func() bool                     // this process looks at all leases
	Gone         func(identity.Process) bool     // it is proven to be gone
	Ended        func(identity.Identity) bool    // the same, with its child processes
	// Gossip is what gossip knows of an instance: succeeded, its process goes on as a later one;
	// departed, its process is dead or has left.
	Gossip func(instance string) (succeeded, departed bool)

	Start    func(*queue.Claim) R // makes a runner; it does nothing until Wake
	OpFailed func(op string, shard any, err error)
	Told     Told
}

// Told are told what happens, for metrics and the lease.
type Told struct {
	Claimed  func(claim *queue.Claim, unowned time.Duration) // unowned: since the first attempt
	Gone     func(lowkiq.Shard)                              // it has no runner any more
	Left     func(took time.Duration)                        // a shard that was not desired was given back
	Fenced   func(op string)                                 // Redis refused an operation by the fence
	AllOwned func(bool)                                      // each desired shard has a runner, or a live owner elsewhere
}

type state string

const (
	none    state = ""
	running state = "running"
	leaving state = "leaving"
)

// Owned is a shard that has a runner.
type Owned[R Runner] struct {
	Claim  *queue.Claim
	Runner R
	state  state // guarded by Claims.mu
}

// Shard is the one that is owned.
func (o *Owned[R]) Shard() lowkiq.Shard { return o.Claim.Shard.Shard }

// Claims are those of one instance.
type Claims[R Runner] struct {
	p      Process[R]
	absent *AbsentInstances

	desired atomic.Pointer[Desired]
	kicked  chan struct{}     // one slot: look at all shards again
	freed   chan lowkiq.Shard // news of shards that another instance had
	gone    chan struct{}     // one slot: a shard has no runner any more
	leaves  sync.WaitGroup    // shards in state leaving that the supervisor began
	pruned  time.Duration     // Now() when the index was last looked through, 0: never; the supervisor's

	mu         sync.Mutex
	owned      map[lowkiq.Shard]*Owned[R] // guarded by mu
	subscribed map[lowkiq.Shard]bool      // wake-ups arrive; guarded by mu
}

// New makes the claims of an instance; Supervise makes them work. absent outlives the instance.
func New[R Runner](p Process[R], absent *AbsentInstances) *Claims[R] {
	c := &Claims[R]{
		p: p, absent: absent,
		kicked: make(chan struct{}, 1), freed: make(chan lowkiq.Shard, pageSize), gone: make(chan struct{}, 1),
		owned: map[lowkiq.Shard]*Owned[R]{}, subscribed: map[lowkiq.Shard]bool{},
	}
	c.desired.Store(&Desired{})
	return c
}

// move changes a shard's state, if it is one that leads to the next.
func (c *Claims[R]) move(o *Owned[R], to state) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch from := o.state; {
	case from == none && to == running:
		c.owned[o.Shard()] = o
		if c.subscribed[o.Shard()] {
			o.Runner.Subscribed()
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

// Get returns what works on a shard, nil if nothing does.
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

// Kick has the supervisor look at its shards again.
func (c *Claims[R]) Kick() { signal(c.kicked) }

// Gone gets a value when a shard has no runner any more.
func (c *Claims[R]) Gone() <-chan struct{} { return c.gone }

func signal(slot chan struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}

// Subscribed notes that the wake-ups of a shard arrive from now on. It returns what works on it,
// nil if nothing does.
func (c *Claims[R]) Subscribed(s lowkiq.Shard) *Owned[R] {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribed[s] = true
	o := c.owned[s]
	if o != nil {
		o.Runner.Subscribed()
	}
	return o
}

// Unsubscribed notes that wake-ups may be missed until subscriptions are confirmed again.
func (c *Claims[R]) Unsubscribed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.subscribed)
}

// Freed notes news of a shard without a runner: perhaps its owner has released it.
func (c *Claims[R]) Freed(s lowkiq.Shard) {
	select {
	case c.freed <- s:
	default: // the supervisor looks at all of them anyhow
	}
}

// Wanted releases a claim that this instance holds without running its shard, as another instance
// says that waits for it: the answer to the claim was lost, and the shard is not desired here by
// now.
func (c *Claims[R]) Wanted(s lowkiq.Shard, fence int64) {
	shard := c.p.Shard(s)
	if shard == nil || c.Get(s) != nil || c.Desires(s) {
		return
	}
	if err := c.p.Redis.Release(c.p.IO, c.p.Redis.Adopt(shard, c.p.Instance, fence)); err != nil && !isFenced(err) {
		c.p.OpFailed("release", s, err)
	}
}
