package claims

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// orphanPause separates two pages of claims, so that at most 1,000 claims a second are read.
const orphanPause = time.Second * pageSize / 1000

// maxMismatchPause is the largest number of scans between two readings of the claims of a queue
// whose shards do not add up. The number begins with 1 and doubles.
const maxMismatchPause = 16

// OrphanScan connects the scanner for orphaned shards to its process.
type OrphanScan struct {
	// Leads returns the live leases, and whether this process must scan.
	Leads  func(context.Context) (live []identity.Lease, leads bool)
	Queues func() map[string]int // number of shards by registered queue; nil before the registry is read
	Shards func(ctx context.Context, queueName string) ([]*protocol.Shard, error)

	Found   func(queueName string, unowned []*protocol.Shard, handled bool)
	Forget  func(queueName string) // the queue is not registered any more
	Scanned func()                 // a scan has ended, whether it has read claims or not
	Resign  func()                 // this process does not scan any more
}

// orphanScanner looks for shards that no live instance owns. The lease of each instance says how
// many shards of each queue it owns. The scanner adds these numbers up and compares the sum with the
// registry. It reads claims only where the sum is wrong, as claims are many.
//
// It reports what it finds. It also recovers the shards of dead instances in queues that no node handles any more. No node
// would seize such a shard, and its jobs would stay in flight for ever (I2). The scanner starts no runners.
type orphanScanner[R Runner] struct {
	c          *Claims[R]
	o          OrphanScan
	mismatches map[string]*mismatch             // by queue
	exported   map[string]bool                  // queues that were reported
	recovering map[lowkiq.Shard]*protocol.Shard // shards that were claimed, and whose release Redis has not confirmed
}

// mismatch records how often the claims of a queue are read whose owned shards do not add up.
type mismatch struct {
	scansLeft int // scans until the claims are read
	pause     int // scans between the last two readings
}

// ScanOrphans scans once per ttl until ctx ends, if this process leads. In a cluster the leader
// scans. Without a cluster a single node does.
func (c *Claims[R]) ScanOrphans(ctx context.Context, o OrphanScan) {
	w := &orphanScanner[R]{c: c, o: o, mismatches: map[string]*mismatch{}, exported: map[string]bool{}, recovering: map[lowkiq.Shard]*protocol.Shard{}}
	defer w.resign()
	ticker := time.NewTicker(c.p.TTL)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.releaseRecovered(ctx)
			w.scanOnce(ctx)
		}
	}
}

// scanOnce compares the leases with the registry, queue by queue.
func (w *orphanScanner[R]) scanOnce(ctx context.Context) {
	registered := w.o.Queues()
	live, leads := w.o.Leads(ctx)
	if !leads || !w.c.p.MayWork() || registered == nil {
		w.resign()
		return
	}
	handled, owned := sumLeases(live)
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
			w.reportQueue(name, nil, true)
			continue
		}
		if !w.shouldRead(name) {
			continue
		}
		if err := w.readClaims(ctx, name, handled[name]); err != nil {
			w.c.p.OpFailed("look for unowned shards of "+name, nil, err)
		}
	}
	w.o.Scanned()
}

// reportQueue reports the unowned shards of a queue.
func (w *orphanScanner[R]) reportQueue(name string, unowned []*protocol.Shard, handled bool) {
	w.exported[name] = true
	w.o.Found(name, unowned, handled)
}

// resign withdraws what this process has reported.
func (w *orphanScanner[R]) resign() {
	clear(w.mismatches)
	clear(w.exported)
	w.o.Resign()
}

// sumLeases adds up what leases say: the queues that some instance handles, and the number of owned shards of each queue.
func sumLeases(live []identity.Lease) (handled map[string]bool, owned map[string]int) {
	handled, owned = map[string]bool{}, map[string]int{}
	for _, lease := range live {
		for name, n := range lease.Queues {
			handled[name] = true
			owned[name] += n
		}
	}
	return handled, owned
}

