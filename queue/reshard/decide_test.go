package reshard

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestNextStep has a case for every row of the table, and for each pair of rows whose order matters.
func TestNextStep(t *testing.T) {
	t.Parallel()
	begun := time.UnixMilli(1_763_600_000_000)
	plain := protocol.RegistryEntry{Shards: 2, Layout: 1}
	under, flipped := plain, protocol.RegistryEntry{Shards: 4, Layout: 2, Was: []protocol.Former{{Shards: 2, Layout: 1, Copying: true}}}
	under.Reshard = &protocol.Reshard{Shards: 4, Layout: 2, At: begun.UnixMilli(), Patience: 30_000}
	ended := flipped
	ended.Was = []protocol.Former{{Shards: 2, Layout: 1}}
	// quiet are the facts of a reshard whose old shards may be frozen.
	quiet := facts{now: begun.Add(30 * time.Second), old: 2, fresh: 4, closed: 4, handled: true}
	with := func(change func(*facts)) facts {
		f := quiet
		change(&f)
		return f
	}
	late := func(f *facts) { f.now = begun.Add(30*time.Second + time.Millisecond) }
	for _, c := range []struct {
		name  string
		entry protocol.RegistryEntry
		facts facts
		want  step
	}{
		{"copying, all new shards are closed", flipped, with(func(f *facts) { f.frozen = 2 }), stepCopy},
		{"copying, one new shard is closed", flipped, with(func(f *facts) { f.frozen, f.open, f.closed = 2, 3, 1 }), stepCopy},
		{"copying, and a shard is no longer frozen", flipped, with(func(f *facts) { f.frozen = 1 }), stepCopy},
		{"copying, all new shards are open", flipped, with(func(f *facts) { f.frozen, f.over, f.open, f.closed = 2, 2, 4, 0 }), stepEnd},
		{"copying, all new shards are open, and a freeze was forgotten", flipped, with(func(f *facts) { f.frozen, f.over, f.open, f.closed = 1, 1, 4, 0 }), stepCopy},
		{"copying, all new shards are open, and a shard was frozen again", flipped, with(func(f *facts) { f.frozen, f.over, f.open, f.closed = 2, 1, 4, 0 }), stepCopy},
		{"copying, long after the patience", flipped, with(func(f *facts) { f.over, f.open, f.closed = 2, 4, 0; late(f) }), stepEnd},

		{"a mark of an earlier attempt", under, with(func(f *facts) { f.others = []int{5} }), stepThaw},
		{"a mark of an earlier attempt after the patience", under, with(func(f *facts) { f.others = []int{5}; late(f) }), stepThaw},
		{"all are frozen", under, with(func(f *facts) { f.frozen = 2 }), stepFlip},
		{"all are frozen, and the patience is over", under, with(func(f *facts) { f.frozen = 2; late(f) }), stepFlip},
		{"all are frozen, and a new shard was forgotten", under, with(func(f *facts) { f.frozen, f.closed = 2, 3 }), stepPrepare},
		{"all are frozen, a new shard was forgotten, and the patience is over", under, with(func(f *facts) { f.frozen, f.closed = 2, 3; late(f) }), stepGiveUp},
		{"a shard refuses", under, with(func(f *facts) { f.frozen, f.busy, f.refused = 1, 1, &busyError{} }), stepRestart},
		{"a shard refuses, and the patience is over", under, with(func(f *facts) { f.frozen, f.refused = 1, &busyError{}; late(f) }), stepRestart},
		{"a shard refuses because of a move", under, with(func(f *facts) { f.refused = &busyError{why: whyMove} }), stepGiveUp},
		{"the patience is over", under, with(late), stepGiveUp},
		{"the patience is over, and some are frozen", under, with(func(f *facts) { f.frozen = 1; late(f) }), stepGiveUp},
		{"no new shard is closed", under, with(func(f *facts) { f.closed = 0 }), stepPrepare},
		{"an instance may begin", under, with(func(f *facts) { f.mayBegin = true }), stepWait},
		{"an instance may begin, another is dead", under, with(func(f *facts) { f.mayBegin, f.busy, f.ownerless = true, 1, make([]ownerless, 1) }), stepWait},
		{"ids are in flight", under, with(func(f *facts) { f.busy = 1 }), stepWait},
		{"ids are in flight, and some are frozen", under, with(func(f *facts) { f.busy, f.frozen = 1, 1 }), stepWait},
		{"a dead owner, and a node lives", under, with(func(f *facts) { f.busy, f.ownerless = 1, make([]ownerless, 1) }), stepWait},
		{"a dead owner, and no node lives", under, with(func(f *facts) { f.busy, f.ownerless, f.handled = 1, make([]ownerless, 1), false }), stepReturn},
		{"quiet", under, quiet, stepFlip},
		{"quiet, and some are frozen", under, with(func(f *facts) { f.frozen = 1 }), stepFlip},

		{"a mark is left of an attempt", plain, with(func(f *facts) { f.others = []int{2} }), stepThaw},
		{"a mark is left of an attempt, after a reshard", ended, with(func(f *facts) { f.others = []int{3} }), stepThaw},
		{"nothing", plain, facts{now: begun}, stepNone},
		{"after a reshard", ended, facts{now: begun}, stepNone},
	} {
		if got := nextStep(c.entry, c.facts); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}
