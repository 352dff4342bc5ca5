package reshard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// The steps of a reshard. Each may be repeated, and may come late: a step of an attempt that was cancelled, or of a driver
// that another driver has overtaken, finds a mark or a number that is not its own.

// Frozen describes a frozen shard.
type Frozen = protocol.Frozen

// busyError says which shard cannot be frozen yet.
type busyError struct {
	shard *protocol.Shard
	why   string   // in flight, parked, a recovery, or a move
	ids   []string // at most five; for a move its field in from
}

func (e *busyError) Error() string {
	text := fmt.Sprintf("shard %s is busy: %s", e.shard, e.why)
	if len(e.ids) > 0 {
		text += " " + strings.Join(e.ids, ", ")
	}
	if e.why == "parked" {
		text += "; no flight has left these payloads behind, so run lowkiq-node check --repair"
	}
	return text
}

// otherMarkError says that a shard was frozen by another attempt. A thaw by the number of that attempt ends it.
type otherMarkError struct {
	shard  *protocol.Shard
	layout int
}

func (e *otherMarkError) Error() string {
	return fmt.Sprintf("shard %s is frozen for layout %d, by another attempt", e.shard, e.layout)
}

// freeze takes the shards of a queue out of use. layout is the number of the layout to which their jobs move. The error is a
// *busyError if flights are not over, and an *otherMarkError if another attempt has frozen a shard. Some shards may be frozen
// then.
func freeze(ctx context.Context, q *protocol.Queue, layout int) ([]Frozen, error) {
	frozen := make([]Frozen, q.Shards)
	for part := range slices.Chunk(q.All(), 200) {
		if err := freezeSome(ctx, part, layout, func(s *protocol.Shard, f Frozen) { frozen[s.Index] = f }); err != nil {
			return nil, err
		}
	}
	return frozen, awaitReplicas(ctx, q.All(), q.Shard(0).DB().Scripts.Freeze, "freeze", protocol.MovedMark(layout), "quiet", "")
}

func freezeSome(ctx context.Context, shards []*protocol.Shard, layout int, keep func(*protocol.Shard, Frozen)) error {
	stats, err := protocol.ReadStats(ctx, shards...)
	if err != nil {
		return err
	}
	oldest := map[*protocol.Shard]string{}
	for i, s := range shards {
		if lag := stats[i].Lag; lag > 0 {
			oldest[s] = strconv.FormatInt(stats[i].Now.Add(-lag).UnixMicro(), 10)
		}
	}
	mark := protocol.MovedMark(layout)
	var see func(s *protocol.Shard, answer []any) error
	see = func(s *protocol.Shard, answer []any) error {
		switch answer[0] {
		case "BUSY":
			return &busyError{s, redisdb.Text(answer[1]), redisdb.Texts(answer[2])}
		case "OTHER":
			other := redisdb.Text(answer[1])
			if words := strings.Fields(other); words[0] == "moved" {
				number, _ := strconv.Atoi(words[1])
				return &otherMarkError{s, number}
			}
			again, err := s.Refreeze(ctx, other, mark, "quiet", oldest[s]) // of a deletion that was given up
			if err != nil {
				return err
			}
			return see(s, again)
		}
		frozen, err := protocol.ReadFrozen(answer)
		keep(s, frozen)
		return err
	}
	return protocol.RunEach(ctx, shards[0].DB().Scripts.Freeze, shards, func(s *protocol.Shard) []any { return []any{"freeze", mark, "quiet", oldest[s]} }, see)
}

// thaw gives shards back, byte for byte, if they were frozen for this layout. Before, the entry of the queue must say that
// nobody moves jobs to that layout.
func thaw(ctx context.Context, q *protocol.Queue, layout int) error {
	return protocol.RunEach(ctx, q.Shard(0).DB().Scripts.Freeze, q.All(), func(*protocol.Shard) []any { return []any{"thaw", protocol.MovedMark(layout)} },
		func(*protocol.Shard, []any) error { return nil })
}

// keptFor is how long the numbers of sources and the journal of a former layout stay, in ms.
const keptFor = 31 * 24 * 3600 * 1000

// drop deletes the jobs of a frozen shard. All shards that got them must be open.
func drop(ctx context.Context, from *protocol.Shard, layout int) error {
	return protocol.RunEach(ctx, from.DB().Scripts.Freeze, []*protocol.Shard{from}, func(*protocol.Shard) []any { return []any{"drop", protocol.MovedMark(layout), keptFor} },
		func(_ *protocol.Shard, answer []any) error {
			if answer[0] != "OK" {
				return fmt.Errorf("it has the mark %q and not that of layout %d", answer[1], layout)
			}
			return nil
		})
}

// related returns the shards of a layout with n shards that have ids in common with a shard of a layout with other shards: from
// first to last. They are the parents of a new shard, or the children of an old shard. Each shard has a range of the hashes of
// ids, see lowkiq.ShardOf. So a shard has few relatives, whatever the numbers are.
func related(index, other, n int) (first, last int) {
	begin := func(i int) uint64 { return (uint64(i)<<32 + uint64(other) - 1) / uint64(other) } // the lowest hash of shard i
	in := func(hash uint64) int { return int(hash * uint64(n) >> 32) }
	return in(begin(index)), in(begin(index+1) - 1)
}

