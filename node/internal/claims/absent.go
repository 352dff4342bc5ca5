package claims

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
)

// AbsentInstances records which instances and claims Redis lacks, and since when. It belongs to a
// process and spans all its instances, so observations of an instance count for the next instance.
type AbsentInstances struct {
	now func() time.Duration

	mu           sync.Mutex
	missingSince map[string]time.Duration // when each instance was first seen without its lease; guarded by mu
	goneAt       map[string]time.Duration // when each instance was proven to be gone with its children; guarded by mu
	lastOwned    map[lowkiq.Shard]int     // the value of lostLeases when this process last owned the shard; guarded by mu
	lostLeases   int                      // how many leases this process has lost; guarded by mu
	heldUntil    time.Duration            // until when absent claims count as held; guarded by mu
}

// NewAbsentInstances returns an empty record. now must be a clock that never jumps.
func NewAbsentInstances(now func() time.Duration) *AbsentInstances {
	return &AbsentInstances{now: now, missingSince: map[string]time.Duration{}, goneAt: map[string]time.Duration{}, lastOwned: map[lowkiq.Shard]int{}}
}

// setLastOwner records that this process owns a shard.
func (a *AbsentInstances) setLastOwner(s lowkiq.Shard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastOwned[s] = a.lostLeases
}

// ClearLastOwner records that another instance owns a shard, or may own it.
func (a *AbsentInstances) ClearLastOwner(s lowkiq.Shard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.lastOwned, s)
}

// ClearLastOwners does the same for all shards of a queue.
func (a *AbsentInstances) ClearLastOwners(queueName string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.lastOwned, func(s lowkiq.Shard, _ int) bool { return s.Queue == queueName })
}

// isLastOwner reports whether no other instance can have owned the shard since this process did.
//
// This process knows that only until its second lost lease. Suppose that Redis loses a claim and the lease of its owner. The
// owner notices, and a ttl later any instance may claim the shard. If Redis then loses everything again, this process has seen
// two losses, and it need not have seen the other owner between them.
func (a *AbsentInstances) isLastOwner(s lowkiq.Shard) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	lost, owned := a.lastOwned[s]
	return owned && lost >= a.lostLeases-1
}

// LeaseLost records the loss of this process's lease. Redis may have lost claims with it, or may have lost data while it was
// out of reach. Owners of lost claims learn of that within a ttl. So absent claims count as held for a ttl (I1).
func (a *AbsentInstances) LeaseLost(ttl time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lostLeases++
	a.heldUntil = a.now() + ttl
}

// absentClaimsHeld reports whether absent claims count as held now.
func (a *AbsentInstances) absentClaimsHeld() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now() < a.heldUntil
}

// missingFor returns for how long this process has seen an instance without its lease. A lease that
// is seen again ends that time, so a wrong answer does no lasting harm.
func (a *AbsentInstances) missingFor(instance string, leased bool) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if leased {
		delete(a.missingSince, instance)
		return 0, false
	}
	since, noted := a.missingSince[instance]
	if !noted {
		since = a.now()
		a.missingSince[instance] = since
	}
	return a.now() - since, true
}

// proveEnded reports whether an instance's process and all of its child processes are proven to be
// gone. It keeps a proof, because the search for the guards of children takes a while.
func (a *AbsentInstances) proveEnded(instance string, id identity.Identity, prove func(identity.Identity) bool) bool {
	a.mu.Lock()
	_, known := a.goneAt[instance]
	a.mu.Unlock()
	if known {
		return true
	}
	if !prove(id) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.goneAt[instance] = a.now()
	return true
}

// forgetInstance deletes what was recorded about the lease of an instance.
func (a *AbsentInstances) forgetInstance(instance string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.missingSince, instance)
}

// forgetOld deletes old records. A record that is needed after all is made anew.
func (a *AbsentInstances) forgetOld() {
	a.mu.Lock()
	defer a.mu.Unlock()
	long := func(_ string, since time.Duration) bool { return a.now()-since > maxForgetAfter }
	maps.DeleteFunc(a.missingSince, long)
	maps.DeleteFunc(a.goneAt, long)
}

const (
	pruneEvery     = 30 * time.Second // how often pruneIndex reads the index of instances
	pruneAfter     = time.Minute      // for other processes to use the proof that an instance is dead
	minForgetAfter = 10 * time.Minute // without lease or proof; seizing its shards takes much less
	maxForgetAfter = time.Hour        // the same, for an instance with a long ttl
)

// isForgettable reports whether the index may forget an instance of this ttl whose lease has been missing for so long.
func isForgettable(missing, ttl time.Duration, proven bool) bool {
	return proven && missing > pruneAfter || missing > min(max(minForgetAfter, 10*ttl), maxForgetAfter)
}

// pruneIndex removes dead instances from the index, which would grow with each crash otherwise. It reads all leases, so only
// those processes do it that read all leases anyway; see "Who should own a shard" in docs/design.md.
func (c *Claims[R]) pruneIndex(ctx context.Context) {
	if !c.p.Prunes() || c.prunedAt != 0 && c.p.Now()-c.prunedAt < pruneEvery {
		return
	}
	c.prunedAt = c.p.Now()
	instances, err := c.p.Redis.Instances(ctx)
	if err != nil {
		return
	}
	for _, other := range instances {
		if other.Name == c.p.Instance {
			continue
		}
		id, ok := identity.ParseIdentity(other.Identity)
		proven := ok && (c.p.IsGone(id.Process) || identity.SameBoot(other.Name, c.p.Instance))
		missing, _ := c.absent.missingFor(other.Name, other.Lease != nil)
		if !isForgettable(missing, time.Duration(id.TTL)*time.Millisecond, proven) {
			continue
		}
		if err := c.p.Redis.DropLease(ctx, other.Name); err != nil {
			c.p.OpFailed("prune", nil, err)
			continue
		}
		c.absent.forgetInstance(other.Name)
	}
	c.absent.forgetOld()
}
