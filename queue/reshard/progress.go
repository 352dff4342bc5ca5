package reshard

import (
	"context"
	"fmt"
	"slices"
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
	Busy      string        // why a draining queue waits although it has no call
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
	p, err := readProgress(ctx, c, name, entry)
	if err == nil && !p.UnderWay() && entry.Tried > entry.Layout {
		lines, _, err := changes.In(c.DB()).Read(ctx, changes.Query{Queue: name, Limit: maxLook, Look: maxLook})
		last := slices.IndexFunc(lines, func(l changes.Line) bool { return l.Action == ActionBegin || l.Action == ActionCancel })
		if err == nil && last >= 0 && lines[last].Action == ActionCancel { // otherwise the last attempt has no line of its cancel
			p.Cancelled = lines[last].Why
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
		p, err := readProgress(ctx, c, name, entry)
		if err != nil {
			return nil, err
		}
		all[name] = p
	}
	return all, nil
}

// readProgress returns the progress that an entry and its shards show.
func readProgress(ctx context.Context, c *protocol.Client, name string, entry protocol.RegistryEntry) (Progress, error) {
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
	if p.closed, p.Open, err = countOpen(ctx, l.to); err != nil {
		return p, err
	}
	var f facts
	f.countOld(old, l.number, func(string) bool { return false })
	p.From, p.To, p.number, p.frozen = l.from.Shards, l.to.Shards, l.number, f.frozen
	if r := entry.Reshard; r != nil {
		p.Open, p.Calls, p.Busy, p.Pause = 0, f.calls, f.why, max(0, now.Sub(time.UnixMilli(r.At)))
		if p.Phase = Draining; f.frozen > 0 {
			p.Phase = Freezing
		}
		return p, nil
	}
	p.Phase, p.Pause = Copying, max(0, now.Sub(time.UnixMilli(entry.Was[0].At)))
	have, err := readPassed(ctx, l.from, l.to, f.at)
	if err != nil {
		return p, err
	}
	if p.Open == p.To && !slices.ContainsFunc(have, func(h passed) bool { return !h.over }) {
		p.Phase = Ending
	}
	p.Moved, p.Of, err = countJobs(ctx, l.from, have)
	return p, err
}

// ranked are the keys whose entries are copied, with the commands that count them.
var ranked = []struct{ key, command string }{
	{"ready", "LLEN"}, {"urgent", "ZCARD"}, {"due", "ZCARD"}, {"retry", "ZCARD"}, {"blocked", "ZCARD"}, {"suspects", "LLEN"}, {"dead", "ZCARD"}, {"statesx", "ZCARD"}, {"aside", "HLEN"},
}

// countJobs counts the jobs of the frozen shards, and those that have moved. Of a shard that is being copied the share of the
// entries counts that its children have taken.
func countJobs(ctx context.Context, from *protocol.Queue, have []passed) (moved, of int64, err error) {
	for part := range slices.Chunk(from.All(), shardsPerRead) {
		var cmds []redisdb.Cmd
		for _, s := range part {
			jobs := s.Keys().Old("jobs")
			cmds = append(cmds, redisdb.Cmd{"HLEN", jobs}, redisdb.Cmd{"HEXISTS", jobs, ""}, redisdb.Cmd{"HGET", s.Keys().Old("count"), "tombs"})
			for _, r := range ranked {
				cmds = append(cmds, redisdb.Cmd{r.command, s.Keys().Old(r.key)})
			}
		}
		replies, err := part[0].DB().Pipeline(ctx, "count the jobs of "+from.Name, cmds...)
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
			switch h := have[s.Index]; {
			case h.over:
				moved += jobs
			case entries > 0:
				moved += jobs * min(h.taken, entries) / entries
			}
		}
	}
	return moved, of, nil
}

// String returns the progress for people, as a sentence about the queue.
func (p *Progress) String() string {
	switch p.Phase {
	case Draining:
		if len(p.Calls) == 0 && p.Busy != "" {
			return fmt.Sprintf("it is being resharded from %d to %s, and waits, as %s", p.From, countShards(p.To), p.Busy)
		}
		return fmt.Sprintf("it is being resharded from %d to %s, and waits for %s", p.From, countShards(p.To), describeCalls(p.Calls))
	case Freezing:
		return fmt.Sprintf("it is being resharded from %d to %s; pushes wait for a moment", p.From, countShards(p.To))
	case Copying, Ending:
		return fmt.Sprintf("it is being resharded from %d to %s; %d of %d jobs moved, %d of %d shards work", p.From, countShards(p.To), p.Moved, p.Of, p.Open, p.To)
	}
	return "it is not being resharded"
}
