package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
)

// The leader looks for shards that nobody works on; without a cluster the first of the nodes does. It compares what the leases say with
// the registry, and reads claims only where the sum is wrong. It tells people, and gives
// back what the dead left in flight in queues that nobody handles any more: no node would
// seize such a shard, and its jobs would be in flight for ever (I2).

// unownedPause is between two pages of claims: at most 1,000 a second are read.
const unownedPause = time.Second * claimPage / 1000

// unownedLeast and unownedMost say, in ttls, how often a queue with a wrong sum is looked
// at, from the first look on.
const (
	unownedLeast = 1
	unownedMost  = 16
)

// unowned are the shards that nobody owns, as the leader found: a scrape reads their figures, or a
// queue that nobody handles would have no lag. A queue's are found anew with its next look.
type unowned struct {
	mu     sync.Mutex
	shards map[string][]*queue.Shard // by queue
}

func (u *unowned) set(name string, shards []*queue.Shard) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.shards == nil {
		u.shards = map[string][]*queue.Shard{}
	}
	u.shards[name] = shards
}

func (u *unowned) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.shards = nil
}

// list returns the shards that the instance has not come to own meanwhile.
func (u *unowned) list(in *instance) (list []*queue.Shard) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, shards := range u.shards {
		for _, s := range shards {
			if in.runner(s.Shard) == nil {
				list = append(list, s)
			}
		}
	}
	return list
}

// watcher looks for unowned shards while its process leads.
type watcher struct {
	*claimer
	doubts map[string]*doubt             // by queue
	known  map[string]bool               // the queues that are exported
	given  map[lowkiq.Shard]*queue.Shard // claimed to be given back, and no answer said that it was
}

// doubt is a queue whose owned shards do not add up.
type doubt struct {
	again int // looks of the watch until the claims are read
	pause int // looks between two readings
}

// watchUnowned looks once per ttl until ctx ends.
func (in *instance) watchUnowned(ctx context.Context) {
	w := &watcher{claimer: newClaimer(in), doubts: map[string]*doubt{}, known: map[string]bool{}, given: map[lowkiq.Shard]*queue.Shard{}}
	defer w.resign()
	ticker := time.NewTicker(in.node.cfg.TTL)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.letGo(ctx)
			w.look(ctx)
		}
	}
}

