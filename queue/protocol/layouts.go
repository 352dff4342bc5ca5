package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
)

// A queue keeps its number of shards until a reshard changes it. The new shards are a new layout with keys of their own,
// and the jobs are copied from the old layout. The entry of the queue tells the phase:
//
//	{"shards":16,"layout":1,"reshard":{"shards":64,"layout":2,…}}            its nodes end their calls
//	{"shards":64,"layout":2,"was":[{"shards":16,"layout":1,"copying":true}]}  flipped: pushes go to layout 2
//	{"shards":64,"layout":2,"was":[{"shards":16,"layout":1}]}                 done
//	{"shards":16,"layout":1,"tried":2,"tried_shards":64}                      cancelled; the next attempt makes layout 3
//
// No two attempts have the same number of a layout. So the marks, the closed shards and the late requests of a cancelled
// attempt cannot touch the next attempt. The flip is a single write of the entry. Before it all pushes belong to the old
// layout, after it all belong to the new layout, and frozen shards refuse the pushes of producers that do not know yet. See
// docs/design.md and package queue/reshard.

// Reshard is a reshard of a queue before its flip, as the entry of the queue has it.
type Reshard struct {
	Shards      int    `json:"shards"`
	Layout      int    `json:"layout"`
	By          string `json:"by,omitempty"`
	At          int64  `json:"at"`          // when it began, in ms since 1970 by Redis's clock
	Patience    int64  `json:"patience_ms"` // time in which the nodes must end the calls of the queue
	CancelCalls bool   `json:"cancel_calls,omitempty"`
}

// Former is a former layout of a queue.
type Former struct {
	Shards  int   `json:"shards"`
	Layout  int   `json:"layout"`
	At      int64 `json:"at"`                // when the queue left it, in ms since 1970 by Redis's clock
	Copying bool  `json:"copying,omitempty"` // some of its jobs are not in the next layout yet
}

// age returns how long ago the queue left the layout.
func (f Former) age(now time.Time) time.Duration { return now.Sub(time.UnixMilli(f.At)) }

// FeatureReshard is the need of a queue that is resharded or was resharded once.
const FeatureReshard = "reshard"

// MaxFormer is the number of former layouts that an entry names. They are read for replies, journals and the numbers of
// sources, which stay in them.
const MaxFormer = 8

// Copying reports whether jobs of the queue are still in the shards of its former layout.
func (e RegistryEntry) Copying() bool {
	return slices.ContainsFunc(e.Was, func(f Former) bool { return f.Copying })
}

// HighestLayout returns the highest number of all layouts of the queue and of all attempts to reshard it.
func (e RegistryEntry) HighestLayout() int {
	highest := max(e.Layout, e.Tried)
	if e.Reshard != nil {
		highest = max(highest, e.Reshard.Layout)
	}
	return highest
}

// hasLeft reports whether a layout is a former layout of the queue. An entry that is full of former layouts has dropped
// older layouts, so all older numbers count as former layouts.
func (e RegistryEntry) hasLeft(layout int) bool {
	if slices.ContainsFunc(e.Was, func(f Former) bool { return f.Layout == layout }) {
		return true
	}
	return len(e.Was) >= MaxFormer && layout < e.Was[len(e.Was)-1].Layout
}

// HadShards reports whether a former layout of the queue had this number of shards. A process that is configured with
// it takes the present number.
func (e RegistryEntry) HadShards(n int) bool {
	return slices.ContainsFunc(e.Was, func(f Former) bool { return f.Shards == n })
}

func (q *Queue) hadShards(n int) bool {
	q.registry.mu.Lock()
	defer q.registry.mu.Unlock()
	return q.entry.HadShards(n)
}

// HasLeft reports whether a shard refused jobs because the queue has left its layout. The jobs belong to the queue that
// [Queue.Latest] returns.
func HasLeft(err error) bool { return errors.Is(err, errLeft) }

// checkLayouts returns an error if the layouts of the entry cannot be right. Each shard costs memory, so all numbers
// have the bounds of CheckQueue.
func (e RegistryEntry) checkLayouts() error {
	if err := checkLayout(e.Shards, e.Layout); err != nil {
		return err
	}
	if r := e.Reshard; r != nil {
		if err := checkLayout(r.Shards, r.Layout); err != nil {
			return fmt.Errorf("reshard: %w", err)
		}
		if r.Layout <= e.Layout {
			return fmt.Errorf("reshard: layout %d; it must be above the present layout %d", r.Layout, e.Layout)
		}
	}
	if e.TriedShards != 0 {
		if err := checkLayout(e.TriedShards, e.Tried); err != nil {
			return fmt.Errorf("a cancelled layout: %w", err)
		}
	}
	if len(e.Was) > MaxFormer {
		return fmt.Errorf("%d former layouts; there must be at most %d", len(e.Was), MaxFormer)
	}
	next := e.Layout
	for _, f := range e.Was {
		if err := checkLayout(f.Shards, f.Layout); err != nil {
			return fmt.Errorf("a former layout: %w", err)
		}
		if f.Layout >= next {
			return fmt.Errorf("a former layout %d; it must be below the layout %d after it", f.Layout, next)
		}
		next = f.Layout
	}
	return nil
}

