package reshard

import (
	"cmp"
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
	why   string   // a key of busyTexts
	ids   []string // at most five; for a move its field in from
}

// whyMove is the why of a shard that jobs of another system move into, or out of. whySources is that of a shard with more than
// maxSources sources of deliveries, because lua/freeze.lua looks at all of them. Both last for as long as people want.
const (
	whyMove    = "a move"
	whySources = "sources"
	maxSources = 50_000
)

// busyTexts describe why a shard is busy. lua/freeze.lua answers with the keys.
var busyTexts = map[string]string{
	"in flight":  "has jobs in flight",
	"a recovery": "takes the jobs of a dead node back",
	"parked":     "has payloads that no flight has left behind; run lowkiq-node check --repair",
	"follow-ups": "has follow-ups to other queues that wait to be delivered; lowkiq-node outgoing shows why",
	whyMove:      "takes part in a move of jobs from or to another system; end that with lowkiq-migrate first",
	whySources:   fmt.Sprintf("knows the numbers of more than %d sources of deliveries, which is the maximum", maxSources),
}

func (e *busyError) Error() string {
	text := fmt.Sprintf("shard %s %s", e.shard, cmp.Or(busyTexts[e.why], "is busy"))
	if len(e.ids) > 0 {
		text += ": " + strings.Join(e.ids, ", ")
	}
	return text
}

// isLasting reports whether waiting does not help.
func (e *busyError) isLasting() bool { return e.why == whyMove || e.why == whySources }

// hasFlights reports whether a node, live or dead, has jobs of the shard.
func (e *busyError) hasFlights() bool { return e.why == "in flight" || e.why == "a recovery" }

// otherMarkError says that a shard was frozen by another attempt. A thaw by the number of that attempt ends it.
type otherMarkError struct {
	shard  *protocol.Shard
	layout int
}

func (e *otherMarkError) Error() string {
	return fmt.Sprintf("shard %s is frozen for layout %d, by another attempt", e.shard, e.layout)
}

