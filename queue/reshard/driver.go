package reshard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Driver takes reshards from step to step. It keeps nothing that another driver needs: each step is found from the entry of
// the queue and from the shards. So any number of drivers may work at once, and each may end at any time.
type Driver struct {
	Client *protocol.Client
	// Leads reports whether this driver drives at once. Another driver watches, and drives a reshard that has not moved for
	// stalledFor.
	Leads func() bool
	// Entries returns the entries of the registry. They may be a second old.
	Entries func(ctx context.Context) (map[string]protocol.RegistryEntry, error)
	By      changes.Who // of the lines in the list of changes
	Log     *slog.Logger
	// Observe is called with the progress of each reshard under way, and once with the zero value after its end. It may be nil.
	Observe func(queue string, p Progress)
	// Failed is called with errors of Redis. It may be nil.
	Failed func(op string, err error)

	seen map[string]sighting // of reshards under way, by queue
	work sync.WaitGroup      // of drives
	busy sync.Map            // queues that are driven now
	done map[string]int      // numbers of attempts that were seen cancelled and cleaned up, by queue

	leaselessSince map[string]time.Time // when an instance was first seen without a lease; guarded by mu
	mu             sync.Mutex
}

// sighting is the progress of a reshard as a driver saw it.
type sighting struct {
	moved string    // what changes when it moves
	at    time.Time // when this was first seen
}

const (
	// lookEvery is the time between two looks at the entries.
	lookEvery = time.Second
	// pollEvery is the time between two looks at shards that handlers work on.
	pollEvery = 100 * time.Millisecond
	// stalledFor is how long a reshard does not move until a driver that does not lead drives it.
	stalledFor = 10 * time.Second
	// refusedFor is how long a shard may refuse to freeze until the attempt is ended. Pushes to frozen shards wait meanwhile.
	refusedFor = time.Second
	// retryAfter is the pause after an error.
	retryAfter = time.Second
)

// Run drives the reshards of all queues until ctx ends.
func (d *Driver) Run(ctx context.Context) {
	d.seen, d.done = map[string]sighting{}, map[string]int{}
	defer d.work.Wait()
	for {
		d.lookAround(ctx)
		if sleep.For(ctx, lookEvery) != nil {
			return
		}
	}
}

// lookAround looks at all queues once.
func (d *Driver) lookAround(ctx context.Context) {
	entries, err := d.Entries(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.reportFailure("read the registry", err)
		}
		return
	}
	for name := range d.seen {
		if _, there := entries[name]; !there {
			d.forgetQueue(name)
		}
	}
	for name, entry := range entries {
		d.lookAt(ctx, name, entry)
	}
}

func (d *Driver) reportFailure(op string, err error) {
	if d.Failed != nil {
		d.Failed(op, err)
	}
}

func (d *Driver) reportProgress(name string, p Progress) {
	if d.Observe != nil {
		d.Observe(name, p)
	}
}

// forgetQueue ends the watch over a queue.
func (d *Driver) forgetQueue(name string) {
	if _, seen := d.seen[name]; seen {
		delete(d.seen, name)
		d.reportProgress(name, Progress{})
	}
}

// lookAt watches a queue, and begins to drive it if that is due.
func (d *Driver) lookAt(ctx context.Context, name string, entry protocol.RegistryEntry) {
	underWay := entry.Reshard != nil || entry.Copying()
	if !underWay {
		d.forgetQueue(name)
		if entry.Tried <= max(entry.Layout, d.done[name]) || !d.Leads() {
			return
		}
		d.done[name] = entry.Tried // an attempt may have left marks and closed shards
	}
	if underWay && !d.watchQueue(ctx, name, entry) {
		return
	}
	if _, driven := d.busy.LoadOrStore(name, true); driven {
		return
	}
	d.work.Go(func() {
		defer d.busy.Delete(name)
		d.Drive(ctx, name)
	})
}

// watchQueue reads the progress of a reshard and reports whether to drive it.
func (d *Driver) watchQueue(ctx context.Context, name string, entry protocol.RegistryEntry) bool {
	p, err := readProgress(ctx, d.Client, name, entry)
	if err != nil {
		d.reportFailure("read a reshard", err)
		return d.Leads()
	}
	d.reportProgress(name, p)
	moved := fmt.Sprint(p.Phase, p.Moved, p.Open, p.frozen, p.closed, p.number)
	r := entry.Reshard
	// A reshard that waits for calls does not move, and nobody needs to help.
	waits := r != nil && p.Phase == Draining && (len(p.Calls) > 0 || p.Busy != "") && p.Pause < time.Duration(r.Patience)*time.Millisecond
	if waits || d.seen[name].moved != moved {
		d.seen[name] = sighting{moved, time.Now()}
	}
	return d.Leads() || time.Since(d.seen[name].at) >= stalledFor
}

