package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/network/remote"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/web"
)

// queueRun is a run with its queue, as these commands print it.
type queueRun struct {
	Queue string `json:"queue"`
	web.Run
}

type historyCommand struct {
	nodeFlags `embed:""`
	Queue     string `placeholder:"NAME" help:"Only of this queue."`
	Limit     int    `default:"100" help:"Maximum number of runs of a queue: 1 to 1000."`
	ID        string `arg:"" name:"key" help:"The job's id."`
}

// Run prints how the runs of an id ended, the last run first.
func (c *historyCommand) Run(with *session) error {
	queues, err := queuesNamed(with, c.Queue)
	if err != nil {
		return err
	}
	var runs []queueRun
	for _, queue := range queues {
		var answer web.Runs
		path, err := jobPath(queue, c.ID, "/history?limit="+strconv.Itoa(c.Limit))
		if err != nil {
			return err
		}
		if err := with.fetchJSON(path, &answer); err != nil {
			return err
		}
		for _, r := range answer.Runs {
			runs = append(runs, queueRun{queue, r})
		}
	}
	slices.SortStableFunc(runs, func(x, y queueRun) int { return cmp.Compare(y.Ended, x.Ended) })
	if with.asJSON {
		return printRuns(with, runs)
	}
	if len(runs) == 0 {
		return with.Printf("no run of %q is in the journal of %s\n", c.ID, strings.Join(queues, ", "))
	}
	with.PrintTable("ENDED QUEUE VERDICT ATTEMPT WAITED TOOK NODE SAID", func(row func(string, ...any)) {
		for _, r := range runs {
			row("%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s", formatTime(r.Ended), r.Queue, r.Verdict, r.Attempt, formatSeconds(waitedSeconds(&r.Run)),
				tookText(&r.Run), r.Node, outcomeText(&r.Run, 80))
		}
	})
	return nil
}

// queuesNamed returns the named queue, or all queues.
func queuesNamed(with *session, name string) (names []string, err error) {
	if name != "" {
		return []string{name}, nil
	}
	var all web.Queues
	if err := with.fetchJSON("/api/v1/queues", &all); err != nil {
		return nil, err
	}
	for _, q := range all.Queues {
		names = append(names, q.Name)
	}
	return names, nil
}

// waitedSeconds returns how long a job was due before its handler was called.
func waitedSeconds(r *web.Run) float64 {
	if r.Began != nil {
		return max(0, *r.Began-r.Due)
	}
	return max(0, r.Popped-r.Due)
}

func tookText(r *web.Run) string {
	if r.Began == nil {
		return "-"
	}
	return formatSeconds(r.Ended - *r.Began)
}

// outcomeText returns the result of a run in a line: its error or the last line of its log, and its result.
func outcomeText(r *web.Run, n int) string {
	text, result := cmp.Or(r.Error, r.Log[strings.LastIndexByte(r.Log, '\n')+1:]), string(r.Result)
	if text != "" && result != "" {
		result = " = " + result
	}
	return shortLine(text+result, n)
}

