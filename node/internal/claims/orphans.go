package claims

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
)

// orphanPause is between two pages of claims: at most 1,000 a second are read.
const orphanPause = time.Second * pageSize / 1000

// mismatchMost is how often a queue whose shards do not add up is looked at: after one look of the
// scanner, and then after twice as many each time, up to these.
const mismatchMost = 16

// Orphans is what the scanner of orphaned shards needs of its process.
type Orphans struct {
	// Leads returns the leases of now, and whether this process is the one that is to scan.
	Leads  func(context.Context) (live []identity.Lease, leads bool)
	Queues func() map[string]int // the shards of the registered queues; nil: not read yet
	Shards func(ctx context.Context, queueName string) ([]*queue.Shard, error)

	Found  func(queueName string, unowned []*queue.Shard, handled bool)
	Forget func(queueName string) // it is not registered any more
	Resign func()                 // this process scans no more
}

// orphanScanner looks for shards that no live instance owns. It compares what the leases say with
// the registry, and reads claims only where the sum is wrong. It exports what it finds, and
// recovers what dead instances left in flight in queues that no node handles any more: no node
// would seize such a shard, and its jobs would be in flight for ever (I2). It has no runners.
type orphanScanner[R Runner] struct {
	c          *Claims[R]
	o          Orphans
	mismatches map[string]*mismatch          // by queue
	exported   map[string]bool               // queues
	recovering map[lowkiq.Shard]*queue.Shard // claimed to be released, and no answer said that it was
}

// mismatch is a queue whose owned shards do not add up.
type mismatch struct {
	again int // looks until the claims are read
	pause int // looks between two readings
}

// ScanOrphans looks once per ttl until ctx ends. The cluster's leader does; without a cluster one
// node.
func (c *Claims[R]) ScanOrphans(ctx context.Context, o Orphans) {
	w := &orphanScanner[R]{c: c, o: o, mismatches: map[string]*mismatch{}, exported: map[string]bool{}, recovering: map[lowkiq.Shard]*queue.Shard{}}
	defer w.resign()
	ticker := time.NewTicker(c.p.TTL)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.release(ctx)
			w.look(ctx)
		}
	}
}

func (w *orphanScanner[R]) look(ctx context.Context) {
	registered := w.o.Queues()
	live, leads := w.o.Leads(ctx)
	if !leads || !w.c.p.MayWork() || registered == nil {
		w.resign()
		return
	}
	handled, owned := sums(live)
	for name := range w.exported {
		if _, there := registered[name]; !there {
			w.o.Forget(name)
			delete(w.exported, name)
			delete(w.mismatches, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		if owned[name] == registered[name] {
			delete(w.mismatches, name)
			w.export(name, nil, true)
			continue
		}
		if !w.due(name) {
			continue
		}
		if err := w.read(ctx, name, handled[name]); err != nil {
			w.c.p.OpFailed("look for unowned shards of "+name, nil, err)
		}
	}
}

func (w *orphanScanner[R]) export(name string, unowned []*queue.Shard, handled bool) {
	w.exported[name] = true
	w.o.Found(name, unowned, handled)
}

// resign ends what this process exports.
func (w *orphanScanner[R]) resign() {
	clear(w.mismatches)
	clear(w.exported)
	w.o.Resign()
}

// sums adds up what leases say: which queues are handled at all, and how many shards of each are
// owned.
func sums(live []identity.Lease) (handled map[string]bool, owned map[string]int) {
	handled, owned = map[string]bool{}, map[string]int{}
	for _, lease := range live {
		for name, n := range lease.Queues {
			handled[name] = true
			owned[name] += n
		}
	}
	return handled, owned
}

// due says whether to read a queue's claims at this look: not at the first one, as shards may be on
// their way, and then more and more rarely.
func (w *orphanScanner[R]) due(name string) bool {
	m := w.mismatches[name]
	if m == nil {
		w.mismatches[name] = &mismatch{again: 1, pause: 1}
		return false
	}
	if m.again--; m.again > 0 {
		return false
	}
	m.pause = min(2*m.pause, mismatchMost)
	m.again = m.pause
	return true
}

// read counts the shards of a queue that no live instance owns.
func (w *orphanScanner[R]) read(ctx context.Context, name string, handled bool) error {
	shards, err := w.o.Shards(ctx, name)
	if err != nil {
		return err
	}
	var unowned []*queue.Shard
	holders := map[string]holderState{}
	for page := range slices.Chunk(shards, pageSize) {
		owners, err := w.c.p.Redis.Owners(ctx, page)
		if err != nil {
			return err
		}
		for i, owner := range owners {
			if !w.orphaned(ctx, page[i], owner, holders) {
				continue
			}
			unowned = append(unowned, page[i])
			if !handled {
				w.recover(ctx, page[i], owner, holders)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(orphanPause):
		}
	}
	w.export(name, unowned, handled)
	return nil
}

func (w *orphanScanner[R]) orphaned(ctx context.Context, s *queue.Shard, owner queue.Owner, holders map[string]holderState) bool {
	switch {
	case owner.Instance == "":
		return true
	case identity.SameBoot(owner.Instance, w.c.p.Instance):
		return w.c.p.Shard(s.Shard) == nil // it was claimed to be released
	}
	return !w.c.holder(ctx, owner, holders).leased
}

// release gives up what this process may own by a lost answer, whether it still leads or not: a
// node that begins to handle the queue would wait for it as long as this one lives (I4).
func (w *orphanScanner[R]) release(ctx context.Context) {
	for _, s := range w.recovering {
		owners, err := w.c.p.Redis.Owners(ctx, []*queue.Shard{s})
		switch {
		case err != nil:
			w.c.p.OpFailed("read claim", s.Shard, err)
		case identity.SameBoot(owners[0].Instance, w.c.p.Instance):
			w.recover(ctx, s, owners[0], map[string]holderState{})
		case owners[0].Instance == "" || w.c.holder(ctx, owners[0], map[string]holderState{}).leased:
			delete(w.recovering, s.Shard)
		}
	}
}

// recover claims a shard of a dead instance and releases it: what was in flight waits again.
func (w *orphanScanner[R]) recover(ctx context.Context, s *queue.Shard, owner queue.Owner, holders map[string]holderState) {
	if owner.Instance == "" || w.c.p.Shard(s.Shard) != nil {
		return
	}
	cause := w.c.decideOn(ctx, s, owner, holders)
	if cause == wait {
		return
	}
	w.recovering[s.Shard] = s
	claim, err := w.c.p.Redis.Claim(w.c.p.IO, s, w.c.p.Instance, queue.Cause(cause), owner)
	if err == nil {
		err = w.c.p.Redis.Release(w.c.p.IO, claim)
	}
	if err == nil {
		w.c.p.Log.Info("recovered a shard of a queue that no node handles", "shard", s.Shard, "from", owner.Instance, "recovered", claim.Recovered)
	}
	switch {
	case err == nil:
		delete(w.recovering, s.Shard)
	case !errors.Is(err, queue.ErrHeld) && !isFenced(err): // else the next look says whose it is
		w.c.p.OpFailed("recover", s.Shard, err)
	}
}
