package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
)

// How often a shard that somebody else holds is tried again, and how many scripts run
// at once.
const (
	claimRetryLeast = 100 * time.Millisecond
	claimRetryMost  = time.Second
	claimsAtOnce    = 16
	claimPage       = 200
)

// claimer claims shards for an instance. It belongs to the supervisor's goroutine.
type claimer struct {
	*instance
	since   map[lowkiq.Shard]time.Duration // sinceBoot of the first attempt, by shard not claimed yet
	asked   map[lowkiq.Shard]*queue.Shard  // shards whose wake-ups were subscribed to
	strayed map[lowkiq.Shard]time.Duration // sinceBoot when a shard was last to be claimed anew
	waiting int                            // shards of the last round that a live instance holds
}

func newClaimer(in *instance) *claimer {
	return &claimer{
		instance: in, since: map[lowkiq.Shard]time.Duration{}, asked: map[lowkiq.Shard]*queue.Shard{}, strayed: map[lowkiq.Shard]time.Duration{},
	}
}

// pause waits for a kick, or about d. A shard that is given up meanwhile is claimed at
// once: its release is news on the shard's channel.
func (c *claimer) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.kicked:
			return
		case <-timer.C:
			return
		case s := <-c.freed:
			if c.claimFreed(ctx, s) && len(c.missing()) == 0 {
				return
			}
		}
	}
}

// claimFreed claims those shards with news that nobody owns.
func (c *claimer) claimFreed(ctx context.Context, first lowkiq.Shard) (claimed bool) {
	shards := []lowkiq.Shard{first}
	for len(c.freed) > 0 {
		shards = append(shards, <-c.freed)
	}
	var page []*queue.Shard
	for _, s := range shards {
		if on := c.node.queues[s.Queue]; on != nil && s.Index < on.shards() && c.runner(s) == nil && c.wants(s) {
			page = append(page, on.queue.Shard(s.Index))
		}
	}
	if len(page) == 0 {
		return false
	}
	c.subscribe(page)
	owners, err := c.node.client.Owners(ctx, page)
	if err != nil {
		c.trouble("read claims", nil, err)
		return false
	}
	var free []*queue.Shard
	var states []queue.Owner
	for i, owner := range owners {
		if owner.Instance == "" {
			free, states = append(free, page[i]), append(states, owner)
		}
	}
	return c.claimPage(ctx, free, states) > 0
}

// claimAll tries to claim shards and returns how many it got. While it is at it, the
// desire may change: a node that began alone may not be alone any more.
func (c *claimer) claimAll(ctx context.Context, shards []*queue.Shard) (claimed int) {
	for len(shards) > 0 && ctx.Err() == nil && c.mayWork() {
		page := slices.DeleteFunc(slices.Clone(shards[:min(claimPage, len(shards))]), func(s *queue.Shard) bool { return !c.wants(s.Shard) })
		shards = shards[min(claimPage, len(shards)):]
		if len(page) == 0 {
			continue
		}
		c.subscribe(page)
		owners, err := c.node.client.Owners(ctx, page)
		if err != nil {
			c.trouble("read claims", nil, err)
			return claimed
		}
		claimed += c.claimPage(ctx, page, owners)
		c.look()
	}
	return claimed
}

// subscribe asks once for the wake-ups of shards. Their confirmation wakes each runner,
// or has the claim looked at again.
func (c *claimer) subscribe(page []*queue.Shard) {
	var fresh []*queue.Shard
	for _, s := range page {
		if _, waits := c.since[s.Shard]; !waits {
			c.since[s.Shard] = sinceBoot()
		}
		if c.asked[s.Shard] == nil {
			c.asked[s.Shard] = s
			fresh = append(fresh, s)
		}
	}
	if len(fresh) == 0 {
		return
	}
	if err := c.wakes.Add(c.io, fresh...); err != nil {
		c.trouble("subscribe", nil, err) // the next connection subscribes them all
	}
}

// unsubscribe ends the wake-ups of shards that are neither wanted nor run any more.
func (c *claimer) unsubscribe() {
	var gone []*queue.Shard
	for _, s := range c.asked {
		if c.wants(s.Shard) || c.runner(s.Shard) != nil {
			continue
		}
		gone = append(gone, s)
		delete(c.asked, s.Shard)
		delete(c.since, s.Shard)
	}
	if len(gone) == 0 {
		return
	}
	c.unheard(gone)
	if err := c.wakes.Remove(c.io, gone...); err != nil {
		c.trouble("unsubscribe", nil, err)
	}
}

