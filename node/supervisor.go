package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq/queue"
)

// The supervisor: a diff between desired and held shards, and two loops.

// supervise claims what is desired and not held, and drops what was fenced, until ctx
// ends.
func (in *instance) supervise(ctx context.Context) {
	c := newClaimer(in)
	wait := claimRetryLeast
	for ctx.Err() == nil {
		in.look()
		c.giveUp()
		c.unsubscribe()
		missing := in.missing()
		c.waiting = 0
		claimed := c.claimAll(ctx, missing)
		known := in.desired.Load().known
		placed := in.placed()
		in.node.settled.Store(known && placed && claimed+c.waiting == len(missing))
		switch {
		case known && placed && claimed == len(missing):
			in.prune(ctx)
			wait = claimRetryLeast
			c.pause(ctx, pruneEvery)
			continue
		case claimed > 0:
			wait = claimRetryLeast
		}
		c.pause(ctx, wait)
		wait = min(2*wait, claimRetryMost)
	}
}

// missing lists the desired shards that have no runner.
func (in *instance) missing() (shards []*queue.Shard) {
	in.mu.Lock()
	defer in.mu.Unlock()
	desired := in.desired.Load()
	if desired.all {
		for _, on := range in.node.queues {
			for i := range on.shards() {
				if s := on.queue.Shard(i); in.runners[s.Shard] == nil {
					shards = append(shards, s)
				}
			}
		}
		return shards
	}
	for s := range desired.of {
		if on := in.node.queues[s.Queue]; on != nil && in.runners[s] == nil && s.Index < on.shards() {
			shards = append(shards, on.queue.Shard(s.Index))
		}
	}
	slices.SortFunc(shards, func(x, y *queue.Shard) int {
		return cmp.Or(strings.Compare(x.Queue, y.Queue), cmp.Compare(x.Index, y.Index))
	})
	return shards
}

// part lets go of a shard whose handlers have returned: it is given back, or, if another
// instance has claimed it meanwhile, forgotten.
func (in *instance) part(r *ownedShard) {
	fenced, taken := r.run.Fenced()
	if !fenced {
		ctx, cancel := in.patience(1)
		defer cancel()
		in.release(ctx, r)
		return
	}
	in.log.Warn("shard lost", "shard", r.shard, "fence", r.run.Fence, "claimed by another instance", taken)
	if taken {
		in.node.notLast(r.shard.Shard)
	}
	in.forget(r)
}

// forget removes a runner that does nothing any more.
func (in *instance) forget(r *ownedShard) {
	r.run.Close()
	if in.refusals.forget(r.shard.Shard) {
		in.keeper.Poke()
	}
	in.mu.Lock()
	delete(in.runners, r.shard.Shard)
	in.mu.Unlock()
	r.on.metrics.Owned.Dec()
	in.node.metrics.Moves.Inc()
	select {
	case in.parted <- struct{}{}:
	default:
	}
}

// handBack stops all runners, waits for their handlers, acknowledges and releases.
func (in *instance) handBack() {
	begun := time.Now()
	runners := in.all()
	for _, r := range runners {
		r.run.Stop()
	}
	returned := make(chan struct{})
	go func() { in.lanes.Wait(); close(returned) }()
	if in.stop.Err() != nil {
		in.calls.AwaitShutdown(returned, in.node.cfg.ShutdownTimeout, in.log)
	}
	<-returned
	in.handovers.Wait()
	runners = in.all() // without those that were on their way already
	ctx, cancel := in.patience(len(runners))
	defer cancel()
	var group errgroup.Group
	group.SetLimit(claimsAtOnce)
	for _, r := range runners {
		group.Go(func() error {
			in.release(ctx, r)
			in.node.metrics.Handover.Observe(time.Since(begun).Seconds())
			return nil
		})
	}
	group.Wait() //nolint:errcheck // never returns an error
}

// releasePatience is how long the releases of an instance may take, and a millisecond
// more for each.
const releasePatience = 3 * time.Second

// patience is for how long the last words of n shards are repeated while Redis is out of
// reach. A process that goes on needs Redis for its next lease anyhow, so it waits: then
// what was finished during the outage is acknowledged and not handled again. One that is
// told to stop has a deadline for all shards together.
func (in *instance) patience(n int) (context.Context, context.CancelFunc) {
	short := releasePatience + time.Duration(n)*time.Millisecond
	if in.stop.Err() != nil {
		return context.WithTimeout(in.io, short)
	}
	ctx, cancel := context.WithCancel(in.io)
	hurry := context.AfterFunc(in.stop, func() { time.AfterFunc(short, cancel) })
	return ctx, func() { hurry(); cancel() }
}

// release gives one stopped shard back. A lost lease does not forbid it: Redis knows
// whether somebody else has claimed the shard meanwhile.
func (in *instance) release(ctx context.Context, r *ownedShard) {
	defer in.forget(r)
	err := r.run.Release(ctx)
	var refusal *queue.FencedError
	switch {
	case err == nil:
		in.node.notLast(r.shard.Shard) // from now on anybody may claim it
	case errors.As(err, &refusal):
		in.node.metrics.Fenced("release")
		if refusal.Owner.Fence != 0 { // else Redis has lost the claim: this process was its last owner
			in.node.notLast(r.shard.Shard)
		}
	default:
		in.trouble("release", r.shard, err)
	}
}
