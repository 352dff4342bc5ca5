package protocol

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
)

// A queue keeps its number of shards until a reshard changes it. The shards of the new number are a new layout,
// with keys of their own, and the jobs are copied from the old layout. The entry of the queue says how far that is:
//
//	{"shards":16,"layout":1,"reshard":{"shards":64,"layout":2,…}}            its nodes end what they do
//	{"shards":64,"layout":2,"was":[{"shards":16,"layout":1,"copying":true}]}  flipped: pushes go to layout 2
//	{"shards":64,"layout":2,"was":[{"shards":16,"layout":1}]}                 done
//	{"shards":16,"layout":1,"tried":2}                                        cancelled; the next attempt makes layout 3
//
// No two attempts have the same number of a layout. So nothing that is left of a cancelled attempt touches the shards
// of the next attempt. See docs/design.md and package queue/reshard.

// Reshard is a change of a queue's number of shards before its flip.
type Reshard struct {
	Shards      int    `json:"shards"`
	Layout      int    `json:"layout"`
	By          string `json:"by,omitempty"`
	At          int64  `json:"at"`          // when it began, in ms since 1970 by Redis's clock
	Patience    int64  `json:"patience_ms"` // how long the nodes may take to end the calls of the queue
	CancelCalls bool   `json:"cancel_calls,omitempty"`
}

// Former is a former layout of a queue.
type Former struct {
	Shards  int   `json:"shards"`
	Layout  int   `json:"layout"`
	At      int64 `json:"at"`                // when the queue left it, in ms since 1970 by Redis's clock
	Copying bool  `json:"copying,omitempty"` // not all of its jobs are in the next layout
}

// age returns how long ago the queue left the layout.
func (f Former) age(now time.Time) time.Duration { return now.Sub(time.UnixMilli(f.At)) }

// FeatureReshard is the need of a queue that is resharded or was resharded once.
const FeatureReshard = "reshard"

const (
	// MaxFormer is the number of former layouts that an entry names.
	MaxFormer = 8
	// readFormer is the number of former layouts, from the newest, that are read for what stays in them: replies,
	// journals and the numbers of deliveries.
	readFormer = 3
)

// Copying reports whether jobs of the queue are still in the shards of its former layout.
func (e RegistryEntry) Copying() bool {
	return slices.ContainsFunc(e.Was, func(f Former) bool { return f.Copying })
}

// HighestLayout returns the highest number that a layout of the queue, or an attempt to make one, ever had.
func (e RegistryEntry) HighestLayout() int {
	highest := max(e.Layout, e.Tried)
	if e.Reshard != nil {
		highest = max(highest, e.Reshard.Layout)
	}
	return highest
}

// hasLeft reports whether a layout is a former layout of the queue. If the entry names as many as it may, so are all
// older layouts.
func (e RegistryEntry) hasLeft(layout int) bool {
	if slices.ContainsFunc(e.Was, func(f Former) bool { return f.Layout == layout }) {
		return true
	}
	return len(e.Was) >= MaxFormer && layout < e.Was[len(e.Was)-1].Layout
}

// hadShards reports whether a former layout of the queue had this number of shards.
func (e RegistryEntry) hadShards(n int) bool {
	return slices.ContainsFunc(e.Was, func(f Former) bool { return f.Shards == n })
}

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

// Layout returns the number of the queue's layout.
func (q *Queue) Layout() int { return q.layout }

// ErrMoving means that a shard takes neither pushes nor claims, because the jobs of its queue move to another number
// of shards. The operation may succeed when it is repeated.
var ErrMoving = errors.New("the jobs of the queue move to another number of shards")
