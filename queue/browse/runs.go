package browse

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Run is a handler call for an id as the journal records it.
type Run = journal.Run

// Verdict is how a run ended.
type Verdict = journal.Verdict

// The verdicts.
const (
	RunDone      = journal.Done
	RunFailed    = journal.Failed    // a retry was spent
	RunExhausted = journal.Exhausted // no retry was left, or it asked to be buried
	RunCrashed   = journal.Crashed   // its worker died while the id ran alone
	RunPostponed = journal.Postponed // its handler asked for a delay
	RunCancelled = journal.Cancelled // a person ended it
	RunExpired   = journal.Expired   // it expired before a handler got it
)

// Verdicts returns all verdicts.
func Verdicts() []Verdict { return journal.Verdicts() }

// RunQuery selects runs. The zero value of a field selects all.
type RunQuery struct {
	ID       string
	Verdicts []Verdict
	Node     string    // name of a node, or of an instance
	Contains string    // in the id, the error or the log
	Since    time.Time // leaves out runs that were recorded before
	Limit    int       // maximum number of runs, at most 1,000; 0 or less means 100
}

// Runs is a list of runs of a queue.
type Runs struct {
	List []Run
	// Cursor is for RunsAfter. All runs that were recorded up to it are taken into account.
	Cursor int64
	// Oldest is how far back the journal was read. Older runs, if there are any, are not in the
	// list. It is the zero time if the journal was read to its end or to RunQuery.Since.
	Oldest time.Time
}

// Bounds of an answer, and of the bytes of the journal that a script reads for it.
const (
	defaultRuns        = 100
	maxRuns            = 1000
	maxBytesAlone      = 256 << 10 // bytes of the only shard, by a script
	maxBytesShared     = 32 << 10  // bytes of each of several shards, by a script
	maxBytesTogether   = 4 << 20   // bytes of all shards together, by a round of scripts
	maxShardsPipelined = 100       // shards in a pipeline
	maxRounds          = 64        // rounds of scripts for an answer
)

func (q *RunQuery) runLimit() int {
	if q.Limit < 1 {
		return defaultRuns
	}
	return min(q.Limit, maxRuns)
}

// wantsRun applies the filters that the script has not applied.
func (q *RunQuery) wantsRun(r *Run) bool {
	if q.Node != "" && r.Instance != q.Node && !strings.HasPrefix(r.Instance, q.Node+"/") {
		return false
	}
	return q.Contains == "" || strings.Contains(r.ID, q.Contains) || strings.Contains(r.Error, q.Contains) || strings.Contains(r.Log, q.Contains)
}

// shardsFor returns the shards that may have such runs, those of the newest layout first.
func (j *Jobs) shardsFor(q *RunQuery) []*protocol.Shard {
	if q.ID != "" {
		return append([]*protocol.Shard{j.q.Of(q.ID)}, j.q.FormerShards(q.ID, journalAge)...)
	}
	return append(slices.Clip(j.shards), j.q.AllFormerShards(journalAge)...)
}

// journalAge is the time for which the journals of a former layout are read. Most rules keep lines for a shorter time.
const journalAge = 90 * 24 * time.Hour

// journalReading is the state of reading the journal of a shard.
type journalReading struct {
	shard *protocol.Shard
	at    string // the next entry to read; "" if there is none
	found []Run
	ms    []int64 // when the entry of each run was recorded
}

// upTo returns when the next entry was recorded, in ms. ok is false if there is none.
func (r *journalReading) upTo() (ms int64, ok bool) {
	if r.at == "" {
		return 0, false
	}
	return entryMillis(r.at), true
}

func entryMillis(entry string) int64 {
	ms, _, _ := strings.Cut(entry, "-")
	n, _ := strconv.ParseInt(ms, 10, 64)
	return n
}

// readJournals reads the next part of the journals of shards.
func (j *Jobs) readJournals(ctx context.Context, q *RunQuery, direction, last string, readings []*journalReading) error {
	script := j.db.Scripts.Runs
	looks := min(maxBytesShared, maxBytesTogether/len(readings))
	if len(readings) == 1 {
		looks = maxBytesAlone
	}
	letters := ""
	for _, v := range q.Verdicts {
		letters += v.Letter()
	}
	for part := range slices.Chunk(readings, maxShardsPipelined) {
		most := int64(len(part)) * int64(copiesOfRun*looks)
		if err := memory.Take(ctx, most); err != nil {
			return err
		}
		calls := make([]*redisdb.Call, len(part))
		for i, r := range part {
			calls[i] = &redisdb.Call{Script: script, Keys: r.shard.Keys().For(script), Args: []any{direction, r.at, last, q.ID, letters, q.runLimit(), looks}}
		}
		j.db.RunAll(ctx, calls)
		held := int64(0)
		for i, r := range part {
			if calls[i].Err != nil {
				return fmt.Errorf("shard %s: read its journal: %w", r.shard, calls[i].Err)
			}
			n, err := r.addAnswer(redisdb.Texts(calls[i].Reply), q)
			if err != nil {
				return fmt.Errorf("shard %s: %w", r.shard, err)
			}
			held += n
		}
		memory.Give(ctx, most)
		if err := memory.Take(ctx, held); err != nil {
			return err
		}
	}
	return nil
}

// copiesOfRun is how many copies of a line exist until the runs are answered. bytesOfRun is the
// memory of a run besides its line.
const (
	copiesOfRun = 3
	bytesOfRun  = 1 << 10
)

