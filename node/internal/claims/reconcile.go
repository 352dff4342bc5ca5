package claims

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue"
)

// How often shards that other instances have are looked at.
const (
	retryLeast = 100 * time.Millisecond
	retryMost  = time.Second
)

// Supervise compares the desired shards with those that have a runner, until ctx ends: it claims
// what is missing, and gives back what is not desired, was fenced, or is out of sync with Redis.
func (c *Claims[R]) Supervise(ctx context.Context) {
	cl, h := newClaimer(c), newHandover(c)
	wait := retryLeast
	for ctx.Err() == nil {
		c.look()
		h.begin()
		cl.unsubscribe()
		missing := c.missing()
		cl.waiting = 0
		claimed := cl.claimAll(ctx, missing)
		known := c.desired.Load().Known && c.p.Placed()
		c.p.Told.AllOwned(known && claimed+cl.waiting == len(missing))
		switch {
		case known && claimed == len(missing):
			c.prune(ctx)
			wait = retryLeast
			c.pause(ctx, cl, pruneEvery)
			continue
		case claimed > 0:
			wait = retryLeast
		}
		c.pause(ctx, cl, wait)
		wait = min(2*wait, retryMost)
	}
}

// pause waits for a kick, or about d. A shard that is released meanwhile is claimed at once: its
// release is news on the shard's channel.
func (c *Claims[R]) pause(ctx context.Context, cl *claimer[R], d time.Duration) {
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
			if cl.claimFreed(ctx, s) > 0 && len(c.missing()) == 0 {
				return
			}
		}
	}
}

// missing lists the desired shards that have no runner.
func (c *Claims[R]) missing() (shards []*queue.Shard) {
	c.mu.Lock()
	defer c.mu.Unlock()
	desired := c.desired.Load()
	if desired.All {
		return slices.DeleteFunc(c.p.Shards(), func(s *queue.Shard) bool { return c.owned[s.Shard] != nil })
	}
	for s := range desired.Of {
		if shard := c.p.Shard(s); shard != nil && c.owned[s] == nil {
			shards = append(shards, shard)
		}
	}
	slices.SortFunc(shards, func(x, y *queue.Shard) int {
		return cmp.Or(strings.Compare(x.Queue, y.Queue), cmp.Compare(x.Index, y.Index))
	})
	return shards
}