// claimPage claims what may be claimed of a page and returns how many shards that were.
func (c *claimer) claimPage(ctx context.Context, page []*queue.Shard, owners []queue.Owner) (claimed int) {
	if !c.trustworthy(ctx, owners) {
		return 0
	}
	holders := map[string]holderState{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(claimsAtOnce)
	for i, s := range page {
		if ctx.Err() != nil {
			break
		}
		switch step := c.decide(ctx, s, owners[i], holders); step {
		case claimWait:
			if holders[owners[i].Instance].leased {
				c.waiting++
			}
			c.want(ctx, s, owners[i])
		default:
			group.Go(func() error {
				got := c.claim(s, owners[i], step)
				mu.Lock()
				defer mu.Unlock()
				if got {
					claimed++
					c.claimed(s)
				}
				return nil
			})
		}
	}
	group.Wait() //nolint:errcheck // never returns an error
	return claimed
}

// trustworthy reports whether Redis still has this instance's lease, if claims are
// absent. If not, it has lost data: the shards may have owners that do not know it yet,
// and this instance ends, to wait for them as the next one (I1).
func (c *claimer) trustworthy(ctx context.Context, owners []queue.Owner) bool {
	absent := false
	for _, owner := range owners {
		absent = absent || owner.Fence == 0
	}
	if !absent {
		return true
	}
	entry, err := c.node.client.Instance(ctx, c.name)
	if err != nil {
		c.trouble("read instance", nil, err)
		return false
	}
	if entry.Lease == nil {
		c.keeper.Missing()
	}
	return entry.Lease != nil
}

func (c *claimer) decide(ctx context.Context, s *queue.Shard, owner queue.Owner, holders map[string]holderState) claimStep {
	if owner.Instance != "" && !identity.SameBoot(owner.Instance, c.name) {
		c.node.notLast(s.Shard)
	}
	return decideClaim(owner, c.name, c.holder(ctx, owner, holders), c.node.cfg.TTL, c.node.absentHeld(), c.node.ranLast(s.Shard))
}

// want asks the holder for the shard, in case it does not know that it holds it.
func (c *claimer) want(ctx context.Context, s *queue.Shard, owner queue.Owner) {
	if owner.Instance == "" {
		return
	}
	if err := s.Want(ctx, owner); err != nil {
		c.trouble("want", s.Shard, err)
	}
}

// claim makes a runner for a shard if Redis grants it. The request outlives the
// supervisor: a claim that was sent must not be forgotten.
func (c *claimer) claim(s *queue.Shard, owner queue.Owner, step claimStep) bool {
	claim, err := s.Claim(c.io, c.name, queue.Cause(step), owner)
	if err != nil {
		if !errors.Is(err, queue.ErrHeld) {
			c.trouble("claim", s.Shard, err)
		}
		return false
	}
	on := c.node.queues[s.Queue]
	on.metrics.Redelivered.Add(float64(claim.Recovered))
	on.metrics.Buried.Add(float64(claim.Buried))
	on.metrics.Owned.Inc()
	c.node.metrics.Moves.Inc()
	if claim.Unreplicated {
		c.node.metrics.Unreplicated.Inc()
	}
	if step == claimSeize {
		c.log.Info("shard seized", "shard", s.Shard, "from", owner.Instance, "fence", claim.Fence, "recovered", claim.Recovered, "buried", claim.Buried)
	}
	c.node.ran(s.Shard)
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &ownedShard{shard: claim.Shard, on: on, run: runner.New(c.process, c.queues[s.Queue], s.Shard, claim.Fence, claim)}
	if c.heard[s.Shard] {
		r.run.Subscribed()
	}
	c.runners[s.Shard] = r
	return true
}

// claimed starts the work on a shard.
func (c *claimer) claimed(s *queue.Shard) {
	c.node.metrics.Unowned.Observe((sinceBoot() - c.since[s.Shard]).Seconds())
	delete(c.since, s.Shard)
	c.runner(s.Shard).run.Wake()
}
