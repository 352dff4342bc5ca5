package claims

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// The supervisor tries again to claim shards that other instances have, at first after minRetry.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = time.Second
)

// Supervise compares the desired shards with the shards that have a runner, until ctx ends. It claims desired shards without a
// runner. It gives back shards that are not desired, that Redis has refused by the fence, or that are out of sync with Redis.
func (c *Claims[R]) Supervise(ctx context.Context) {
	cl, h := newClaimer(c), newHandover(c)
	wait := minRetry
	for ctx.Err() == nil {
		c.refreshDesired()
		h.startLeaving()
		cl.unsubscribeUnneeded()
		missing := c.missingShards()
		cl.ownedElsewhere = 0
		claimed := cl.claimShards(ctx, missing)
		known := c.desired.Load().Known && c.p.Placed()
		c.p.Observer.AllOwned(known && claimed+cl.ownedElsewhere == len(missing))
		switch {
		case known && claimed == len(missing):
			c.pruneIndex(ctx)
			wait = minRetry
			c.awaitChange(ctx, cl, pruneEvery)
			continue
		case claimed > 0:
			wait = minRetry
		}
		c.awaitChange(ctx, cl, wait)
		wait = min(2*wait, maxRetry)
	}
}

// awaitChange returns after a kick, or after about d. It claims a shard that its owner releases in
// the meantime at once. Such a release is published on the shard's channel.
func (c *Claims[R]) awaitChange(ctx context.Context, cl *claimer[R], d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.rechecks:
			return
		case <-timer.C:
			return
		case s := <-c.freed:
			if cl.claimFreed(ctx, s) > 0 && len(c.missingShards()) == 0 {
				return
			}
		}
	}
}

// missingShards returns the desired shards that have no runner.
func (c *Claims[R]) missingShards() (shards []*protocol.Shard) {
	c.mu.Lock()
	defer c.mu.Unlock()
	desired := c.desired.Load()
	if desired.All {
		return slices.DeleteFunc(c.p.Shards(), func(s *protocol.Shard) bool { return c.owned[s.Shard] != nil })
	}
	for s := range desired.Of {
		if shard := c.p.Shard(s); shard != nil && c.owned[s] == nil {
			shards = append(shards, shard)
		}
	}
	slices.SortFunc(shards, func(x, y *protocol.Shard) int {
		return cmp.Or(strings.Compare(x.Queue, y.Queue), cmp.Compare(x.Index, y.Index))
	})
	return shards
}
