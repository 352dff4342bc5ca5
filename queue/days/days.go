package days

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/internal/tally"
	"github.com/lowkiq/lowkiq/queue"
)

// Kept is for how many days the figures of a day are kept, HoursKept for how many hours those of an hour.
const (
	Kept      = redisdb.DaysKept
	HoursKept = redisdb.HoursKept
)

// Span is a kind of period: days or hours.
type Span string

// The spans, by how their periods are written.
const (
	Days  Span = redisdb.Days
	Hours Span = redisdb.Hours
)

// Day is what a queue did on one day, or in one hour.
type Day struct {
	Queue, Period string // as 2026-01-31 or 2026-01-31T15
	Figures       Figures
	Unreadable    int // parts that are left out, as they cannot be read
}

// Read returns the last n days or hours of queues, this one among them, by queue and then by time. Those of which nothing was
// written are left out.
func Read(ctx context.Context, c *queue.Client, span Span, n int, queues ...string) ([]Day, error) {
	now, err := c.Time(ctx)
	if err != nil {
		return nil, err
	}
	asked := make([]Day, 0, n*len(queues))
	for _, name := range queues {
		for _, period := range slices.Backward(redisdb.Periods(string(span), now, n)) {
			asked = append(asked, Day{Queue: name, Period: period})
		}
	}
	found := []Day{}
	for part := range slices.Chunk(asked, 50) {
		cmds := make([]redisdb.Cmd, len(part))
		for i, day := range part {
			cmds[i] = redisdb.Cmd{"HSCAN", c.DB().Keys.Day(day.Queue, day.Period), "0", "COUNT", scanned}
		}
		replies, err := c.DB().Pipeline(ctx, "read figures of days", cmds...)
		if err != nil {
			return nil, err
		}
		for i, reply := range replies {
			day, fields := part[i], map[string]string{}
			if addScanned(fields, reply) != "0" {
				if fields, err = readMany(ctx, c.DB(), c.DB().Keys.Day(day.Queue, day.Period)); err != nil {
					return nil, err
				}
			}
			if day.add(tally.FieldsOf(fields)) {
				found = append(found, day)
			}
		}
	}
	return found, nil
}

// scanned is how many fields of a day Redis is asked for at once. Most days have fewer.
const scanned = 500

// readMany reads a day that very many processes have counted, some parts at a time. If some are joined meanwhile, it begins
// again, and in the end reads all at once.
func readMany(ctx context.Context, db *redisdb.DB, key string) (map[string]string, error) {
	for range 3 {
		before, err := db.Do(ctx, "read the sum of a day", "HGET", key, tally.Joined)
		if err != nil {
			return nil, err
		}
		fields := map[string]string{}
		for cursor := ""; cursor != "0"; {
			reply, err := db.Do(ctx, "read parts of a day", "HSCAN", key, cmp.Or(cursor, "0"), "COUNT", scanned)
			if err != nil {
				return nil, err
			}
			cursor = addScanned(fields, reply)
		}
		after, err := db.Do(ctx, "read the sum of a day", "HGET", key, tally.Joined)
		if err != nil || redisdb.Text(before) == redisdb.Text(after) {
			return fields, err
		}
	}
	reply, err := db.Do(ctx, "read a day", "HGETALL", key)
	return redisdb.Map(reply), err
}

// addScanned adds a page of a scan, which may name a field twice, and says where the next one is.
func addScanned(fields map[string]string, reply any) (next string) {
	some, next := redisdb.Scanned(reply)
	for i := 0; i+1 < len(some); i += 2 {
		fields[some[i]] = some[i+1]
	}
	return next
}

// add adds the parts of a day up, and reports whether there are some.
func (d *Day) add(fields []tally.Field) (some bool) {
	for _, f := range fields {
		if f.Mark() {
			continue
		}
		some = true
		if one, ok := parse(f.Figures); ok {
			d.Figures = d.Figures.Add(one)
		} else {
			d.Unreadable++
		}
	}
	return some
}

// parse reads figures from Redis; ok is false of what cannot be reckoned with.
func parse(text string) (f Figures, ok bool) {
	err := json.Unmarshal([]byte(text), &f)
	return f, err == nil && f.Run.sound() && f.Wait.sound()
}

// Join makes one of the parts that processes have written of a day and do not write any more, for the last few days and hours,
// or for all that are kept. It may be done by several at a time, and again.
func Join(ctx context.Context, c *queue.Client, all bool) error {
	now, err := c.Time(ctx)
	if err != nil {
		return err
	}
	entries, err := c.Registry().Entries(ctx)
	if err != nil {
		return err
	}
	days, hours := 3, 5
	if all {
		days, hours = Kept+1, HoursKept+1
	}
	var keys []string
	for name := range entries {
		for _, period := range append(redisdb.Periods(redisdb.Days, now, days), redisdb.Periods(redisdb.Hours, now, hours)...) {
			keys = append(keys, c.DB().Keys.Day(name, period))
		}
	}
	for some := range slices.Chunk(keys, 500) {
		cmds := make([]redisdb.Cmd, len(some))
		for i, key := range some {
			cmds[i] = redisdb.Cmd{"HLEN", key}
		}
		sizes, err := c.DB().Pipeline(ctx, "count parts of days", cmds...)
		if err != nil {
			return err
		}
		for i, key := range some {
			if redisdb.Int(sizes[i]) < 2 {
				continue
			}
			if err := joinKey(ctx, c, key); err != nil {
				return err
			}
		}
	}
	return nil
}

// joinHeld is about how many parts and marks are held at a time.
const joinHeld = 1000

// joinKey joins the parts of one day or hour. It reads them once, however many there are.
func joinKey(ctx context.Context, c *queue.Client, key string) error {
	sum, err := c.DB().Do(ctx, "read the sum of a day", "HGET", key, tally.Joined)
	if err != nil {
		return err
	}
	held := map[string]string{}
	if sum != nil {
		held[tally.Joined] = redisdb.Text(sum)
	}
	for cursor := "0"; ; {
		reply, err := c.DB().Do(ctx, "read parts of a day", "HSCAN", key, cursor, "COUNT", 100)
		if err != nil {
			return err
		}
		cursor = addScanned(held, reply)
		if cursor != "0" && len(held) < joinHeld {
			continue
		}
		if fast, err := joinHere(ctx, c, key, held); err != nil || !fast || cursor == "0" {
			return err
		}
		maps.DeleteFunc(held, func(name, _ string) bool { return name != tally.Joined })
	}
}

// joinHere joins what is held of a day, some parts at a time. It reports whether nobody else was faster.
func joinHere(ctx context.Context, c *queue.Client, key string, held map[string]string) (fast bool, err error) {
	now, err := c.Time(ctx)
	if err != nil {
		return false, err
	}
	for more := true; more; {
		var plan tally.Joining[Figures]
		plan, more = tally.Plan(tally.FieldsOf(held), now, parse, Figures.Add)
		done, err := plan.Do(ctx, c.DB(), key, held)
		if err != nil || len(plan.Parts) > 0 && !done {
			return false, err
		}
	}
	return true, nil
}