// shouldRead decides whether to read the claims of a queue in this scan. The first scan with a wrong sum does not read them,
// because shards may be on their way from one node to another. Later scans read them more and more rarely.
func (w *orphanScanner[R]) shouldRead(name string) bool {
	m := w.mismatches[name]
	if m == nil {
		w.mismatches[name] = &mismatch{scansLeft: 1, pause: 1}
		return false
	}
	if m.scansLeft--; m.scansLeft > 0 {
		return false
	}
	m.pause = min(2*m.pause, maxMismatchPause)
	m.scansLeft = m.pause
	return true
}

// readClaims reports the shards of a queue that no live instance owns. It recovers them if no node handles the queue.
func (w *orphanScanner[R]) readClaims(ctx context.Context, name string, handled bool) error {
	shards, err := w.o.Shards(ctx, name)
	if err != nil {
		return err
	}
	var unowned []*protocol.Shard
	holders := map[string]holderState{}
	for page := range slices.Chunk(shards, pageSize) {
		owners, err := w.c.p.Redis.Owners(ctx, page)
		if err != nil {
			return err
		}
		for i, owner := range owners {
			if !w.isOrphaned(ctx, page[i], owner, holders) {
				continue
			}
			unowned = append(unowned, page[i])
			if !handled {
				w.recoverShard(ctx, page[i], owner, holders)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(orphanPause):
		}
	}
	w.reportQueue(name, unowned, handled)
	return nil
}

// isOrphaned reports whether no live instance owns a shard.
func (w *orphanScanner[R]) isOrphaned(ctx context.Context, s *protocol.Shard, owner protocol.Owner, holders map[string]holderState) bool {
	switch {
	case owner.Instance == "":
		return true
	case identity.SameBoot(owner.Instance, w.c.p.Instance):
		return w.c.p.Shard(s.Shard) == nil // this process claimed it in order to release it
	}
	return !w.c.inspectHolder(ctx, owner, holders).leased
}

// releaseRecovered releases shards that recoverShard has claimed and whose release Redis has not
// confirmed. It does so even if this process does not lead any more. A node that begins to handle
// the queue would wait for such a shard as long as this process lives (I4).
func (w *orphanScanner[R]) releaseRecovered(ctx context.Context) {
	for _, s := range w.recovering {
		owners, err := w.c.p.Redis.Owners(ctx, []*protocol.Shard{s})
		switch {
		case err != nil:
			w.c.p.OpFailed("read claim", s.Shard, err)
		case identity.SameBoot(owners[0].Instance, w.c.p.Instance):
			w.recoverShard(ctx, s, owners[0], map[string]holderState{})
		case owners[0].Instance == "" || w.c.inspectHolder(ctx, owners[0], map[string]holderState{}).leased:
			delete(w.recovering, s.Shard)
		}
	}
}

// recoverShard claims a shard of a dead instance and releases it. The claim puts its jobs in flight back into line.
func (w *orphanScanner[R]) recoverShard(ctx context.Context, s *protocol.Shard, owner protocol.Owner, holders map[string]holderState) {
	if owner.Instance == "" || w.c.p.Shard(s.Shard) != nil {
		return
	}
	cause := w.c.decideShard(ctx, s, owner, holders)
	if cause == wait {
		return
	}
	w.recovering[s.Shard] = s
	claim, err := w.c.p.Redis.Claim(w.c.p.IO, s, w.c.p.Instance, protocol.Cause(cause), owner)
	if err == nil {
		err = w.c.p.Redis.Release(w.c.p.IO, claim)
	}
	if err == nil {
		w.c.p.Log.Info("recovered a shard of a queue that no node handles", "shard", s.Shard, "from", owner.Instance, "recovered", claim.Recovered)
	}
	switch {
	case err == nil:
		delete(w.recovering, s.Shard)
	case !errors.Is(err, protocol.ErrHeld) && !isFenced(err): // after those two, releaseRecovered sees who owns it
		w.c.p.OpFailed("recover", s.Shard, err)
	}
}
