package node

import (
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
)

// Who may claim a shard: the decision, apart from its I/O (design, section 6).

// holderState is what is known of the instance that holds a claim.
type holderState struct {
	leased      bool          // its lease exists
	proven      bool          // its process is proven to exist no more, or has given the instance up
	departed    bool          // gossip says that its process is dead or has left
	missingFor  time.Duration // how long this process has seen its lease missing, by its own clock
	missingEver bool
	ttl         time.Duration // of its lease, if known
}

// claimStep is what to do about a shard that this instance wants.
type claimStep string

const (
	claimFresh claimStep = "fresh" // nobody owns it
	claimSelf  claimStep = "self"  // an instance of this boot owned it, or owns it without knowing
	claimSeize claimStep = "seize" // its owner is dead
	claimWait  claimStep = "wait"  // somebody else may be working on it
)

// decideClaim says what to do about a shard with this owner.
//
// absentHeld: Redis lost data lately, so an absent claim says nothing yet; ranLast: this
// process was the shard's last owner. It is asked for shards without a runner only: a
// claim that says this instance is one whose answer, or whose release, was lost.
func decideClaim(owner queue.Owner, me string, holder holderState, ttl time.Duration, absentHeld, ranLast bool) claimStep {
	switch {
	case owner.Instance == "":
		if owner.Fence == 0 && absentHeld && !ranLast {
			return claimWait
		}
		return claimFresh
	case identity.SameBoot(owner.Instance, me):
		return claimSelf
	case holder.proven:
		return claimSeize
	case !holder.leased && holder.departed:
		return claimSeize
	case !holder.leased && holder.missingEver && holder.missingFor >= max(ttl, holder.ttl):
		return claimSeize
	}
	return claimWait
}
