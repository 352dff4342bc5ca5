package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/pause"
	"github.com/lowkiq/lowkiq/internal/remote"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/web"
)

type watchCommand struct {
	asking  `embed:""`
	Queue   string        `placeholder:"NAME" help:"Only what happens in this queue. Default: in all."`
	ID      string        `name:"id" placeholder:"ID" help:"Only runs of this job, and changes that name it."`
	Verdict []string      `placeholder:"VERDICT" help:"Only runs that ended so: done, failed, exhausted, crashed, postponed, cancelled, expired; with commas, or several times."`
	For     time.Duration `placeholder:"DURATION" help:"End after so long. Default: at Ctrl-C."`
	Count   int           `placeholder:"N" help:"End after so many events."`
}

// errEnough ends a stream.
var errEnough = errors.New("enough")

// Run prints events until Ctrl-C, or as many as are wanted. A node that is out of reach is asked again.
func (c *watchCommand) Run(with *conversation) error {
	if c.For < 0 || c.Count < 0 {
		return fail(exitUsage, "--for is %s and --count is %d, want 0 or more", c.For, c.Count)
	}
	values := url.Values{}
	for name, value := range map[string]string{"queue": c.Queue, "id": c.ID, "verdict": strings.Join(c.Verdict, ",")} {
		if value != "" {
			values.Set(name, value)
		}
	}
	began, seen := time.Now(), 0
	for first, lost := true, false; ; first = false {
		if c.For > 0 {
			left := c.For - time.Since(began)
			if left <= 0 {
				return nil
			}
			values.Set("for", left.String())
		}
		err := with.Stream(with.ctx, "/api/v1/events?"+values.Encode(), func(_ string, data []byte) error {
			lost = false
			if err := c.print(with, data); err != nil {
				return err
			}
			if seen++; seen == c.Count {
				return errEnough
			}
			return nil
		})
		switch {
		case errors.Is(err, errEnough):
			return nil
		case with.ctx.Err() != nil:
			return c.interrupted(with.ctx)
		case err != nil && (first || !errors.Is(err, remote.ErrUnreachable)):
			return err
		case err != nil && !lost:
			fmt.Fprintf(with.err, "%s; trying again\n", plain(err.Error()))
			lost = true
		}
		if pause.For(with.ctx, followEvery) != nil {
			return c.interrupted(with.ctx)
		}
	}
}

// interrupted is how watching ends with ctx: well, unless it is to wait for some events that have not come.
func (c *watchCommand) interrupted(ctx context.Context) error {
	if c.Count > 0 {
		return ctx.Err()
	}
	return nil
}

// print prints an event in a line.
func (c *watchCommand) print(with *conversation, data []byte) error {
	if with.asJSON {
		return writeJSON(with.out, append(data, '\n'))
	}
	var e web.Event
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("an event that is none: %w", err)
	}
	switch {
	case e.Run != nil:
		return runLine(with, &queueRun{e.Queue, *e.Run})
	case e.Recovered != nil:
		r := e.Recovered
		line := fmt.Sprintf("%s  recovered  %s/%d  jobs %d  on %s", moment(r.At), e.Queue, r.Shard, r.Jobs, r.Node)
		if r.From != "" {
			line += "  from " + short(r.From, 60)
		}
		if r.Crashes > 0 {
			line += "  buried as crashes " + strconv.Itoa(r.Crashes)
		}
		return with.say("%s\n", line)
	case e.Change != nil:
		return changeLine(with, e.Change)
	case e.Event == events.Missed && e.Missed != nil && *e.Missed > 0:
		return with.say("missed %d events\n", *e.Missed)
	case e.Event == events.Missed:
		return with.say("missed events, nobody knows how many\n")
	}
	return nil // of a later release
}
