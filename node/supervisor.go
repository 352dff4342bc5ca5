package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// The supervisor: a diff between desired and held shards, and two loops.

// How often a shard that somebody else holds is tried again, and how many scripts run
// at once.
const (
	claimRetryLeast = 100 * time.Millisecond
	claimRetryMost  = time.Second
	claimsAtOnce    = 16
	claimPage       = 200
)

// supervise claims what is desired and not held, and drops what was fenced, until ctx
// ends.
func (in *instance) supervise(ctx context.Context) {
	wait := claimRetryLeast
	since := map[lowkiq.Shard]time.Duration{}
	for {
		in.dropFenced()
		missing := in.missing(since)
		claimed := in.claimAll(ctx, missing, since)
		switch {
		case claimed > 0:
			wait = claimRetryLeast
		case len(missing) > 0:
			wait = min(2*wait, claimRetryMost)
		}
		in.node.claimed.Store(claimed == len(missing))
		if claimed == len(missing) {
			in.prune(ctx)
			wait = time.Hour
		}
		if !in.pause(ctx, wait) {
			return
		}
		wait = min(wait, claimRetryMost)
	}
}

// pause waits for a kick, or about d. It returns false when ctx has ended.
func (in *instance) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-in.kicked:
	case <-timer.C:
	}
	return true
}

// missing lists the desired shards that have no runner, noting since when.
func (in *instance) missing(since map[lowkiq.Shard]time.Duration) (shards []*queue.Shard) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, on := range in.node.queues {
		for i := range on.queue.Shards {
			s := on.queue.Shard(i)
			if in.runners[s.Shard] != nil {
				continue
			}
			shards = append(shards, s)
			if _, noted := since[s.Shard]; !noted {
				since[s.Shard] = sinceBoot()
			}
		}
	}
	return shards
}

// claimAll tries to claim shards and returns how many it got.
func (in *instance) claimAll(ctx context.Context, shards []*queue.Shard, since map[lowkiq.Shard]time.Duration) (claimed int) {
	holders := map[string]holderState{}
	for len(shards) > 0 && ctx.Err() == nil && in.mayWork() {
		page := shards[:min(claimPage, len(shards))]
		shards = shards[len(page):]
		owners, err := in.node.client.Owners(ctx, page)
		if err != nil {
			in.trouble("read claims", nil, err)
			return claimed
		}
		got := in.claimPage(ctx, page, owners, holders)
		in.subscribe(got)
		for _, s := range got {
			in.node.metrics.Unowned.Observe((sinceBoot() - since[s.Shard]).Seconds())
			delete(since, s.Shard)
			in.runner(s.Shard).wake()
		}
		claimed += len(got)
	}
	return claimed
}

func (in *instance) claimPage(ctx context.Context, page []*queue.Shard, owners []queue.Owner, holders map[string]holderState) (got []*queue.Shard) {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(claimsAtOnce)
	for i, s := range page {
		step := decideClaim(owners[i], in.name, in.holder(ctx, owners[i], holders), in.node.cfg.TTL, in.node.absentHeld(), in.node.ranLast(s.Shard))
		if step == claimWait {
			in.want(ctx, s, owners[i])
			continue
		}
		group.Go(func() error {
			if in.claim(ctx, s, owners[i], step) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, s)
			}
			return nil
		})
	}
	group.Wait() //nolint:errcheck // never returns an error
	return got
}

// want asks the holder for the shard, in case it does not know that it holds it.
func (in *instance) want(ctx context.Context, s *queue.Shard, owner queue.Owner) {
	if owner.Instance == "" {
		return
	}
	if err := s.Want(ctx, owner.Fence); err != nil {
		in.trouble("want", s.Shard, err)
	}
}

// claim makes a runner for a shard if Redis grants it.
func (in *instance) claim(ctx context.Context, s *queue.Shard, owner queue.Owner, step claimStep) bool {
	var claim *queue.Claim
	var err error
	if step == claimAdopt {
		claim = s.Adopt(in.name, owner.Fence)
	} else {
		claim, err = s.Claim(ctx, in.name, queue.Cause(step), owner)
	}
	if err != nil {
		if !errors.Is(err, queue.ErrHeld) {
			in.trouble("claim", s.Shard, err)
		}
		return false
	}
	on := in.node.queues[s.Queue]
	on.metrics.Redelivered.Add(float64(claim.Recovered))
	on.metrics.Owned.Inc()
	in.node.metrics.Moves.Inc()
	if step == claimSeize {
		in.log.Info("shard seized", "shard", s.Shard, "from", owner.Instance, "fence", claim.Fence, "recovered", claim.Recovered, "buried", claim.Buried)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.runners[s.Shard] = newRunner(in, on, claim)
	in.node.ran(s.Shard)
	return true
}

// dropFenced forgets runners whose claim is gone, once their handlers have returned.
func (in *instance) dropFenced() {
	for _, r := range in.all() {
		r.mu.Lock()
		fenced := r.fenced
		r.mu.Unlock()
		if !fenced {
			continue
		}
		select {
		case <-r.stop():
			in.log.Warn("shard lost: another instance claimed it", "shard", r.claim.Shard, "fence", r.claim.Fence)
			in.node.notLast(r.claim.Shard.Shard)
			in.forget(r)
		default:
			time.AfterFunc(claimRetryLeast, in.kick)
		}
	}
}

// forget removes a runner that does nothing any more.
func (in *instance) forget(r *runner) {
	r.mu.Lock()
	slot := r.slot
	r.slot = false
	r.mu.Unlock()
	if slot {
		in.probation.give()
	}
	r.flush.Stop()
	r.cancel(lowkiq.ErrShutdown)
	in.mu.Lock()
	delete(in.runners, r.claim.Shard.Shard)
	in.mu.Unlock()
	r.on.metrics.Owned.Dec()
	in.node.metrics.Moves.Inc()
	in.unsubscribe(r.claim.Shard)
}

// handBack stops all runners, waits for their handlers, acknowledges and releases.
func (in *instance) handBack(stop context.Context) {
	begun := time.Now()
	runners := in.all()
	for _, r := range runners {
		r.stop()
	}
	in.await(stop)
	var group errgroup.Group
	group.SetLimit(claimsAtOnce)
	for _, r := range runners {
		group.Go(func() error {
			in.release(r)
			in.node.metrics.Handover.Observe(time.Since(begun).Seconds())
			return nil
		})
	}
	group.Wait() //nolint:errcheck // never returns an error
}

// release gives one stopped shard back. A lost lease does not forbid it: Redis knows
// whether somebody else has claimed the shard meanwhile.
func (in *instance) release(r *runner) {
	defer in.forget(r)
	<-r.idle
	ctx, cancel := context.WithTimeout(in.io, 2*time.Second)
	defer cancel()
	if acks := r.takeAcks(); len(acks) > 0 {
		if _, err := r.claim.Ack(ctx, acks...); err == nil {
			r.acknowledged(acks)
		} else {
			in.trouble("ack", r.claim.Shard, err)
		}
	}
	_, err := r.claim.Release(ctx)
	switch {
	case err == nil:
	case errors.Is(err, lowkiq.ErrFenced):
		in.node.metrics.Fenced("release")
		in.node.notLast(r.claim.Shard.Shard)
	default:
		in.trouble("release", r.claim.Shard, err)
	}
}
