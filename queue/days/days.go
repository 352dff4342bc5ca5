package days

import (
	"context"
	"encoding/json"
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
			cmds[i] = redisdb.Cmd{"HGETALL", c.DB().Keys.Day(day.Queue, day.Period)}
		}
		replies, err := c.DB().Pipeline(ctx, "read figures of days", cmds...)
		if err != nil {
			return nil, err
		}
		for i, reply := range replies {
			if day := part[i]; day.add(tally.FieldsOf(redisdb.Map(reply))) {
				found = append(found, day)
			}
		}
	}
	return found, nil
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

// joinKey joins the parts of one day or hour, some at a time.
func joinKey(ctx context.Context, c *queue.Client, key string) error {
	for {
		now, err := c.Time(ctx)
		if err != nil {
			return err
		}
		fields := map[string]string{} // a scan may name one twice
		for cursor := "0"; ; {
			reply, err := c.DB().Do(ctx, "read parts of a day", "HSCAN", key, cursor, "COUNT", 100)
			if err != nil {
				return err
			}
			some, next := redisdb.Scanned(reply)
			for i := 0; i+1 < len(some); i += 2 {
				fields[some[i]] = some[i+1]
			}
			if cursor = next; cursor == "0" {
				break
			}
		}
		plan, more := tally.Plan(tally.FieldsOf(fields), now, parse, Figures.Add)
		done, err := plan.Do(ctx, c.DB(), key)
		if err != nil || !done || !more {
			return err
		}
	}
}
