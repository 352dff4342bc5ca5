package claims

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// step is what the supervisor does about a shard that has no runner here.
type step string

const (
	fresh step = step(protocol.Fresh) // claim, because no instance owns it
	self  step = step(protocol.Self)  // claim, because the owner is an instance of this process
	seize step = step(protocol.Seize) // claim, because its owner is dead
	wait  step = "wait"               // do not claim, because another instance may be working on it
)

// holderState is what this process knows about the instance that holds a claim.
type holderState struct {
	leased      bool          // its lease exists
	proven      bool          // its process exists no more, or goes on as a later instance
	departed    bool          // gossip says that its process is dead or has left
	missingFor  time.Duration // how long this process has seen the lease missing, by its own clock
	missingEver bool          // whether this process has seen the lease missing
	ttl         time.Duration // of its lease, 0 if unknown
}

// shardState is what this process knows about a shard without asking its owner.
type shardState struct {
	ttl        time.Duration // of this process's leases
	absentHeld bool          // a claim that is absent counts as held, because Redis has lost data lately
	lastOwner  bool          // this process was the shard's last owner
}

// decideClaim decides what to do about a shard with this owner. The shard has no runner here. So if
// its claim names this instance, the answer to that claim, or the release of it, was lost.
//
//	the claim names              and                                            step
//	no instance, fence 0         Redis has lost data less than a ttl ago, and   wait
//	(Redis has no claim)         this process was not the last owner
//	no instance                  otherwise                                      fresh
//	an instance of this boot                                                    self
//	another instance             its process is gone, or goes on as a later     seize
//	                             instance
//	                             its lease is missing, and gossip says that     seize
//	                             it is dead or has left
//	                             its lease has been missing for a ttl, its own  seize
//	                             or this process's, whichever is longer
//	                             otherwise                                      wait
//
// Only one wrong step is dangerous: to claim a shard while a handler call of its present owner
// runs, or may still begin (I1). Each row excludes that.
//
// No instance, fence 0. Redis has never had a claim, or has lost it. In the second case the owner may still be working, and it
// finds out with its next request, within a ttl. So the claim counts as held for a ttl after this process has learned of a
// loss. If this process was the last owner, nobody else can be working on the shard.
//
// No instance, with a fence. The owner has released the shard, and it did so when no call ran.
//
// An instance of this boot. It is this process, which has no runner for the shard. An earlier
// instance of a process hands all its shards back before the next instance begins.
//
// The process is gone. It runs nothing. The proof covers its child processes, because a handler may
// be a child. If the process goes on as a later instance, the reason is the same as for this boot.
//
// The lease is missing, and gossip says that the process is dead. A lease that has run out proves that the handlers have ended,
// because their process ends them 0.7 ttl after its last renewal. But a lease may also be missing because Redis has lost data.
// Gossip tells these cases apart. Gossip alone is no proof, because it takes a frozen process for dead. If Redis forgets the
// lease of a process that works, and gossip takes it for dead, this row breaks I1. A Redis that forgets acknowledged writes is
// a limit of I1 in docs/design.md.
//
// The lease has been missing for a ttl. A process renews its lease several times in a ttl. So it has
// learned of the loss, or cannot reach Redis, and in both cases it has ended its handlers at 0.7 ttl
// after its last good renewal. The longer ttl counts, as the two processes may be configured
// differently. This process measures with its own clock, which no other clock can shift.
//
// Whatever the decision was, Redis grants a claim only if the owner has not changed since it was read.
func decideClaim(owner protocol.Owner, me string, holder holderState, shard shardState) step {
	switch {
	case owner.Instance == "":
		if owner.Fence == 0 && shard.absentHeld && !shard.lastOwner {
			return wait
		}
		return fresh
	case identity.SameBoot(owner.Instance, me):
		return self
	case holder.proven:
		return seize
	case !holder.leased && holder.departed:
		return seize
	case !holder.leased && holder.missingEver && holder.missingFor >= max(shard.ttl, holder.ttl):
		return seize
	}
	return wait
}

// decideShard decides about a shard with decideClaim. holders keeps the facts about instances for
// the other shards of the same round.
func (c *Claims[R]) decideShard(ctx context.Context, s *protocol.Shard, owner protocol.Owner, holders map[string]holderState) step {
	if owner.Instance != "" && !identity.SameBoot(owner.Instance, c.p.Instance) {
		c.absent.ClearLastOwner(s.Shard)
	}
	shard := shardState{ttl: c.p.TTL, absentHeld: c.absent.absentClaimsHeld(), lastOwner: c.absent.isLastOwner(s.Shard)}
	return decideClaim(owner, c.p.Instance, c.inspectHolder(ctx, owner, holders), shard)
}

// inspectHolder finds out about the instance that holds a claim. If Redis does not answer, it
// returns the state of a holder that is alive, so that nobody seizes its shards.
func (c *Claims[R]) inspectHolder(ctx context.Context, owner protocol.Owner, known map[string]holderState) holderState {
	if owner.Instance == "" || identity.SameBoot(owner.Instance, c.p.Instance) {
		return holderState{}
	}
	if state, ok := known[owner.Instance]; ok {
		return state
	}
	entry, err := c.p.Redis.Instance(ctx, owner.Instance)
	if err != nil {
		c.p.OpFailed("read instance", nil, err)
		known[owner.Instance] = holderState{leased: true}
		return known[owner.Instance]
	}
	id, ok := identity.ParseIdentity(entry.Identity)
	state := holderState{
		leased: entry.Lease != nil, proven: ok && c.absent.proveEnded(owner.Instance, id, c.p.IsGoneWithChildren),
		ttl: time.Duration(id.TTL) * time.Millisecond,
	}
	if state.proven && state.leased { // nobody need wait until the lease of a dead process runs out
		if err := c.p.Redis.EndLease(ctx, owner.Instance); err != nil {
			c.p.OpFailed("end lease", nil, err)
			state.proven = false
		}
	}
	succeeded, departed := c.p.Gossip(owner.Instance)
	state.proven = state.proven || succeeded && !state.leased
	state.departed = departed
	state.missingFor, state.missingEver = c.absent.missingFor(owner.Instance, state.leased)
	known[owner.Instance] = state
	return state
}
