package rubyqueue

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Keep forgets entries as [Queue.Forget] does, but leaves their content readable for the time d ([Queue.ReadKept]).
func (q *Queue) Keep(ctx context.Context, d time.Duration, numbers ...int64) error {
	for len(numbers) > 0 {
		some := numbers[:min(len(numbers), idsPerScript)]
		args := []any{q.run, toSeconds(d)}
		for _, n := range some {
			args = append(args, n)
		}
		if _, err := q.runScript(ctx, keepScript, args...); err != nil {
			return err
		}
		numbers = numbers[len(some):]
	}
	return nil
}

func toSeconds(d time.Duration) int64 { return max(1, int64(d/time.Second)) }

// ReadKept returns the kept entries of each id, in order of their numbers.
func (q *Queue) ReadKept(ctx context.Context, ids []string, morgue bool, most int) (kept [][]*Entry, err error) {
	kept = make([][]*Entry, len(ids))
	if len(ids) == 0 {
		return kept, nil
	}
	cmd := []any{"HMGET", q.key("migrate:kept")}
	for _, id := range ids {
		cmd = append(cmd, kindLetter(morgue)+id)
	}
	reply, err := q.db.Do(ctx, "read what was kept", cmd...)
	if err != nil {
		return nil, err
	}
	var numbers []any
	var of []int
	for i, text := range redisdb.Texts(reply) {
		for _, n := range strings.Fields(text) {
			numbers, of = append(numbers, n), append(of, i)
		}
	}
	for len(numbers) > 0 {
		entries, err := q.runForEntries(ctx, keptScript, most, append([]any{bytesPerScript}, numbers[:min(len(numbers), idsPerScript)]...)...)
		if err != nil {
			return nil, err
		}
		for k, e := range entries {
			if e != nil { // nil: its time is over
				kept[of[k]] = append(kept[of[k]], e)
			}
		}
		numbers, of = numbers[len(entries):], of[len(entries):]
	}
	return kept, nil
}

func kindLetter(morgue bool) string { return kindOf(morgue)[:1] }

func kindOf(morgue bool) string {
	if morgue {
		return "morgue"
	}
	return "job"
}

// KeptNumbers returns the numbers of an id's kept entries.
func (q *Queue) KeptNumbers(ctx context.Context, id string, morgue bool) (numbers []int64, err error) {
	reply, err := q.db.Do(ctx, "read what was kept", "HGET", q.key("migrate:kept"), kindLetter(morgue)+id)
	for _, text := range strings.Fields(redisdb.Text(reply)) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
	}
	return numbers, err
}

// HasStaged reports whether a job is written down under a number.
func (q *Queue) HasStaged(ctx context.Context, number int64) (bool, error) {
	reply, err := q.db.Do(ctx, "look for what is written down", "EXISTS", q.key("migrate:back:"+strconv.FormatInt(number, 10)))
	return redisdb.Int(reply) == 1, err
}

// Staged names a job that is written down and goes back to Ruby.
type Staged struct {
	Number int64
	ID     string
	Morgue bool
}

// Stage writes down a job where no process of Ruby's looks, and returns its number.
func (q *Queue) Stage(ctx context.Context, id string, morgue bool, job Job) (number int64, err error) {
	return q.writeStaged(ctx, 0, id, morgue, job)
}

// Restage adds payloads to a job that is written down under a number.
func (q *Queue) Restage(ctx context.Context, number int64, id string, morgue bool, job Job) error {
	_, err := q.writeStaged(ctx, number, id, morgue, job)
	return err
}

// writeStaged writes a job down under a number, or under a new number if number is 0. Its scripts are bounded in
// payloads and bytes, but for a single large payload.
func (q *Queue) writeStaged(ctx context.Context, number int64, id string, morgue bool, job Job) (int64, error) {
	failure := []any{"0", ""}
	if job.Error != nil {
		failure = []any{"1", *job.Error}
	}
	reply, err := q.runScript(ctx, stageScript, append([]any{q.run, number, "row", kindOf(morgue), id, formatFloat(job.At),
		formatFloat(job.Retries)}, failure...)...)
	if err != nil {
		return 0, err
	}
	number = redisdb.Int(reply)
	for rest := job.Payloads; len(rest) > 0; {
		args, size, n := []any{q.run, number, "payloads"}, 0, 0
		for n < len(rest) && n < payloadsPerScript && (n == 0 || size+len(rest[n].Data) <= bytesPerScript) {
			args = append(args, formatFloat(rest[n].Score), rest[n].Data)
			size += len(rest[n].Data)
			n++
		}
		if _, err := q.runScript(ctx, stageScript, args...); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return number, nil
}

func formatFloat(x float64) string { return strconv.FormatFloat(x, 'g', 17, 64) }

// ReadStaged returns the jobs that are written down and not published, in order of their numbers.
func (q *Queue) ReadStaged(ctx context.Context, after int64) (all []Staged, err error) {
	reply, err := q.runScript(ctx, stagedScript, idsPerScript, after)
	for _, one := range redisdb.List(reply) {
		if e := redisdb.List(one); len(e) == 3 {
			all = append(all, Staged{redisdb.Int(e[0]), redisdb.Text(e[2]), redisdb.Text(e[1]) == "morgue"})
		}
	}
	return all, err
}

// Unstage drops a job that was written down.
func (q *Queue) Unstage(ctx context.Context, number int64) error {
	return q.runUntilDone(ctx, unstageScript, q.run, number, payloadsPerScript)
}

// Publish gives a job that was written down to Ruby.
func (q *Queue) Publish(ctx context.Context, s Staged) error {
	return q.runUntilDone(ctx, publishScript, q.run, s.Number, ShardOf(s.ID, q.shards), payloadsPerScript, bytesPerScript)
}

// runUntilDone repeats a script until it answers 1.
func (q *Queue) runUntilDone(ctx context.Context, s *redisdb.Script, args ...any) error {
	for {
		done, err := q.runScript(ctx, s, args...)
		if err != nil || redisdb.Int(done) == 1 {
			return err
		}
	}
}