// addAnswer adds an answer of lua/runs.lua and returns how many bytes it keeps.
func (r *journalReading) addAnswer(answer []string, q *RunQuery) (held int64, err error) {
	if len(answer) == 0 || len(answer)%3 != 1 {
		return 0, fmt.Errorf("%w: runs answered %.60q", journal.ErrEntry, answer)
	}
	r.at = answer[0]
	for entry := range slices.Chunk(answer[1:], 3) {
		ms := entryMillis(entry[0])
		runs, err := journal.Parse(entry[2], entry[1], time.UnixMilli(ms))
		if err != nil {
			return 0, err
		}
		kept := false
		for i := range runs {
			if runs[i].Shard = r.shard.Index; q.wantsRun(&runs[i]) {
				r.found, r.ms = append(r.found, runs[i]), append(r.ms, ms)
				held, kept = held+bytesOfRun, true
			}
		}
		if kept { // a run refers to the lines of its entry
			held += copiesOfRun * int64(len(entry[2]))
		}
	}
	return held, nil
}

// Runs returns the last runs, newest first.
func (j *Jobs) Runs(ctx context.Context, q RunQuery) (list Runs, err error) {
	now, err := j.lastFullMillisecond(ctx)
	if err != nil {
		return list, err
	}
	list.Cursor = now
	last := "-"
	if !q.Since.IsZero() {
		last = strconv.FormatInt(max(0, q.Since.UnixMilli()), 10)
	}
	var all []*journalReading
	for _, s := range j.shardsFor(&q) {
		all = append(all, &journalReading{shard: s, at: "+"})
	}
	open, floor := all, int64(0)
	for n := 0; ; n++ {
		if err := j.readJournals(ctx, &q, "new", last, open); err != nil {
			return Runs{}, err
		}
		// All runs that were recorded after floor are known, in all shards.
		floor = 0
		for _, r := range all {
			if ms, ok := r.upTo(); ok {
				floor = max(floor, ms)
			}
		}
		open = open[:0:0]
		known := 0
		for _, r := range all {
			if ms, ok := r.upTo(); ok && ms == floor {
				open = append(open, r)
			}
			for _, ms := range r.ms {
				if ms > floor {
					known++
				}
			}
		}
		if len(open) == 0 || known >= q.runLimit() || n == maxRounds {
			break
		}
	}
	for _, r := range all {
		for i, ms := range r.ms {
			if ms > floor {
				list.List = append(list.List, r.found[i])
			}
		}
	}
	if q.ID == "" { // runs of an id stay in the order of their records, whatever clocks say
		slices.SortStableFunc(list.List, func(x, y Run) int { return y.Ended.Compare(x.Ended) })
	}
	switch {
	case len(list.List) > q.runLimit():
		list.List = list.List[:q.runLimit()]
		list.Oldest = list.List[q.runLimit()-1].Ended
	case floor > 0:
		list.Oldest = time.UnixMilli(floor)
	}
	return list, nil
}

// RunsAfter returns the runs that were recorded after a cursor, oldest first. It misses none
// and returns none twice, as long as Redis's clock is not set back. While there are none it returns
// the same cursor. All runs of a millisecond come together, so there may be more than the limit.
func (j *Jobs) RunsAfter(ctx context.Context, cursor int64, q RunQuery) (list Runs, err error) {
	now, err := j.lastFullMillisecond(ctx)
	if err != nil {
		return list, err
	}
	from := max(cursor+1, 0)
	if !q.Since.IsZero() {
		from = max(from, q.Since.UnixMilli())
	}
	list.Cursor = max(cursor, now)
	if from > now {
		return list, nil
	}
	var all []*journalReading
	for _, s := range j.shardsFor(&q) {
		all = append(all, &journalReading{shard: s, at: strconv.FormatInt(from, 10)})
	}
	last := strconv.FormatInt(now, 10)
	for open := all; len(open) > 0; {
		if err := j.readJournals(ctx, &q, "old", last, open); err != nil {
			return Runs{}, err
		}
		// Read on where not even the first millisecond is complete.
		open = slices.DeleteFunc(slices.Clone(open), func(r *journalReading) bool {
			ms, more := r.upTo()
			return !more || ms > from
		})
	}
	upTo := now
	for _, r := range all {
		if ms, more := r.upTo(); more {
			upTo = min(upTo, ms-1)
		}
	}
	type timed struct {
		ms int64
		Run
	}
	var found []timed
	for _, r := range all {
		for i, ms := range r.ms {
			if ms <= upTo {
				found = append(found, timed{ms, r.found[i]})
			}
		}
	}
	slices.SortStableFunc(found, func(x, y timed) int { return cmp.Or(cmp.Compare(x.ms, y.ms), x.Ended.Compare(y.Ended)) })
	list.Cursor = upTo
	for i := range found {
		if i >= q.runLimit() && found[i].ms != found[i-1].ms {
			list.Cursor = found[i-1].ms
			break
		}
		list.List = append(list.List, found[i].Run)
	}
	return list, nil
}

// lastFullMillisecond returns the last millisecond that is over for all masters. Later entries are
// recorded after it.
func (j *Jobs) lastFullMillisecond(ctx context.Context) (ms int64, err error) {
	var mu sync.Mutex
	ms = math.MaxInt64
	err = j.db.EachMaster(ctx, func(ctx context.Context, master *redisdb.DB) error {
		now, err := master.Time(ctx)
		mu.Lock()
		defer mu.Unlock()
		ms = min(ms, now.UnixMilli()-1)
		return err
	})
	return ms, err
}