// freezeShards takes the shards of a queue out of use. layout is the number of the layout to which their jobs move. The error is a
// *busyError if flights are not over, and an *otherMarkError if another attempt has frozen a shard. Some shards may be frozen
// then.
func freezeShards(ctx context.Context, q *protocol.Queue, layout int) ([]Frozen, error) {
	frozen := make([]Frozen, q.Shards)
	for part := range slices.Chunk(q.All(), shardsPerRead) {
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

// thawShards gives shards back, byte for byte, if they were frozen for this layout. Before, the entry of the queue must say that
// nobody moves jobs to that layout.
func thawShards(ctx context.Context, q *protocol.Queue, layout int) error {
	return protocol.RunEach(ctx, q.Shard(0).DB().Scripts.Freeze, q.All(), func(*protocol.Shard) []any { return []any{"thaw", protocol.MovedMark(layout)} },
		func(*protocol.Shard, []any) error { return nil })
}

// keptFor is how long the numbers of sources and the journal of a former layout stay, in ms.
const keptFor = 31 * 24 * 3600 * 1000

// dropShard deletes the jobs of a shard that was frozen at this time. All shards that got them must be open.
func dropShard(ctx context.Context, from *protocol.Shard, layout int, at int64) error {
	return protocol.RunEach(ctx, from.DB().Scripts.Freeze, []*protocol.Shard{from}, func(*protocol.Shard) []any { return []any{"drop", protocol.MovedMark(layout), keptFor, at} },
		func(_ *protocol.Shard, answer []any) error {
			if answer[0] != "OK" {
				return fmt.Errorf("it has the mark %q, and must have that of layout %d since %d us", answer[1], layout, at)
			}
			return nil
		})
}

// relatives returns the shards of a layout with n shards that have ids in common with a shard of a layout with other shards: from
// first to last. They are the parents of a new shard, or the children of an old shard. Each shard has a range of the hashes of
// ids, see lowkiq.ShardOf. So a shard has few relatives, whatever the numbers are.
func relatives(index, other, n int) (first, last int) {
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

// prepareShards closes the shards of the new layout that were never open.
func prepareShards(ctx context.Context, to, from *protocol.Queue) error {
	return prepareSome(ctx, to.All(), to.Shards, from.Shards)
}

func prepareSome(ctx context.Context, shards []*protocol.Shard, total, parents int) error {
	return runTake(ctx, shards, func(s *protocol.Shard) []any {
		first, last := relatives(s.Index, total, parents)
		return []any{"prepare", last - first + 1}
	})
}

// forgetShards deletes the shards of an attempt that its entry does not have any more. A shard with jobs stays. If to is nil,
// there are none.
func forgetShards(ctx context.Context, to *protocol.Queue) error {
	if to == nil {
		return nil
	}
	return runTake(ctx, to.All(), func(*protocol.Shard) []any { return []any{"forget"} })
}

// setFloors makes sure that the closed shards give higher scores and fences than their parents, and that they know how long the
// jobs of their parents have waited and which queue gets dead payloads.
func setFloors(ctx context.Context, to, from *protocol.Queue, frozen []Frozen) error {
	return setFloorsOf(ctx, to.All(), func(s *protocol.Shard) []Frozen {
		first, last := relatives(s.Index, to.Shards, from.Shards)
		return frozen[first : last+1]
	})
}

// setFloorsOf sets the floors of shards by their parents.
func setFloorsOf(ctx context.Context, shards []*protocol.Shard, parents func(*protocol.Shard) []Frozen) error {
	args := func(s *protocol.Shard) []any {
		last, fence, oldest, deadTo := int64(0), int64(0), int64(0), ""
		for _, f := range parents(s) {
			last, fence, deadTo = max(last, redisdb.Int(f.Last)), max(fence, f.Fence), cmp.Or(deadTo, f.DeadTo)
			if at := redisdb.Int(f.Oldest); at > 0 && (oldest == 0 || at < oldest) {
				oldest = at
			}
		}
		text := ""
		if oldest > 0 {
			text = strconv.FormatInt(oldest, 10)
		}
		return []any{"floor", last, fence, text, deadTo}
	}
	if err := runTake(ctx, shards, args); err != nil {
		return err
	}
	return awaitReplicas(ctx, shards, shards[0].DB().Scripts.Take, "floor", 0, 0, "", "")
}

// countOpen counts the shards of the new layout that are closed, and those that work.
func countOpen(ctx context.Context, to *protocol.Queue) (closed, open int, err error) {
	for part := range slices.Chunk(to.All(), shardsPerRead) {
		var cmds []redisdb.Cmd
		for _, s := range part {
			cmds = append(cmds, redisdb.Cmd{"HGET", s.Keys().Count, "came"}, redisdb.Cmd{"EXISTS", s.Keys().Coming})
		}
		replies, err := part[0].DB().Pipeline(ctx, "read the new shards of "+to.Name, cmds...)
		if err != nil {
			return 0, 0, err
		}
		for i := range part {
			switch {
			case redisdb.Int(replies[2*i+1]) > 0:
				closed++
			case replies[2*i] != nil:
				open++
			}
		}
	}
	return closed, open, nil
}

// passed says what the new shards have of a frozen shard.
type passed struct {
	taken int64 // entries
	over  bool  // all of its children have all of its entries
}

// readPassed returns what the new shards have of each shard of the former layout. at says when each was frozen. What they have
// from an earlier freeze of a shard counts for nothing.
func readPassed(ctx context.Context, from, to *protocol.Queue, at []int64) ([]passed, error) {
	all := make([]passed, from.Shards)
	for p := range all {
		all[p].over = at[p] != 0
	}
	for part := range slices.Chunk(to.All(), shardsPerRead) {
		var cmds []redisdb.Cmd
		var parents []int
		for _, s := range part {
			first, last := relatives(s.Index, to.Shards, from.Shards)
			for p := first; p <= last; p++ {
				cmds, parents = append(cmds, redisdb.Cmd{"HGET", s.Keys().From, sourceOf(p)}), append(parents, p)
			}
		}
		replies, err := part[0].DB().Pipeline(ctx, "read what the shards of "+to.Name+" have taken", cmds...)
		if err != nil {
			return nil, err
		}
		for i, p := range parents {
			taken, over := parseTaken(redisdb.Text(replies[i]), at[p])
			all[p].taken, all[p].over = all[p].taken+taken, all[p].over && over
		}
	}
	return all, nil
}

// parseTaken parses the field of a source that lua/take.lua writes: the entries that the shard has taken since its parent was
// frozen at this time, and whether these are all.
func parseTaken(field string, at int64) (taken int64, over bool) {
	words := strings.Fields(field)
	if len(words) < 4 || redisdb.Int(words[0]) != at {
		return 0, false
	}
	return redisdb.Int(words[1]), len(words) > 4
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