// errUnprepared means that a new shard is neither closed nor open, because Redis has lost that. prepare closes it.
var errUnprepared = errors.New("the new shard is not prepared, because Redis has lost that it was")

// runTake runs a step of lua/take.lua on shards. see gets the answers with OK.
func runTake(ctx context.Context, shards []*protocol.Shard, args func(*protocol.Shard) []any) error {
	return protocol.RunEach(ctx, shards[0].DB().Scripts.Take, shards, args, takeError)
}

// takeError returns the error of an answer of lua/take.lua.
func takeError(s *protocol.Shard, answer []any) error {
	switch answer[0] {
	case "OK":
		return nil
	case "UNPREPARED":
		return errUnprepared
	case "BUSY":
		return &busyError{s, "in flight", nil}
	case "OLD":
		return errRefrozen
	case "GAP":
		return errForgotten
	case "DAMAGED":
		return fmt.Errorf("job %q in the new shard: %w; run lowkiq-node check --repair", answer[2], protocol.ErrDamaged)
	}
	return fmt.Errorf("take answered %v", answer)
}

// prepare closes the shards of the new layout that were never open.
func prepare(ctx context.Context, to, from *protocol.Queue) error {
	return prepareSome(ctx, to.All(), to.Shards, from.Shards)
}

func prepareSome(ctx context.Context, shards []*protocol.Shard, total, parents int) error {
	return runTake(ctx, shards, func(s *protocol.Shard) []any {
		first, last := related(s.Index, total, parents)
		return []any{"prepare", last - first + 1}
	})
}

// setFloors makes sure that the closed shards give higher scores and fences than their parents, and that they know how long the
// jobs of their parents have waited.
func setFloors(ctx context.Context, to, from *protocol.Queue, frozen []Frozen) error {
	return setFloorsOf(ctx, to.All(), func(s *protocol.Shard) []Frozen {
		first, last := related(s.Index, to.Shards, from.Shards)
		return frozen[first : last+1]
	})
}

// setFloorsOf sets the floors of shards by their parents.
func setFloorsOf(ctx context.Context, shards []*protocol.Shard, parents func(*protocol.Shard) []Frozen) error {
	args := func(s *protocol.Shard) []any {
		last, fence, oldest := int64(0), int64(0), int64(0)
		for _, f := range parents(s) {
			last, fence = max(last, redisdb.Int(f.Last)), max(fence, f.Fence)
			if at := redisdb.Int(f.Oldest); at > 0 && (oldest == 0 || at < oldest) {
				oldest = at
			}
		}
		text := ""
		if oldest > 0 {
			text = strconv.FormatInt(oldest, 10)
		}
		return []any{"floor", last, fence, text}
	}
	if err := runTake(ctx, shards, args); err != nil {
		return err
	}
	return awaitReplicas(ctx, shards, shards[0].DB().Scripts.Take, "floor", 0, 0, "")
}

// isOpen counts the shards of the new layout that are open.
func isOpen(ctx context.Context, to *protocol.Queue) (open int, err error) {
	states, err := readStates(ctx, to)
	for _, s := range states {
		if s.open {
			open++
		}
	}
	return open, err
}

// shardState is what a shard of the new layout knows about its parents.
type shardState struct {
	open   bool
	closed bool
	over   map[string]bool // sources of the parents that are over; nil if the shard is open
}

// readStates reads the states of shards, by index.
func readStates(ctx context.Context, to *protocol.Queue) ([]shardState, error) {
	var all []shardState
	for part := range slices.Chunk(to.All(), 200) {
		var cmds []redisdb.Cmd
		for _, s := range part {
			cmds = append(cmds, redisdb.Cmd{"HGET", s.Keys().Count, "came"}, redisdb.Cmd{"HGETALL", s.Keys().Coming})
		}
		replies, err := part[0].DB().Pipeline(ctx, "read the new shards of "+to.Name, cmds...)
		if err != nil {
			return nil, err
		}
		for i := range part {
			coming := redisdb.Map(replies[2*i+1])
			s := shardState{closed: len(coming) > 0, over: map[string]bool{}}
			s.open = !s.closed && replies[2*i] != nil
			for field := range coming {
				if source, ok := strings.CutPrefix(field, "over "); ok {
					s.over[source] = true
				}
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// readOver reports for each shard of the former layout whether all its children have all its jobs.
func readOver(ctx context.Context, from, to *protocol.Queue) ([]bool, error) {
	states, err := readStates(ctx, to)
	if err != nil {
		return nil, err
	}
	over := make([]bool, from.Shards)
	for p := range over {
		first, last := related(p, from.Shards, to.Shards)
		over[p] = !slices.ContainsFunc(states[first:last+1], func(s shardState) bool { return !s.open && !s.over[sourceOf(p)] })
	}
	return over, nil
}

// sourceOf returns the name of a parent as a source of entries.
func sourceOf(parent int) string { return "reshard/" + strconv.Itoa(parent) }

// awaitReplicas waits until replicas have what was written to the shards, with a call that may be repeated.
func awaitReplicas(ctx context.Context, shards []*protocol.Shard, script *redisdb.Script, args ...any) error {
	calls := make([]*redisdb.Call, len(shards))
	for i, s := range shards {
		calls[i] = &redisdb.Call{Script: script, Keys: s.Keys().For(script), Args: args}
	}
	return shards[0].DB().AwaitReplicas(ctx, calls)
}
