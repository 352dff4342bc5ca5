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

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/network/remote"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/web"
)

type watchCommand struct {
	nodeFlags `embed:""`
	Queue     string        `placeholder:"NAME" help:"Only events of this queue. Default: of all."`
	ID        string        `name:"id" placeholder:"ID" help:"Only runs of this job, and changes that name it."`
	Verdict   []string      `placeholder:"VERDICT" help:"Only runs with these verdicts: done, failed, exhausted, crashed, postponed, cancelled, expired; with commas, or given several times."`
	For       time.Duration `placeholder:"DURATION" help:"End after this time. Default: at Ctrl-C."`
	Count     int           `placeholder:"N" help:"End after this number of events."`
}

// errEnough ends a stream.
var errEnough = errors.New("enough")

// Run prints events until Ctrl-C, or until --count or --for is reached. It asks a node that is out of reach again.
func (c *watchCommand) Run(with *session) error {
	if c.For < 0 || c.Count < 0 {
		return exit.Fail(exit.Usage, "--for is %s and --count is %d; both must be at least 0", c.For, c.Count)
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
			if err := c.printEvent(with, data); err != nil {
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
			return c.interruptError(with.ctx)
		case err != nil && (first || !errors.Is(err, remote.ErrUnreachable)):
			return err
		case err != nil && !lost:
			fmt.Fprintf(with.Err, "%s; trying again\n", terminal.EscapeText(err.Error()))
			lost = true
		}
		if sleep.For(with.ctx, followEvery) != nil {
			return c.interruptError(with.ctx)
		}
	}
}

// interruptError is the error of an interrupted watch. There is none, unless the watch waits for a number of events that
// have not come.
func (c *watchCommand) interruptError(ctx context.Context) error {
	if c.Count > 0 {
		return ctx.Err()
	}
	return nil
}

// printEvent prints an event in a line.
func (c *watchCommand) printEvent(with *session, data []byte) error {
	if with.asJSON {
		return terminal.WriteJSON(with.Out, append(data, '\n'))
	}
	var e web.Event
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("an event cannot be read: %w", err)
	}
	switch {
	case e.Run != nil:
		return runLine(with, &queueRun{e.Queue, *e.Run})
	case e.Recovered != nil:
		r := e.Recovered
		line := fmt.Sprintf("%s  recovered  %s/%d  jobs %d  on %s", formatTime(r.At), e.Queue, r.Shard, r.Jobs, r.Node)
		if r.From != "" {
			line += "  from " + shortLine(r.From, 60)
		}
		if r.Crashes > 0 {
			line += "  buried as crashes " + strconv.Itoa(r.Crashes)
		}
		return with.Printf("%s\n", line)
	case e.Change != nil:
		return changeLine(with, e.Change)
	case e.Event == events.Missed && e.Missed != nil && *e.Missed > 0:
		return with.Printf("missed %d events\n", *e.Missed)
	case e.Event == events.Missed:
		return with.Printf("missed an unknown number of events\n")
	}
	return nil // an event of a later release
}