// Drive takes the reshard of a queue to its end, or until ctx ends. It repeats steps that fail.
func (d *Driver) Drive(ctx context.Context, name string) {
	var refused *busyError
	for ctx.Err() == nil {
		done, next, err := d.takeStep(ctx, name, refused)
		var refusal *refusedError
		if errors.As(err, &refusal) {
			refused, err = refusal.by, nil
		} else if next != stepFlip {
			refused = nil
		}
		switch {
		case err != nil:
			if ctx.Err() == nil {
				d.reportFailure("reshard "+name+": "+string(next), err)
			}
			_ = sleep.For(ctx, retryAfter)
		case done:
			return
		case next == stepWait, next == stepReturn:
			_ = sleep.For(ctx, pollEvery)
		}
	}
}

// refusedError means that a shard has refused to freeze for refusedFor.
type refusedError struct{ by *busyError }

func (e *refusedError) Error() string {
	return "a shard was busy for too long to be frozen: " + e.by.Error()
}

// takeStep takes the next step. done means that nothing is left to do.
func (d *Driver) takeStep(ctx context.Context, name string, refused *busyError) (done bool, next step, err error) {
	text, entry, err := d.Client.Registry().Stored(ctx, name)
	if err != nil {
		return false, "read the entry", err
	}
	if entry.Removed || entry.Removing != "" {
		return true, stepNone, nil
	}
	l, _ := layoutsOf(d.Client.Registry(), name, entry)
	f, err := d.readFacts(ctx, name, entry, l)
	if err != nil {
		return false, "read the shards", err
	}
	f.refused = refused
	switch next = nextStep(entry, f); next {
	case stepNone:
		return true, next, forgetShards(ctx, d.Client.Registry().InTried(name, entry))
	case stepThaw:
		err = d.thawOthers(ctx, name, text, l.from, f.others)
	case stepPrepare:
		if err = forgetShards(ctx, d.Client.Registry().InTried(name, entry)); err == nil { // a flip forgets which attempt was before
			err = prepareShards(ctx, l.to, l.from)
		}
	case stepWait:
		if entry.Reshard.CancelCalls {
			d.cancelCalls(ctx, l.from, f.calls)
		}
	case stepReturn:
		err = d.returnFlights(ctx, f.ownerless)
	case stepFlip:
		err = d.flipQueue(ctx, name, l)
	case stepRestart:
		err = d.restartAttempt(ctx, name, l)
	case stepGiveUp:
		err = d.giveUp(ctx, name, *entry.Reshard, f)
	case stepCopy:
		err = d.copyAll(ctx, l)
	case stepEnd:
		err = d.endReshard(ctx, name, entry, l, f.at)
	}
	return false, next, err
}

// thawOthers takes the marks of other attempts away. It first reads the entry again. If its text has changed, nothing is
// done, because the marks may belong to an attempt that began after the text was read, and may have flipped since.
func (d *Driver) thawOthers(ctx context.Context, name, text string, q *protocol.Queue, numbers []int) error {
	now, _, err := d.Client.Registry().Stored(ctx, name)
	if err != nil || now != text {
		return err
	}
	for _, number := range numbers {
		err = errors.Join(err, thawShards(ctx, q, number))
	}
	return err
}

// readFacts reads the facts about a reshard.
func (d *Driver) readFacts(ctx context.Context, name string, entry protocol.RegistryEntry, l layouts) (f facts, err error) {
	if f.now, err = d.Client.Time(ctx); err != nil {
		return f, err
	}
	old, err := readOld(ctx, d.Client.DB(), l.from, f.now)
	if err != nil {
		return f, err
	}
	isDead := func(string) bool { return false }
	if entry.Reshard != nil {
		instances, err := readInstances(ctx, d.Client, name)
		if err != nil {
			return f, err
		}
		for _, other := range instances {
			f.handled = f.handled || other.handles
			f.mayBegin = f.mayBegin || other.mayBegin
		}
		isDead = func(owner string) bool { return d.isDead(owner, instances) }
	}
	f.countOld(old, l.number, isDead)
	if l.to == nil {
		return f, nil
	}
	f.fresh = l.to.Shards
	if f.closed, f.open, err = countOpen(ctx, l.to); err != nil || !entry.Copying() {
		return f, err
	}
	all, err := readPassed(ctx, l.from, l.to, f.at)
	for _, p := range all {
		if p.over {
			f.over++
		}
	}
	return f, err
}