func checkLayout(shards, layout int) error {
	switch {
	case shards < 1 || shards > lowkiq.MaxShards:
		return fmt.Errorf("%d shards; the number must be between 1 and %d", shards, lowkiq.MaxShards)
	case layout < 1:
		return fmt.Errorf("layout %d; it must be at least 1", layout)
	}
	return nil
}

// InLayout returns the queue of an entry in another layout, for programs that read or copy its shards. The registry
// does not remember it.
func (g *Registry) InLayout(name string, entry RegistryEntry, shards, layout int) *Queue {
	entry.Shards, entry.Layout = shards, layout
	return g.newQueue(name, entry)
}

// InTried returns the queue of an entry in the layout of the last attempt that was cancelled, nil if there is none. A
// process that died may have left closed shards there.
func (g *Registry) InTried(name string, entry RegistryEntry) *Queue {
	if entry.TriedShards == 0 || entry.Tried <= entry.Layout {
		return nil
	}
	return g.InLayout(name, entry, entry.TriedShards, entry.Tried)
}

// Layout returns the number of the queue's layout.
func (q *Queue) Layout() int { return q.layout }

// Latest returns the queue in the newest layout that this process knows. The shards of a Queue never change, but its
// pushes, deliveries and calls go to the newest layout.
func (q *Queue) Latest() *Queue {
	for next := q.next.Load(); next != nil; next = q.next.Load() {
		q = next
	}
	return q
}

// succeeds reports whether the entry says that the queue has left the layout of q for a newer layout, which this
// release can read.
func (e RegistryEntry) succeeds(q *Queue) bool {
	return e.Layout > q.layout && !e.Removed && e.hasLeft(q.layout) && e.Readable(q.Name) == nil
}

// leaveFor makes an open queue lead to its queue in the layout of an entry. The shards of q do not change. Pushes that are
// under way in the old layout meet the marks of its frozen shards and then go to the next layout. The caller holds
// registry.mu.
func (q *Queue) leaveFor(entry RegistryEntry) {
	g := q.registry
	next := g.queues[q.Name]
	switch {
	case next == nil || next.layout < entry.Layout:
		next = g.newQueue(q.Name, entry)
		next.applyRules(g.rules[q.Name])
		g.queues[q.Name] = next
	case next.layout == entry.Layout:
		next.setEntry(entry)
	}
	q.next.Store(next)
}

// successor returns the queue for jobs that the shards of q refused with errLeft.
func (q *Queue) successor(ctx context.Context) (*Queue, error) {
	if next := q.next.Load(); next != nil {
		return next, nil
	}
	next, err := q.registry.openQueue(ctx, q.Name)
	if err == nil && next.layout <= q.layout {
		err = &movingError{lowkiq.Shard{Queue: q.Name}, next.Shards}
	}
	return next, err
}

// FormerShards returns the shards that held id in the former layouts that the queue left at most maxAge ago, the newest
// first. Replies, journals and the numbers of sources stay in them.
func (q *Queue) FormerShards(id string, maxAge time.Duration) (all []*Shard) {
	for _, f := range q.formers(maxAge) {
		s := q.registry.newShard(q.Name, f.Layout, lowkiq.ShardOf(id, f.Shards))
		all = append(all, &s)
	}
	return all
}

// AllFormerShards returns all shards of the layouts that FormerShards looks at.
func (q *Queue) AllFormerShards(maxAge time.Duration) (all []*Shard) {
	for _, f := range q.formers(maxAge) {
		all = append(all, q.registry.InLayout(q.Name, RegistryEntry{}, f.Shards, f.Layout).shards...)
	}
	return all
}

// formers returns the former layouts that the queue left at most maxAge ago, the newest first, and all of them while the
// time of Redis's clock is unknown.
func (q *Queue) formers(maxAge time.Duration) []Former {
	was := q.was.Load()
	if was == nil {
		return nil
	}
	now := q.registry.clock.Now()
	for i, f := range *was {
		if !now.IsZero() && f.age(now) > maxAge {
			return (*was)[:i]
		}
	}
	return *was
}

// FormerCountWarning returns a warning for a process that is configured with a former number of shards, "" for the present
// number.
func (q *Queue) FormerCountWarning(configured int) string {
	if q.Shards == configured {
		return ""
	}
	return fmt.Sprintf("queue %q has %d shards since it was resharded, not %d; configure %d", q.Name, q.Shards, configured, q.Shards)
}

// ErrMoving means that a shard takes neither pushes nor claims, because the jobs of its queue move to another number
// of shards. The operation may succeed when it is repeated.
var ErrMoving = errors.New("the jobs of the queue move to another number of shards")
