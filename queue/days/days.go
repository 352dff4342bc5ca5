package days

import (
	"context"
	"slices"

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Kept is how many days the figures of a day are kept, and HoursKept how many hours those of an
// hour.
const (
	Kept      = redisdb.DaysKept
	HoursKept = redisdb.HoursKept
)

// Span is the length of a period, a day or an hour.
type Span string

// The spans. The values are the time layouts of their periods.
const (
	Days  Span = redisdb.Days
	Hours Span = redisdb.Hours
)

// Day is the figures of a queue for a day or an hour.
type Day struct {
	Queue, Period string // for example 2026-01-31 or 2026-01-31T15
	Figures       Figures
	Unreadable    int // number of counts that cannot be read and are left out
}

// bytesOfDay is the memory of a day until it is answered.
const bytesOfDay = 4 << 10

// Read returns the last n days or hours of queues, including the current day or hour, by queue and
// then by time. It leaves out periods without figures.
func Read(ctx context.Context, c *protocol.Client, span Span, n int, queues ...string) ([]Day, error) {
	now, err := c.Time(ctx)
	if err != nil {
		return nil, err
	}
	if err := memory.Take(ctx, int64(n*len(queues))*bytesOfDay); err != nil {
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
			if counts := redisdb.Map(reply); len(counts) > 0 {
				part[i].Figures, part[i].Unreadable = parseFigures(counts)
				found = append(found, part[i])
			}
		}
	}
	return found, nil
}
