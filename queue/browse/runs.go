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

	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// Run is one handler call for one id, as the journal has it.
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
	RunExpired   = journal.Expired   // its time was over before a handler had it
)

// Verdicts are all of them.
func Verdicts() []Verdict { return journal.Verdicts() }

// RunQuery says which runs are wanted. The zero value of a field asks for all.
type RunQuery struct {
	ID       string
	Verdicts []Verdict
	Node     string    // name of a node, or of an instance
	Contains string    // in the id, the error or the log
	Since    time.Time // not what was written before
	Limit    int       // most runs; 0 or less: 100, at most 1,000
}

// Runs are some of a queue's runs.
type Runs struct {
	List []Run
	// Cursor is for RunsAfter: all runs that were written up to there were looked at.
	Cursor int64
	// Oldest is as far back as was looked: older runs, if the journal has any, are not in the list. It is the zero time
	// if the journal was looked through to its end, or to RunQuery.Since.
	Oldest time.Time
}

// Most runs of one answer, and how much of the journal one answer looks through, in bytes.
const (
	runsUsual  = 100
	runsMost   = 1000
	looksOne   = 256 << 10 // of a shard, by one script
	looksSome  = 32 << 10  // of each of several shards, by one script
	looksShard = 100       // shards of one pipeline
	looksMost  = 64        // times that an answer asks
)

func (q *RunQuery) limit() int {
	if q.Limit < 1 {
		return runsUsual
	}
	return min(q.Limit, runsMost)
}

// has reports whether a run is wanted, of those that the script has found.
func (q *RunQuery) has(r *Run) bool {
	if q.Node != "" && r.Instance != q.Node && !strings.HasPrefix(r.Instance, q.Node+"/") {
		return false
	}
	return q.Contains == "" || strings.Contains(r.ID, q.Contains) || strings.Contains(r.Error, q.Contains) || strings.Contains(r.Log, q.Contains)
}

// wanted are the shards that may have such runs.
func (j *Jobs) wanted(q *RunQuery) []*queue.Shard {
	if q.ID != "" {
		return []*queue.Shard{j.q.Of(q.ID)}
	}
	return j.shards
}

// reading is how far the journal of a shard was read.
type reading struct {
	shard *queue.Shard
	at    string // the entry to go on with; "": there is none
	found []Run
	ms    []int64 // when the entry of each was written
}

// upTo is when the entry to go on with was written, ms; ok is false if there is none.
func (r *reading) upTo() (ms int64, ok bool) {
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

// read reads on in the journals of shards.
func (j *Jobs) read(ctx context.Context, q *RunQuery, direction, last string, readings []*reading) error {
	script := j.db.Scripts.Runs
	looks := looksSome
	if len(readings) == 1 {
		looks = looksOne
	}
	letters := ""
	for _, v := range q.Verdicts {
		letters += v.Letter()
	}
	for part := range slices.Chunk(readings, looksShard) {
		calls := make([]*redisdb.Call, len(part))
		for i, r := range part {
			calls[i] = &redisdb.Call{Script: script, Keys: r.shard.Keys().For(script), Args: []any{direction, r.at, last, q.ID, letters, q.limit(), looks}}
		}
		j.db.RunAll(ctx, calls)
		for i, r := range part {
			if calls[i].Err != nil {
				return fmt.Errorf("shard %s: read its journal: %w", r.shard, calls[i].Err)
			}
			if err := r.take(redisdb.Texts(calls[i].Reply), q); err != nil {
				return fmt.Errorf("shard %s: %w", r.shard, err)
			}
		}
	}
	return nil
}

// take takes in an answer of lua/runs.lua.
func (r *reading) take(answer []string, q *RunQuery) error {
	if len(answer) == 0 || len(answer)%3 != 1 {
		return fmt.Errorf("%w: runs answered %.60q", journal.ErrEntry, answer)
	}
	r.at = answer[0]
	for entry := range slices.Chunk(answer[1:], 3) {
		ms := entryMillis(entry[0])
		runs, err := journal.Parse(entry[2], entry[1], time.UnixMilli(ms))
		if err != nil {
			return err
		}
		for i := range runs {
			if runs[i].Shard = r.shard.Index; q.has(&runs[i]) {
				r.found, r.ms = append(r.found, runs[i]), append(r.ms, ms)
			}
		}
	}
	return nil
}

// Runs lists the newest runs, the last one first.
func (j *Jobs) Runs(ctx context.Context, q RunQuery) (list Runs, err error) {
	now, err := j.clock(ctx)
	if err != nil {
		return list, err
	}
	list.Cursor = now
	last := "-"
	if !q.Since.IsZero() {
		last = strconv.FormatInt(max(0, q.Since.UnixMilli()), 10)
	}
	var all []*reading
	for _, s := range j.wanted(&q) {
		all = append(all, &reading{shard: s, at: "+"})
	}
	open, floor := all, int64(0)
	for n := 0; ; n++ {
		if err := j.read(ctx, &q, "new", last, open); err != nil {
			return Runs{}, err
		}
		// What was written after floor is known of all shards.
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
		if len(open) == 0 || known >= q.limit() || n == looksMost {
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
	if q.ID == "" { // those of one id are in the order in which they were written, whatever clocks say
		slices.SortStableFunc(list.List, func(x, y Run) int { return y.Ended.Compare(x.Ended) })
	}
	switch {
	case len(list.List) > q.limit():
		list.List = list.List[:q.limit()]
		list.Oldest = list.List[q.limit()-1].Ended
	case floor > 0:
		list.Oldest = time.UnixMilli(floor)
	}
	return list, nil
}

// RunsAfter lists the runs that were written after a cursor, the first one first. It misses none, and lists none twice,
// as long as Redis's clock is not set back; the same cursor comes back while there are none. A millisecond is listed
// whole, so there may be more than asked for.
func (j *Jobs) RunsAfter(ctx context.Context, cursor int64, q RunQuery) (list Runs, err error) {
	now, err := j.clock(ctx)
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
	var all []*reading
	for _, s := range j.wanted(&q) {
		all = append(all, &reading{shard: s, at: strconv.FormatInt(from, 10)})
	}
	last := strconv.FormatInt(now, 10)
	for open := all; len(open) > 0; {
		if err := j.read(ctx, &q, "old", last, open); err != nil {
			return Runs{}, err
		}
		// A shard of which not even the first millisecond is known is read on.
		open = slices.DeleteFunc(slices.Clone(open), func(r *reading) bool {
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
		if i >= q.limit() && found[i].ms != found[i-1].ms {
			list.Cursor = found[i-1].ms
			break
		}
		list.List = append(list.List, found[i].Run)
	}
	return list, nil
}

// clock is the last millisecond that is over for all masters: what is written from now on comes after it.
func (j *Jobs) clock(ctx context.Context) (ms int64, err error) {
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