// printRuns prints a line of JSON for each run.
func printRuns(with *session, runs []queueRun) error {
	for i := range runs {
		line, err := json.Marshal(&runs[i])
		if err != nil {
			return err
		}
		if err := terminal.WriteJSON(with.Out, append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

type journalCommand struct {
	nodeFlags `embed:""`
	Queue     string   `placeholder:"NAME" help:"Only of this queue. Default: of all."`
	Verdict   []string `placeholder:"VERDICT" help:"Only runs with these verdicts: done, failed, exhausted, crashed, postponed, cancelled, expired; with commas, or given several times."`
	On        string   `placeholder:"NODE" help:"Only runs on this node, or of this instance."`
	Contains  string   `placeholder:"TEXT" help:"Only runs with this in their id, error or log."`
	Since     string   `placeholder:"TIME" help:"Only runs since this time, as 2026-01-02T15:04:05Z, or for this long, as 90m."`
	Limit     int      `default:"100" help:"Maximum number of runs of a queue, without --follow: 1 to 1000."`
	Follow    bool     `short:"f" help:"Continue with new runs, until Ctrl-C."`
	Cluster   bool     `help:"Show the changes that people made, in place of runs."`

	cursors map[string]int64 // by queue
	last    map[string]bool  // the first printed runs: more may have ended in the millisecond of the newest of them
}

// followEvery is the time between two requests for new runs.
const followEvery = time.Second

// Run prints how runs ended, the oldest first.
func (c *journalCommand) Run(with *session) error {
	if c.Cluster {
		return c.printChanges(with)
	}
	queues, err := queuesNamed(with, c.Queue)
	if err != nil {
		return err
	}
	lost := false
	// With --since the runs from that time on are printed like new runs.
	for first := !c.Follow || c.Since == ""; ; first = false {
		err := c.printNew(with, queues, first)
		switch {
		case with.ctx.Err() != nil && c.Follow:
			return nil // as tail -f ends
		case err != nil && (first || !errors.Is(err, remote.ErrUnreachable)):
			return err
		case !c.Follow:
			return nil
		case err != nil && !lost:
			fmt.Fprintf(with.Err, "%s; trying again\n", terminal.EscapeText(err.Error()))
		}
		lost = err != nil
		if sleep.For(with.ctx, followEvery) != nil {
			return nil
		}
	}
}

// printNew prints the new runs of some queues. The first time it prints the newest runs.
func (c *journalCommand) printNew(with *session, queues []string, first bool) error {
	if c.cursors == nil {
		c.cursors, c.last = map[string]int64{}, map[string]bool{}
	}
	for more := true; more; {
		more = false
		var runs []queueRun
		for _, queue := range queues {
			values := url.Values{"limit": {strconv.Itoa(c.Limit)}}
			for name, value := range map[string]string{"verdict": strings.Join(c.Verdict, ","), "node": c.On, "contains": c.Contains} {
				if value != "" {
					values.Set(name, value)
				}
			}
			cursor := c.cursors[queue]
			if c.Since != "" && cursor == 0 {
				values.Set("since", c.Since)
			}
			if !first {
				values.Set("after", strconv.FormatInt(cursor, 10))
			}
			var answer web.Runs
			if err := with.fetchJSON(queuePath(queue, "/journal?"+values.Encode()), &answer); err != nil {
				return err
			}
			c.cursors[queue] = answer.Cursor
			for _, r := range answer.Runs {
				name := fmt.Sprint(queue, " ", r.Ended, " ", r.ID())
				if c.last[name] {
					continue
				}
				if first {
					c.last[name] = true
				}
				runs = append(runs, queueRun{queue, r})
			}
			more = more || !first && len(answer.Runs) >= c.Limit
		}
		slices.SortStableFunc(runs, func(x, y queueRun) int { return cmp.Compare(x.Ended, y.Ended) })
		if err := c.printLines(with, runs); err != nil {
			return err
		}
	}
	return nil
}

// printLines prints runs, each in a line.
func (c *journalCommand) printLines(with *session, runs []queueRun) error {
	if with.asJSON {
		return printRuns(with, runs)
	}
	for i := range runs {
		if err := runLine(with, &runs[i]); err != nil {
			return err
		}
	}
	return nil
}

// runLine prints a run in a line.
func runLine(with *session, r *queueRun) error {
	line := fmt.Sprintf("%s  %-9s  %s  %s  attempt %d  waited %s  took %s  on %s", formatTime(r.Ended), r.Verdict, r.Queue,
		shortLine(r.ID(), 40), r.Attempt, formatSeconds(waitedSeconds(&r.Run)), tookText(&r.Run), r.Node)
	if text := outcomeText(&r.Run, 200); text != "-" {
		line += "  " + text
	}
	return with.Printf("%s\n", line)
}
