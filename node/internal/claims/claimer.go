package claims

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

const (
	maxConcurrentClaims = 16  // claims that are sent to Redis at once
	pageSize            = 200 // claims that are read per round trip
)

// claimer claims shards for the supervisor. Only the supervisor's goroutine uses it.
type claimer[R Runner] struct {
	c          *Claims[R]
	firstTries map[lowkiq.Shard]time.Duration   // Now() of the first attempt to claim a shard; deleted once claimed
	subscribed map[lowkiq.Shard]*protocol.Shard // shards whose wake-ups Redis was asked for
	// ownedElsewhere counts the shards of the last round that live instances own, or that nobody can own yet because a
	// reshard has not opened them.
	ownedElsewhere int
}

func newClaimer[R Runner](c *Claims[R]) *claimer[R] {
	return &claimer[R]{c: c, firstTries: map[lowkiq.Shard]time.Duration{}, subscribed: map[lowkiq.Shard]*protocol.Shard{}}
}

// claimFreed claims the shards that RetryFreed has named, if no instance owns them.
func (cl *claimer[R]) claimFreed(ctx context.Context, first lowkiq.Shard) (claimed int) {
	shards := []lowkiq.Shard{first}
	for len(cl.c.freed) > 0 {
		shards = append(shards, <-cl.c.freed)
	}
	var page []*protocol.Shard
	for _, s := range shards {
		if shard := cl.c.p.Shard(s); shard != nil && cl.c.Get(s) == nil && cl.c.IsDesired(s) {
			page = append(page, shard)
		}
	}
	claimed, _ = cl.claimPage(ctx, page, func(owner protocol.Owner) bool { return owner.Instance == "" })
	return claimed
}

// claimShards tries to claim shards and returns how many it got. The desired shards may change in
// the meantime, for example because the node is not alone any more.
func (cl *claimer[R]) claimShards(ctx context.Context, shards []*protocol.Shard) (claimed int) {
	for page := range slices.Chunk(shards, pageSize) {
		if ctx.Err() != nil || !cl.c.p.MayWork() {
			break
		}
		page = slices.DeleteFunc(slices.Clone(page), func(s *protocol.Shard) bool { return !cl.c.IsDesired(s.Shard) })
		n, err := cl.claimPage(ctx, page, func(protocol.Owner) bool { return true })
		claimed += n
		if err != nil {
			break
		}
		cl.c.refreshDesired()
	}
	return claimed
}

// subscribe asks Redis once for the wake-ups of each shard. When Redis confirms the subscription,
// the runner of the shard looks for work. If the shard has no runner, the supervisor tries again to
// claim it. So nothing is missed that happened before the subscription. If a shard takes the place of a former shard, the
// wake-ups of the former shard end.
func (cl *claimer[R]) subscribe(page []*protocol.Shard) {
	var fresh, former []*protocol.Shard
	for _, s := range page {
		if _, waits := cl.firstTries[s.Shard]; !waits {
			cl.firstTries[s.Shard] = cl.c.p.Now()
		}
		was := cl.subscribed[s.Shard]
		if was == s {
			continue
		}
		if was != nil {
			former = append(former, was)
		}
		cl.subscribed[s.Shard] = s
		fresh = append(fresh, s)
	}
	cl.unsubscribe(former)
	if len(fresh) == 0 {
		return
	}
	if err := cl.c.p.Redis.Subscribe(cl.c.p.IO, fresh...); err != nil {
		cl.c.p.OpFailed("subscribe", nil, err) // the next connection subscribes to all of them
	}
}

// unsubscribeUnneeded ends the wake-ups of shards that are not owned, and that are not desired or not present any more.
func (cl *claimer[R]) unsubscribeUnneeded() {
	var gone []*protocol.Shard
	for _, s := range cl.subscribed {
		if cl.c.IsDesired(s.Shard) && cl.c.isPresent(s) || cl.c.Get(s.Shard) != nil {
			continue
		}
		gone = append(gone, s)
		delete(cl.subscribed, s.Shard)
		delete(cl.firstTries, s.Shard)
	}
	cl.unsubscribe(gone)
}

// unsubscribe ends the wake-ups of shards.
func (cl *claimer[R]) unsubscribe(gone []*protocol.Shard) {
	if len(gone) == 0 {
		return
	}
	cl.c.mu.Lock()
	for _, s := range gone {
		delete(cl.c.subscribed, s.Shard)
	}
	cl.c.mu.Unlock()
	if err := cl.c.p.Redis.Unsubscribe(cl.c.p.IO, gone...); err != nil {
		cl.c.p.OpFailed("unsubscribe", nil, err)
	}
}

