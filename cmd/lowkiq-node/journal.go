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

	"github.com/lowkiq/lowkiq/internal/pause"
	"github.com/lowkiq/lowkiq/internal/remote"
	"github.com/lowkiq/lowkiq/web"
)

// queueRun is a run with its queue, as these commands print it.
type queueRun struct {
	Queue string `json:"queue"`
	web.Run
}

type historyCommand struct {
	asking `embed:""`
	Queue  string `placeholder:"NAME" help:"Only of this queue."`
	Limit  int    `default:"100" help:"Most runs of a queue: 1 to 1000."`
	ID     string `arg:"" name:"key" help:"The job's id."`
}

// Run prints how the runs of an id ended, the last one first.
func (c *historyCommand) Run(with *conversation) error {
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
		if err := with.fetch(path, &answer); err != nil {
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
		return with.say("no run of %q is in the journal of %s\n", c.ID, strings.Join(queues, ", "))
	}
	with.table("ENDED QUEUE VERDICT ATTEMPT WAITED TOOK NODE SAID", func(row func(string, ...any)) {
		for _, r := range runs {
			row("%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s", moment(r.Ended), r.Queue, r.Verdict, r.Attempt, seconds(waited(&r.Run)), took(&r.Run), r.Node, said(&r.Run, 80))
		}
	})
	return nil
}

// queuesNamed are the queue that is named, or all.
func queuesNamed(with *conversation, name string) (names []string, err error) {
	if name != "" {
		return []string{name}, nil
	}
	var all web.Queues
	if err := with.fetch("/api/v1/queues", &all); err != nil {
		return nil, err
	}
	for _, q := range all.Queues {
		names = append(names, q.Name)
	}
	return names, nil
}

// waited is how long a job was due before its handler was called, in seconds.
func waited(r *web.Run) float64 {
	if r.Began != nil {
		return max(0, *r.Began-r.Due)
	}
	return max(0, r.Popped-r.Due)
}

func took(r *web.Run) string {
	if r.Began == nil {
		return "-"
	}
	return seconds(r.Ended - *r.Began)
}

// said is what a run came to, in one line: its error or the last line of its log, and its result.
func said(r *web.Run, n int) string {
	text, result := cmp.Or(r.Error, r.Log[strings.LastIndexByte(r.Log, '\n')+1:]), string(r.Result)
	if text != "" && result != "" {
		result = " = " + result
	}
	return short(text+result, n)
}

// printRuns prints a line of JSON for each run.
func printRuns(with *conversation, runs []queueRun) error {
	for i := range runs {
		line, err := json.Marshal(&runs[i])
		if err != nil {
			return err
		}
		if err := writeJSON(with.out, append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

type journalCommand struct {
	asking   `embed:""`
	Queue    string   `placeholder:"NAME" help:"Only of this queue. Default: of all."`
	Verdict  []string `placeholder:"VERDICT" help:"Only runs that ended so: done, failed, exhausted, crashed, postponed, cancelled, expired; with commas, or several times."`
	On       string   `placeholder:"NODE" help:"Only runs on this node, or of this instance."`
	Contains string   `placeholder:"TEXT" help:"Only runs with this in their id, error or log."`
	Since    string   `placeholder:"TIME" help:"Only since then: a time as 2026-01-02T15:04:05Z, or how long ago, as 90m."`
	Limit    int      `default:"100" help:"Most runs of a queue, without --follow: 1 to 1000."`
	Follow   bool     `short:"f" help:"Go on with what comes, until Ctrl-C."`
	Cluster  bool     `help:"Show who has changed what, instead of runs."`

	cursors map[string]int64 // by queue
	last    map[string]bool  // what was printed first: the millisecond of the newest ones was not over then
}

// followEvery is how often a journal that is followed is asked for what is new.
const followEvery = time.Second

// Run prints how runs ended, the oldest first.
func (c *journalCommand) Run(with *conversation) error {
	if c.Cluster {
		return c.changes(with)
	}
	queues, err := queuesNamed(with, c.Queue)
	if err != nil {
		return err
	}
	lost := false
	// With --since all that there is comes like what is new, from there on.
	for first := !c.Follow || c.Since == ""; ; first = false {
		err := c.print(with, queues, first)
		switch {
		case with.ctx.Err() != nil && c.Follow:
			return nil // as tail -f ends
		case err != nil && (first || !errors.Is(err, remote.ErrUnreachable)):
			return err
		case !c.Follow:
			return nil
		case err != nil && !lost:
			fmt.Fprintf(with.err, "%s; trying again\n", plain(err.Error()))
		}
		lost = err != nil
		if pause.For(with.ctx, followEvery) != nil {
			return nil
		}
	}
}

// print prints what is new of some queues; the first time, the newest there is.
func (c *journalCommand) print(with *conversation, queues []string, first bool) error {
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
			if err := with.fetch(queuePath(queue, "/journal?"+values.Encode()), &answer); err != nil {
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
		if err := c.lines(with, runs); err != nil {
			return err
		}
	}
	return nil
}

// lines prints runs, each in a line.
func (c *journalCommand) lines(with *conversation, runs []queueRun) error {
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
func runLine(with *conversation, r *queueRun) error {
	line := fmt.Sprintf("%s  %-9s  %s  %s  attempt %d  waited %s  took %s  on %s", moment(r.Ended), r.Verdict, r.Queue, short(r.ID(), 40), r.Attempt, seconds(waited(&r.Run)), took(&r.Run), r.Node)
	if text := said(&r.Run, 200); text != "-" {
		line += "  " + text
	}
	return with.say("%s\n", line)
}
