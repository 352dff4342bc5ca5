package reshard

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Phase says how far a reshard is.
type Phase string

// The phases, in their order.
const (
	None     Phase = "none"     // no reshard is under way
	Draining Phase = "draining" // waits for the handlers of the queue
	Freezing Phase = "freezing" // pushes wait
	Copying  Phase = "copying"  // pushes go to the new shards, and each new shard works once its jobs are there
	Ending   Phase = "ending"   // all new shards work, and the old shards are dropped
)

// Progress says how far a reshard is. It comes from the entry of the queue and from its shards alone, so every reader sees the
// same. The zero value means that no reshard is under way.
type Progress struct {
	Phase     Phase
	From, To  int           // numbers of shards; From is the present number if no reshard is under way
	Moved, Of int64         // jobs that are in the new shards, and all
	Open      int           // new shards that work
	Calls     []Call        // that a draining queue waits for, the oldest first
	Pause     time.Duration // since its nodes began to end their calls, and after the flip since the flip
	Cancelled string        // why the last attempt was cancelled, if the queue has not been resharded since

	number, frozen, closed int
}

// UnderWay reports whether a reshard is under way.
func (p *Progress) UnderWay() bool { return p.Phase != None && p.Phase != "" }

// Share returns the share of the jobs that are in the new shards, from 0 to 1.
func (p *Progress) Share() float64 {
	switch {
	case p.Phase == Ending:
		return 1
	case p.Phase != Copying || p.Of == 0:
		return 0
	}
	return float64(p.Moved) / float64(p.Of)
}

// Read returns the progress of a queue's reshard.
func Read(ctx context.Context, c *protocol.Client, name string) (Progress, error) {
	if err := protocol.CheckName("queue", name); err != nil {
		return Progress{}, fmt.Errorf("%w: %w", lowkiq.ErrUnknownQueue, err)
	}
	_, entry, err := c.Registry().Stored(ctx, name)
	if err == nil {
		err = checkThere(name, entry)
	}
	if err != nil {
		return Progress{}, err
	}
	p, err := read(ctx, c, name, entry)
	if err == nil && !p.UnderWay() && entry.Tried > entry.Layout {
		lines, _, err := changes.In(c.DB()).Read(ctx, changes.Query{Queue: name, Action: ActionCancel, Limit: 1, Look: maxLook})
		if err == nil && len(lines) == 1 {
			p.Cancelled = lines[0].Why
		}
	}
	return p, err
}

// maxLook is the number of lines of the list of changes that are searched for a reason.
const maxLook = 200

// ReadAll returns the progress of the reshards under way among entries, by queue.
func ReadAll(ctx context.Context, c *protocol.Client, entries map[string]protocol.RegistryEntry) (map[string]Progress, error) {
	all := map[string]Progress{}
	for name, entry := range entries {
		if entry.Reshard == nil && !entry.Copying() {
			continue
		}
		p, err := read(ctx, c, name, entry)
		if err != nil {
			return nil, err
		}
		all[name] = p
	}
	return all, nil
}

// read returns the progress that an entry and its shards show.
func read(ctx context.Context, c *protocol.Client, name string, entry protocol.RegistryEntry) (Progress, error) {
	p := Progress{Phase: None, From: entry.Shards}
	l, underWay := layoutsOf(c.Registry(), name, entry)
	if !underWay {
		return p, nil
	}
	now, err := c.Time(ctx)
	if err != nil {
		return p, err
	}
	old, err := readOld(ctx, c.DB(), l.from, now)
	if err != nil {
		return p, err
	}
	states, err := readStates(ctx, l.to)
	if err != nil {
		return p, err
	}
	p.closed, p.Open = countStates(states)
	var f facts
	calls := f.judge(old, l.number, func(string) bool { return false })
	p.From, p.To, p.number, p.frozen = l.from.Shards, l.to.Shards, l.number, f.frozen
	switch r := entry.Reshard; {
	case r != nil:
		p.Open, p.Calls, p.Pause = 0, calls, now.Sub(time.UnixMilli(r.At))
		if p.Phase = Draining; f.frozen > 0 {
			p.Phase = Freezing
		}
	default:
		if p.Phase = Copying; p.Open == p.To {
			p.Phase = Ending
		}
		p.Pause = now.Sub(time.UnixMilli(entry.Was[0].At))
	}
	p.Pause = max(0, p.Pause)
	if entry.Copying() {
		p.Moved, p.Of, err = countJobs(ctx, l, states)
	}
	return p, err
}

