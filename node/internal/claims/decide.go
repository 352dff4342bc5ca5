package claims

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
)

// step is what to do about a shard that has no runner here.
type step string

const (
	fresh step = step(queue.Fresh) // claim: no instance owns it
	self  step = step(queue.Self)  // claim: an instance of this process owned it, or owns it without knowing
	seize step = step(queue.Seize) // claim: its owner is dead
	wait  step = "wait"            // another instance may be working on it
)

// holderState is what is known of the instance that holds a claim.
type holderState struct {
	leased      bool          // its lease exists
	proven      bool          // its process is proven to exist no more, or goes on as a later instance
	departed    bool          // gossip says that its process is dead or has left
	missingFor  time.Duration // how long this process has seen its lease missing, by its own clock
	missingEver bool
	ttl         time.Duration // of its lease, if known
}

// shardState is what this process knows of a shard and its Redis.
type shardState struct {
	ttl        time.Duration // of this process's leases
	absentHeld bool          // Redis has lost data lately, so an absent claim says nothing yet
	lastOwner  bool          // this process was the shard's last owner
}

// decideClaim says what to do about a shard with this owner. It is asked for shards without a
// runner only: a claim that names this instance is one whose answer, or whose release, was lost.
//
//	the claim names              and                                            step
//	no instance, fence 0         Redis has lost data less than a ttl ago, and   wait: its owner may not
//	(Redis knows of no claim)    this process was not the last owner            know that it has lost it
//	no instance                  otherwise                                      fresh
//	an instance of this boot                                                    self
//	another instance             its process is gone, or goes on as a later     seize
//	                             instance
//	                             its lease is missing, and by gossip it is      seize
//	                             dead or has left
//	                             its lease has been missing for a ttl, its own  seize
//	                             or this process's, whichever is longer
//	                             otherwise                                      wait
func decideClaim(owner queue.Owner, me string, holder holderState, shard shardState) step {
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

// decideOn decides about a shard, with what is known and what Redis says of its owner. holders
// keeps that for the other shards of the same round.
func (c *Claims[R]) decideOn(ctx context.Context, s *queue.Shard, owner queue.Owner, holders map[string]holderState) step {
	if owner.Instance != "" && !identity.SameBoot(owner.Instance, c.p.Instance) {
		c.absent.NotLastOwner(s.Shard)
	}
	shard := shardState{ttl: c.p.TTL, absentHeld: c.absent.claimsHeld(), lastOwner: c.absent.lastOwnerOf(s.Shard)}
	return decideClaim(owner, c.p.Instance, c.holder(ctx, owner, holders), shard)
}

// holder finds out about the instance that holds a claim.
func (c *Claims[R]) holder(ctx context.Context, owner queue.Owner, known map[string]holderState) holderState {
	if owner.Instance == "" || identity.SameBoot(owner.Instance, c.p.Instance) {
		return holderState{}
	}
	if state, ok := known[owner.Instance]; ok {
		return state
	}
	entry, err := c.p.Redis.Instance(ctx, owner.Instance)
	if err != nil {
		c.p.OpFailed("read instance", nil, err)
		known[owner.Instance] = holderState{leased: true} // unknown: wait
		return known[owner.Instance]
	}
	id, ok := identity.Parse(entry.Identity)
	state := holderState{
		leased: entry.Lease != nil, proven: ok && c.absent.ended(owner.Instance, id, c.p.Ended),
		ttl: time.Duration(id.TTL) * time.Millisecond,
	}
	if state.proven && state.leased { // its lease need not run out
		if err := c.p.Redis.EndLease(ctx, owner.Instance); err != nil {
			c.p.OpFailed("end lease", nil, err)
			state.proven = false
		}
	}
	succeeded, departed := c.p.Gossip(owner.Instance)
	state.proven = state.proven || succeeded && !state.leased
	state.departed = departed
	state.missingFor, state.missingEver = c.absent.missing(owner.Instance, state.leased)
	known[owner.Instance] = state
	return state
}