// claimPage claims the shards of a page that have an eligible owner and that decideClaim allows.
// It returns how many it got.
func (cl *claimer[R]) claimPage(ctx context.Context, page []*protocol.Shard, eligible func(protocol.Owner) bool) (claimed int, err error) {
	if len(page) == 0 {
		return 0, nil
	}
	cl.subscribe(page)
	owners, err := cl.c.p.Redis.Owners(ctx, page)
	if err != nil {
		cl.c.p.OpFailed("read claims", nil, err)
		return 0, err
	}
	if !cl.c.mayTrustOwners(ctx, owners) {
		return 0, nil
	}
	holders := map[string]holderState{}
	var mu sync.Mutex
	var moving int // guarded by mu
	var group errgroup.Group
	group.SetLimit(maxConcurrentClaims)
	for i, s := range page {
		if ctx.Err() != nil {
			break
		}
		if !eligible(owners[i]) {
			continue
		}
		cause := cl.c.decideShard(ctx, s, owners[i], holders)
		if cause == wait {
			cl.requestRelease(ctx, s, owners[i], holders[owners[i].Instance])
			continue
		}
		group.Go(func() error {
			o, err := cl.c.claimShard(s, owners[i], cause)
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, protocol.ErrMoving) {
				moving++
			}
			if err != nil {
				return nil
			}
			claimed++
			cl.c.p.Observer.Claimed(o.Claim, cl.c.p.Now()-cl.firstTries[s.Shard])
			delete(cl.firstTries, s.Shard)
			o.Runner.Wake()
			return nil
		})
	}
	group.Wait() //nolint:errcheck // never returns an error
	cl.ownedElsewhere += moving
	return claimed, nil
}

// requestRelease asks the holder for the shard, because it may not know that it holds the shard.
func (cl *claimer[R]) requestRelease(ctx context.Context, s *protocol.Shard, owner protocol.Owner, holder holderState) {
	if holder.leased {
		cl.ownedElsewhere++
	}
	if owner.Instance == "" {
		return
	}
	if err := cl.c.p.Redis.RequestRelease(ctx, s, owner); err != nil {
		cl.c.p.OpFailed("request a release", s.Shard, err)
	}
}

// mayTrustOwners reports whether absent claims may be believed. If a claim is absent, either the
// shard was never owned, or Redis has lost data. This instance's own lease tells these apart. If the
// lease is missing, too, Redis has lost data, and the shards may have owners that do not know it yet.
// Then this instance ends. As the next instance it waits until those owners must know (I1).
func (c *Claims[R]) mayTrustOwners(ctx context.Context, owners []protocol.Owner) bool {
	if !slices.ContainsFunc(owners, func(o protocol.Owner) bool { return o.Fence == 0 }) {
		return true
	}
	entry, err := c.p.Redis.Instance(ctx, c.p.Instance)
	if err != nil {
		c.p.OpFailed("read instance", nil, err)
		return false
	}
	if entry.Lease == nil {
		c.p.LeaseMissing()
	}
	return entry.Lease != nil
}

// claimShard starts a runner for a shard if Redis grants the claim, and returns an error otherwise. The request must outlive
// the supervisor. If it were cancelled after Redis has executed it, this instance would own a shard that it does not know
// about.
//
// The queue may get other shards while the claim is under way. findAnew of package node may have found no runner of a former
// shard before this runner started, and may have let the present shards be claimed. So claimShard looks again after the
// start, and revokes the runner of a former shard before it begins a call (I1).
func (c *Claims[R]) claimShard(s *protocol.Shard, owner protocol.Owner, cause step) (*Owned[R], error) {
	claim, err := c.p.Redis.Claim(c.p.IO, s, c.p.Instance, protocol.Cause(cause), owner)
	if err != nil {
		if !errors.Is(err, protocol.ErrHeld) && !errors.Is(err, protocol.ErrMoving) {
			c.p.OpFailed("claim", s.Shard, err)
		}
		return nil, err
	}
	if cause == seize {
		c.p.Log.Info("shard seized", "shard", s.Shard, "from", owner.Instance, "fence", claim.Fence, "recovered", claim.Recovered, "buried", claim.Buried)
	}
	c.absent.setLastOwner(s.Shard)
	o := &Owned[R]{Claim: claim, Runner: c.p.Start(claim)}
	c.changeState(o, running)
	if !c.isPresent(s) {
		o.Runner.Revoke()
	}
	return o, nil
}