// countStates counts the shards of the new layout that are closed, and those that work.
func countStates(states []shardState) (closed, open int) {
	for _, s := range states {
		if s.closed {
			closed++
		}
		if s.open {
			open++
		}
	}
	return closed, open
}

// ranked are the keys whose entries are copied, with the commands that count them.
var ranked = []struct{ key, command string }{
	{"ready", "LLEN"}, {"urgent", "ZCARD"}, {"due", "ZCARD"}, {"retry", "ZCARD"}, {"blocked", "ZCARD"}, {"suspects", "LLEN"}, {"dead", "ZCARD"}, {"statesx", "ZCARD"}, {"aside", "HLEN"},
}

// countJobs counts the jobs of the frozen shards, and those that have moved. Of a shard that is being copied the share of the
// entries counts that its children have taken.
func countJobs(ctx context.Context, l layouts, states []shardState) (moved, of int64, err error) {
	taken, err := readTaken(ctx, l)
	if err != nil {
		return 0, 0, err
	}
	for part := range slices.Chunk(l.from.All(), shardsPerRead) {
		var cmds []redisdb.Cmd
		for _, s := range part {
			jobs := s.Keys().Old("jobs")
			cmds = append(cmds, redisdb.Cmd{"HLEN", jobs}, redisdb.Cmd{"HEXISTS", jobs, ""}, redisdb.Cmd{"HGET", s.Keys().Old("count"), "tombs"})
			for _, r := range ranked {
				cmds = append(cmds, redisdb.Cmd{r.command, s.Keys().Old(r.key)})
			}
		}
		replies, err := part[0].DB().Pipeline(ctx, "count the jobs of "+l.from.Name, cmds...)
		if err != nil {
			return 0, 0, err
		}
		for i, s := range part {
			r := replies[i*(3+len(ranked)):]
			jobs, entries := max(0, redisdb.Int(r[0])-redisdb.Int(r[1])-redisdb.Int(r[2])), int64(0) // as freeze.lua counts them
			for j := range ranked {
				entries += redisdb.Int(r[3+j])
			}
			of += jobs
			first, last := related(s.Index, l.from.Shards, l.to.Shards)
			switch source := sourceOf(s.Index); {
			case !slices.ContainsFunc(states[first:last+1], func(c shardState) bool { return !c.open && !c.over[source] }):
				moved += jobs
			case entries > 0:
				moved += jobs * min(taken[s.Index], entries) / entries
			}
		}
	}
	return moved, of, nil
}

// readTaken returns for each shard of the former layout how many of its entries the new shards have taken.
func readTaken(ctx context.Context, l layouts) ([]int64, error) {
	taken := make([]int64, l.from.Shards)
	for part := range slices.Chunk(l.to.All(), shardsPerRead) {
		var cmds []redisdb.Cmd
		var parents []int
		for _, s := range part {
			first, last := related(s.Index, l.to.Shards, l.from.Shards)
			for p := first; p <= last; p++ {
				cmds, parents = append(cmds, redisdb.Cmd{"HGET", s.Keys().From, sourceOf(p)}), append(parents, p)
			}
		}
		replies, err := part[0].DB().Pipeline(ctx, "read what the shards of "+l.to.Name+" have taken", cmds...)
		if err != nil {
			return nil, err
		}
		for i, reply := range replies {
			if words := strings.Fields(redisdb.Text(reply)); len(words) == 4 { // see take.lua
				n, _ := strconv.ParseInt(words[1], 10, 64)
				taken[parents[i]] += n
			}
		}
	}
	return taken, nil
}

// String returns the progress for people, as a sentence about the queue.
func (p *Progress) String() string {
	switch p.Phase {
	case Draining:
		return fmt.Sprintf("it is being resharded from %d to %s, and waits for %s", p.From, countShards(p.To), describeCalls(p.Calls))
	case Freezing:
		return fmt.Sprintf("it is being resharded from %d to %s; pushes wait for a moment", p.From, countShards(p.To))
	case Copying, Ending:
		return fmt.Sprintf("it is being resharded from %d to %s; %d of %d jobs moved, %d of %d shards work", p.From, countShards(p.To), p.Moved, p.Of, p.Open, p.To)
	}
	return "it is not being resharded"
}
