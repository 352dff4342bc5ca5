package claims

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

const (
	claimsAtOnce = 16  // scripts that run at once
	pageSize     = 200 // claims that are read in one round trip
)

// claimer claims shards for the supervisor, whose goroutine it belongs to.
type claimer[R Runner] struct {
	c     *Claims[R]
	since map[lowkiq.Shard]time.Duration // Now() of the first attempt, by shard that is not claimed yet
	asked map[lowkiq.Shard]*queue.Shard  // shards whose wake-ups were subscribed to
	// waiting is how many shards of the last round live instances have.
	waiting int
}

func newClaimer[R Runner](c *Claims[R]) *claimer[R] {
	return &claimer[R]{c: c, since: map[lowkiq.Shard]time.Duration{}, asked: map[lowkiq.Shard]*queue.Shard{}}
}

// claimFreed claims those shards of which there is news and that no instance owns.
func (cl *claimer[R]) claimFreed(ctx context.Context, first lowkiq.Shard) (claimed int) {
	shards := []lowkiq.Shard{first}
	for len(cl.c.freed) > 0 {
		shards = append(shards, <-cl.c.freed)
	}
	var page []*queue.Shard
	for _, s := range shards {
		if shard := cl.c.p.Shard(s); shard != nil && cl.c.Get(s) == nil && cl.c.Desires(s) {
			page = append(page, shard)
		}
	}
	claimed, _ = cl.claimPage(ctx, page, func(owner queue.Owner) bool { return owner.Instance == "" })
	return claimed
}

// claimAll tries to claim shards and returns how many it got. While it is at it, the desired shards
// may change: a node that began alone may not be alone any more.
func (cl *claimer[R]) claimAll(ctx context.Context, shards []*queue.Shard) (claimed int) {
	for page := range slices.Chunk(shards, pageSize) {
		if ctx.Err() != nil || !cl.c.p.MayWork() {
			break
		}
		page = slices.DeleteFunc(slices.Clone(page), func(s *queue.Shard) bool { return !cl.c.Desires(s.Shard) })
		n, err := cl.claimPage(ctx, page, func(queue.Owner) bool { return true })
		claimed += n
		if err != nil {
			break
		}
		cl.c.look()
	}
	return claimed
}

// subscribe asks once for the wake-ups of shards. Their confirmation wakes each runner, or has the
// claim looked at again.
func (cl *claimer[R]) subscribe(page []*queue.Shard) {
	var fresh []*queue.Shard
	for _, s := range page {
		if _, waits := cl.since[s.Shard]; !waits {
			cl.since[s.Shard] = cl.c.p.Now()
		}
		if cl.asked[s.Shard] == nil {
			cl.asked[s.Shard] = s
			fresh = append(fresh, s)
		}
	}
	if len(fresh) == 0 {
		return
	}
	if err := cl.c.p.Redis.Subscribe(cl.c.p.IO, fresh...); err != nil {
		cl.c.p.OpFailed("subscribe", nil, err) // the next connection subscribes them all
	}
}

// unsubscribe ends the wake-ups of shards that are neither desired nor owned any more.
func (cl *claimer[R]) unsubscribe() {
	var gone []*queue.Shard
	for _, s := range cl.asked {
		if cl.c.Desires(s.Shard) || cl.c.Get(s.Shard) != nil {
			continue
		}
		gone = append(gone, s)
		delete(cl.asked, s.Shard)
		delete(cl.since, s.Shard)
	}
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

// claimPage claims what may be claimed of a page, of shards with the owners that it is to look at,
// and returns how many shards that were.
func (cl *claimer[R]) claimPage(ctx context.Context, page []*queue.Shard, eligible func(queue.Owner) bool) (claimed int, err error) {
	if len(page) == 0 {
		return 0, nil
	}
	cl.subscribe(page)
	owners, err := cl.c.p.Redis.Owners(ctx, page)
	if err != nil {
		cl.c.p.OpFailed("read claims", nil, err)
		return 0, err
	}
	if !cl.c.trustworthy(ctx, owners) {
		return 0, nil
	}
	holders := map[string]holderState{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(claimsAtOnce)
	for i, s := range page {
		if ctx.Err() != nil {
			break
		}
		if !eligible(owners[i]) {
			continue
		}
		cause := cl.c.decideOn(ctx, s, owners[i], holders)
		if cause == wait {
			cl.wait(ctx, s, owners[i], holders[owners[i].Instance])
			continue
		}
		group.Go(func() error {
			o := cl.c.claim(s, owners[i], cause)
			if o == nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			claimed++
			cl.c.p.Told.Claimed(o.Claim, cl.c.p.Now()-cl.since[s.Shard])
			delete(cl.since, s.Shard)
			o.Runner.Wake()
			return nil
		})
	}
	return claimed, group.Wait() // no error
}

// wait asks the holder for the shard, in case it does not know that it holds it.
func (cl *claimer[R]) wait(ctx context.Context, s *queue.Shard, owner queue.Owner, holder holderState) {
	if holder.leased {
		cl.waiting++
	}
	if owner.Instance == "" {
		return
	}
	if err := cl.c.p.Redis.RequestRelease(ctx, s, owner); err != nil {
		cl.c.p.OpFailed("request a release", s.Shard, err)
	}
}

// trustworthy reports whether Redis still has this instance's lease, if claims are absent. If not,
// it has lost data: the shards may have owners that do not know it yet, and this instance ends, to
// wait for them as the next one (I1).
func (c *Claims[R]) trustworthy(ctx context.Context, owners []queue.Owner) bool {
	if !slices.ContainsFunc(owners, func(o queue.Owner) bool { return o.Fence == 0 }) {
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

// claim makes a runner for a shard if Redis grants it, nil otherwise. The request outlives the
// supervisor: a claim that was sent must not be forgotten.
func (c *Claims[R]) claim(s *queue.Shard, owner queue.Owner, cause step) *Owned[R] {
	claim, err := c.p.Redis.Claim(c.p.IO, s, c.p.Instance, queue.Cause(cause), owner)
	if err != nil {
		if !errors.Is(err, queue.ErrHeld) {
			c.p.OpFailed("claim", s.Shard, err)
		}
		return nil
	}
	if cause == seize {
		c.p.Log.Info("shard seized", "shard", s.Shard, "from", owner.Instance, "fence", claim.Fence, "recovered", claim.Recovered, "buried", claim.Buried)
	}
	c.absent.isLastOwner(s.Shard)
	o := &Owned[R]{Claim: claim, Runner: c.p.Start(claim)}
	c.move(o, running)
	return o
}