func (w *watcher) look(ctx context.Context) {
	entries := w.node.registry.Load()
	live, leads := w.live(ctx)
	if !leads || !w.mayWork() || entries == nil {
		w.resign()
		return
	}
	handled, owned := sums(live)
	for name := range w.known {
		if _, registered := entries.all[name]; !registered {
			w.node.metrics.ForgetQueue(name)
			w.node.unowned.set(name, nil)
			delete(w.known, name)
			delete(w.doubts, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries.all)) {
		if owned[name] == entries.all[name].Shards {
			delete(w.doubts, name)
			w.tell(name, nil, true)
			continue
		}
		if !w.due(name) {
			continue
		}
		if err := w.read(ctx, name, handled[name]); err != nil {
			w.trouble("look for unowned shards of "+name, nil, err)
		}
	}
}

// live returns the leases of now, and whether this process is the one to look: the leader, or
// without a cluster the first by its instance's name.
func (w *watcher) live(ctx context.Context) (live []LeaseInfo, leads bool) {
	if c := w.node.cluster; c != nil {
		recent := c.sight.recent.Load()
		if recent == nil || !c.agent.Status().Leading {
			return nil, false
		}
		return recent.live, true
	}
	instances, err := w.node.leases.Instances(ctx)
	if err != nil {
		w.trouble("read the leases", nil, err)
		return nil, false
	}
	leads = true
	for _, other := range instances {
		if info, err := identity.ParseLease(other.Lease); err == nil && other.Lease != nil {
			live = append(live, info)
			leads = leads && w.name <= other.Name
		}
	}
	return live, leads
}

// tell exports what was found of a queue.
func (w *watcher) tell(name string, shards []*queue.Shard, handled bool) {
	w.known[name] = true
	w.node.metrics.SetUnowned(name, len(shards), handled)
	w.node.unowned.set(name, shards)
}

// resign ends what this process exports: it does not lead.
func (w *watcher) resign() {
	clear(w.doubts)
	clear(w.known)
	w.node.metrics.NoUnowned()
	w.node.unowned.forget()
}

// sums adds up what leases say: who is handled at all, and how many shards are owned.
func sums(live []LeaseInfo) (handled map[string]bool, owned map[string]int) {
	handled, owned = map[string]bool{}, map[string]int{}
	for _, info := range live {
		for name, n := range info.Queues {
			handled[name] = true
			owned[name] += n
		}
	}
	return handled, owned
}

// due says whether to read a queue's claims at this look: not at the first one, as shards
// may be on their way, and then more and more rarely.
func (w *watcher) due(name string) bool {
	d := w.doubts[name]
	if d == nil {
		w.doubts[name] = &doubt{again: unownedLeast, pause: unownedLeast}
		return false
	}
	if d.again--; d.again > 0 {
		return false
	}
	d.pause = min(2*d.pause, unownedMost)
	d.again = d.pause
	return true
}

// read counts the shards of a queue that nobody alive owns.
func (w *watcher) read(ctx context.Context, name string, handled bool) error {
	q, err := w.node.leases.Queue(ctx, name)
	if err != nil {
		return err
	}
	var unowned []*queue.Shard
	holders := map[string]holderState{}
	for page := range slices.Chunk(q.All(), claimPage) {
		owners, err := w.node.leases.Owners(ctx, page)
		if err != nil {
			return err
		}
		for i, owner := range owners {
			if w.unowned(ctx, page[i], owner, holders) {
				unowned = append(unowned, page[i])
				if !handled {
					w.giveBack(ctx, page[i], owner, holders)
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(unownedPause):
		}
	}
	w.tell(name, unowned, handled)
	return nil
}

func (w *watcher) unowned(ctx context.Context, s *queue.Shard, owner queue.Owner, holders map[string]holderState) bool {
	switch {
	case owner.Instance == "":
		return true
	case identity.SameBoot(owner.Instance, w.name):
		return w.node.queues[s.Queue] == nil // it was claimed to be given back
	}
	return !w.holder(ctx, owner, holders).leased
}

// letGo gives back what this process may own by a lost answer, whether it still leads or not:
// a node that begins to handle the queue would wait for it as long as this one lives (I4).
func (w *watcher) letGo(ctx context.Context) {
	for _, s := range w.given {
		owner, err := s.Owner(ctx)
		switch {
		case err != nil:
			w.trouble("read claim", s.Shard, err)
		case identity.SameBoot(owner.Instance, w.name):
			w.giveBack(ctx, s, owner, map[string]holderState{})
		case w.holder(ctx, owner, map[string]holderState{}).leased || owner.Instance == "":
			delete(w.given, s.Shard)
		}
	}
}

// giveBack claims a shard from the dead and releases it: what was in flight waits again.
func (w *watcher) giveBack(ctx context.Context, s *queue.Shard, owner queue.Owner, holders map[string]holderState) {
	if owner.Instance == "" || w.node.queues[s.Queue] != nil {
		return
	}
	step := w.decide(ctx, s, owner, holders)
	if step == claimWait {
		return
	}
	w.given[s.Shard] = s
	claim, err := s.Claim(w.io, w.name, queue.Cause(step), owner)
	if err == nil {
		_, err = claim.Release(w.io)
		w.log.Info("shard of a queue nobody handles given back", "shard", s.Shard, "from", owner.Instance, "recovered", claim.Recovered)
	}
	switch {
	case err == nil:
		delete(w.given, s.Shard)
	case !errors.Is(err, queue.ErrHeld) && !errors.Is(err, lowkiq.ErrFenced): // else the next look says whose it is
		w.trouble("give back", s.Shard, err)
	}
}