// defaultTTL is the ttl of an instance that the index of instances does not have any more.
const defaultTTL = 6 * time.Second

// isDead reports whether an instance has had no lease for a ttl, as this driver has seen it. A process that renews its lease
// finds out within a ttl that Redis has lost it, and ends its handlers (I1).
func (d *Driver) isDead(name string, instances []instance) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leaselessSince == nil {
		d.leaselessSince = map[string]time.Time{}
	}
	ttl := defaultTTL
	if i := slices.IndexFunc(instances, func(o instance) bool { return o.name == name }); i >= 0 {
		if instances[i].leased {
			delete(d.leaselessSince, name)
			return false
		}
		ttl = cmp.Or(instances[i].ttl, ttl)
	}
	if d.leaselessSince[name].IsZero() {
		d.leaselessSince[name] = time.Now()
	}
	return time.Since(d.leaselessSince[name]) >= ttl
}

// returnFlights claims shards that nobody owns who lives, which puts their flights back, and releases them. A claim is refused
// if the shard has another owner by then.
func (d *Driver) returnFlights(ctx context.Context, shards []ownerless) error {
	me := "reshard/" + rand.Text() + ".1"
	for _, l := range shards {
		cause := protocol.Seize
		if l.owner.Instance == "" {
			cause = protocol.Fresh
		}
		claim, err := l.shard.Claim(ctx, me, cause, l.owner)
		if err != nil {
			return err
		}
		if _, err := claim.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

// cancelPatience is how long an instance may take to answer that it cancels a call.
const cancelPatience = time.Second

// cancelCalls asks the owners of shards to end the calls of ids in flight.
func (d *Driver) cancelCalls(ctx context.Context, q *protocol.Queue, calls []Call) {
	why := protocol.Cancellation{Then: protocol.ThenRetry, By: d.By.String(), Why: "the queue is being resharded"}
	var group sync.WaitGroup
	for part := range slices.Chunk(calls, cancelsAtOnce) {
		for _, call := range part {
			group.Go(func() {
				if _, err := d.Client.Cancel(ctx, call.Instance, q.Shard(call.Shard), call.ID, why, cancelPatience); err != nil && ctx.Err() == nil {
					d.reportFailure("cancel a call", err)
				}
			})
		}
		group.Wait()
	}
}

// cancelsAtOnce is the number of concurrent requests to end a call.
const cancelsAtOnce = 8

// flipQueue freezes the old shards, sets the floors of the new shards, and makes the new layout the layout of the queue.
func (d *Driver) flipQueue(ctx context.Context, name string, l layouts) error {
	frozen, err := freezeAll(ctx, l)
	if err != nil {
		return err
	}
	if err := setFloors(ctx, l.to, l.from, frozen); err != nil {
		return err
	}
	now, err := d.Client.Time(ctx)
	if err != nil {
		return err
	}
	_, err = changeEntry(ctx, d.Client.Registry(), name, func(entry *protocol.RegistryEntry) error {
		if entry.Reshard == nil || entry.Reshard.Layout != l.number {
			return nil // another driver was first, or the attempt was cancelled
		}
		left := protocol.Former{Shards: entry.Shards, Layout: entry.Layout, At: now.UnixMilli(), Copying: true}
		former := append([]protocol.Former{left}, entry.Was...)
		entry.Was = former[:min(protocol.MaxFormer, len(former))]
		entry.Shards, entry.Layout, entry.Reshard, entry.Tried, entry.TriedShards = entry.Reshard.Shards, entry.Reshard.Layout, nil, 0, 0
		return nil
	})
	return err
}

// freezeAll freezes the old shards. It tries again while a shard is busy, for refusedFor at most, and not at all if that does
// not help. Then the error is a *refusedError.
func freezeAll(ctx context.Context, l layouts) ([]Frozen, error) {
	for begun := time.Now(); ; {
		frozen, err := freezeShards(ctx, l.from, l.number)
		var busy *busyError
		switch {
		case !errors.As(err, &busy):
			return frozen, err
		case busy.isLasting() || time.Since(begun) >= refusedFor:
			return nil, &refusedError{busy}
		}
		if err := sleep.For(ctx, pollEvery/4); err != nil {
			return nil, err
		}
	}
}

// restartAttempt ends an attempt, and begins the next with the rest of its patience. The next look takes the marks of the
// ended attempt away.
func (d *Driver) restartAttempt(ctx context.Context, name string, l layouts) error {
	ended := false
	_, err := changeEntry(ctx, d.Client.Registry(), name, func(entry *protocol.RegistryEntry) error {
		if ended = entry.Reshard != nil && entry.Reshard.Layout == l.number; !ended {
			return nil
		}
		again := *entry.Reshard
		entry.Tried, entry.TriedShards = again.Layout, again.Shards
		again.Layout = entry.HighestLayout() + 1
		entry.Reshard = &again
		return nil
	})
	if err != nil || !ended {
		return err
	}
	return forgetShards(ctx, l.to)
}

// giveUp cancels a reshard whose patience is over, or that a move prevents.
func (d *Driver) giveUp(ctx context.Context, name string, r protocol.Reshard, f facts) error {
	why := cmp.Or(f.why, "a shard was busy")
	switch {
	case f.mayBegin:
		why = "a node has not noticed it"
	case len(f.calls) > 0:
		why = describeCalls(f.calls)
	}
	why = fmt.Sprintf("the patience of %s is over: %s", time.Duration(r.Patience)*time.Millisecond, why)
	if f.refused != nil {
		why = f.refused.Error()
	}
	err := cancelAttempt(ctx, d.Client, name, r.Layout, d.By, why)
	if errors.Is(err, ErrNone) || errors.Is(err, ErrFlipped) {
		return nil // another driver was first
	}
	if err == nil {
		d.Log.Warn("a reshard is cancelled", "queue", name, "why", why)
	}
	return err
}

// copiesAtOnce is the number of shards that are copied at the same time.
const copiesAtOnce = 4

// copyAll copies the old shards that are not over.
func (d *Driver) copyAll(ctx context.Context, l layouts) error {
	// A failover may have forgotten that a shard is frozen, or closed. It is made so again, and otherwise nothing happens.
	frozen, err := freezeAll(ctx, l)
	if err == nil {
		err = prepareShards(ctx, l.to, l.from)
	}
	if err == nil {
		err = setFloors(ctx, l.to, l.from, frozen)
	}
	if err != nil {
		return err
	}
	at := make([]int64, len(frozen))
	for i, f := range frozen {
		at[i] = f.At
	}
	have, err := readPassed(ctx, l.from, l.to, at)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		errs  error
		slots = make(chan struct{}, copiesAtOnce)
	)
	for i, s := range l.from.All() {
		if have[i].over {
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			if err := copyShard(ctx, l.from, i, frozen[i], l.to, nil); err != nil {
				mu.Lock()
				errs = cmp.Or(errs, fmt.Errorf("shard %s: %w", s, err))
				mu.Unlock()
				cancel()
			}
		})
	}
	group.Wait()
	return errs
}

// endReshard drops the frozen jobs of the old shards, and ends the reshard.
func (d *Driver) endReshard(ctx context.Context, name string, entry protocol.RegistryEntry, l layouts, at []int64) error {
	for i, s := range l.from.All() {
		if err := dropShard(ctx, s, l.number, at[i]); err != nil {
			return fmt.Errorf("shard %s: %w", s, err)
		}
	}
	ended := false
	was, err := changeEntry(ctx, d.Client.Registry(), name, func(now *protocol.RegistryEntry) error {
		if ended = reflect.DeepEqual(now.Was, entry.Was); !ended {
			return nil // another driver was first
		}
		now.Was = slices.Clone(now.Was)
		for i := range now.Was {
			now.Was[i].Copying = false
		}
		return nil
	})
	if err != nil || !ended {
		return err
	}
	d.Log.Info("a queue is resharded", "queue", name, "from", was.Was[0].Shards, "to", was.Shards)
	return addLine(ctx, d.Client, changes.Line{Who: d.By, Action: ActionDone, Queue: name, Old: shardsJSON(was.Was[0].Shards), New: shardsJSON(was.Shards)})
}
