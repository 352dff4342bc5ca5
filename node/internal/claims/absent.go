package claims

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
)

// AbsentInstances is what a process knows, over all of its own instances, of instances and claims
// that are missing in Redis.
type AbsentInstances struct {
	now func() time.Duration

	mu        sync.Mutex
	since     map[string]time.Duration // since when instances lack their lease; guarded by mu
	gone      map[string]time.Duration // when instances were proven to be gone with all their processes; guarded by mu
	last      map[lowkiq.Shard]int     // shards that this process owned last, and how many leases it had lost then; guarded by mu
	lost      int                      // leases that this process has lost; guarded by mu
	heldUntil time.Duration            // until when absent claims count as held; guarded by mu
}

// NewAbsentInstances makes an empty one.
func NewAbsentInstances(now func() time.Duration) *AbsentInstances {
	return &AbsentInstances{now: now, since: map[string]time.Duration{}, gone: map[string]time.Duration{}, last: map[lowkiq.Shard]int{}}
}

func (a *AbsentInstances) isLastOwner(s lowkiq.Shard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last[s] = a.lost
}

// NotLastOwner notes that another instance has taken a shard, or may have.
func (a *AbsentInstances) NotLastOwner(s lowkiq.Shard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.last, s)
}

// NotLastOwnerOf does the same for all shards of a queue.
func (a *AbsentInstances) NotLastOwnerOf(queueName string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.last, func(s lowkiq.Shard, _ int) bool { return s.Queue == queueName })
}

// lastOwnerOf reports whether no other instance can have owned the shard since this process did.
// That is known of shards that it owned when it lost its last lease, or later: if Redis has lost a
// claim, another instance may take the shard a ttl later, and this process need not see that.
func (a *AbsentInstances) lastOwnerOf(s lowkiq.Shard) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	lost, owned := a.last[s]
	return owned && lost >= a.lost-1
}

// LeaseLost notes the end of this process's lease. If it is missing, Redis may have lost claims
// too, and if Redis was away, it is unknown what it lost meanwhile: absent claims count as held for
// a ttl, the time their owners need to notice (I1).
func (a *AbsentInstances) LeaseLost(ttl time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost++
	a.heldUntil = a.now() + ttl
}

func (a *AbsentInstances) claimsHeld() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now() < a.heldUntil
}

// missing says for how long this process has seen an instance without its lease.
func (a *AbsentInstances) missing(instance string, leased bool) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if leased {
		delete(a.since, instance)
		return 0, false
	}
	since, noted := a.since[instance]
	if !noted {
		since = a.now()
		a.since[instance] = since
	}
	return a.now() - since, true
}

// ended reports whether an instance's process and all of its child processes are proven to be gone.
// A proof is kept: to look for guards of children takes a while.
func (a *AbsentInstances) ended(instance string, id identity.Identity, prove func(identity.Identity) bool) bool {
	a.mu.Lock()
	_, known := a.gone[instance]
	a.mu.Unlock()
	if known {
		return true
	}
	if !prove(id) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone[instance] = a.now()
	return true
}

// forget drops what was noted of an instance.
func (a *AbsentInstances) forget(instance string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.since, instance)
}

// forgetOld drops what was noted of instances long ago; if it is needed, it is noted anew.
func (a *AbsentInstances) forgetOld() {
	a.mu.Lock()
	defer a.mu.Unlock()
	long := func(_ string, since time.Duration) bool { return a.now()-since > forgetMost }
	maps.DeleteFunc(a.since, long)
	maps.DeleteFunc(a.gone, long)
}

const (
	pruneEvery  = 30 * time.Second // the index of instances is looked through
	pruneAfter  = time.Minute      // other processes have this time to use the proof that an instance is dead
	forgetAfter = 10 * time.Minute // at least: an instance without lease or proof; much longer than to seize what it held
	forgetMost  = time.Hour        // at most: the same, of a long ttl
)

// forgettable reports whether the index may forget an instance of this ttl that has been without
// its lease for so long.
func forgettable(missing, ttl time.Duration, proven bool) bool {
	return proven && missing > pruneAfter || missing > min(max(forgetAfter, 10*ttl), forgetMost)
}

// prune has the index of instances forget those that are dead, or it would grow with each crash. It
// reads all leases, so it is for those who look at all of them anyway; see "Who should own a shard"
// in docs/design.md.
func (c *Claims[R]) prune(ctx context.Context) {
	if !c.p.Prunes() || c.pruned != 0 && c.p.Now()-c.pruned < pruneEvery {
		return
	}
	c.pruned = c.p.Now()
	instances, err := c.p.Redis.Instances(ctx)
	if err != nil {
		return
	}
	for _, other := range instances {
		if other.Name == c.p.Instance {
			continue
		}
		id, ok := identity.Parse(other.Identity)
		proven := ok && (c.p.Gone(id.Process) || identity.SameBoot(other.Name, c.p.Instance))
		missing, _ := c.absent.missing(other.Name, other.Lease != nil)
		if !forgettable(missing, time.Duration(id.TTL)*time.Millisecond, proven) {
			continue
		}
		if err := c.p.Redis.DropLease(ctx, other.Name); err != nil {
			c.p.OpFailed("prune", nil, err)
			continue
		}
		c.absent.forget(other.Name)
	}
	c.absent.forgetOld()
}
