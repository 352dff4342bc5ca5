package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"
)

type jobsCommand struct {
	List   jobsList   `cmd:"" default:"withargs" help:"List jobs by id, due time or retries."`
	Show   jobsShow   `cmd:"" help:"Show one job, wherever it is."`
	RunNow jobsRunNow `cmd:"" help:"Make waiting jobs due now."`
	Kill   jobsKill   `cmd:"" help:"Send waiting jobs to the morgue."`
	Delete jobsDelete `cmd:"" help:"Forget waiting jobs."`
}

func (*jobsCommand) Help() string {
	return `Examples:

    lowkiq-node jobs orders
    lowkiq-node jobs orders --state retry --by retries --reverse --limit 10
    lowkiq-node jobs show orders 17
    lowkiq-node jobs run-now orders 17 18
    lowkiq-node jobs kill orders --all-failed

A queue that is called like a command is named after list: jobs list show.

What is in flight is left alone.

` + exitHelp
}

// rangeFlags limit a list.
type rangeFlags struct {
	From    string `placeholder:"X" help:"First id, time (unix seconds or 2026-01-02T15:04:05Z) or retry count, as --by says."`
	To      string `placeholder:"X" help:"Last one."`
	Reverse bool   `help:"Largest first."`
	Limit   int    `default:"100" placeholder:"N" help:"Most jobs, up to 1000 (${default})."`
}

func (r *rangeFlags) query(by, state string) string {
	values := url.Values{}
	set := func(name, value string) {
		if value != "" {
			values.Set(name, value)
		}
	}
	set("by", by)
	set("state", state)
	set("from", r.From)
	set("to", r.To)
	set("reverse", yes(r.Reverse))
	set("limit", strconv.Itoa(r.Limit))
	return "?" + values.Encode()
}

type jobsList struct {
	oneQueue   `embed:""`
	rangeFlags `embed:""`
	State      string `enum:",ready,scheduled,retry,in_flight,blocked" default:"" help:"Only ready, scheduled, retry, in_flight or blocked ones."`
	By         string `enum:",id,due,retries" default:"" help:"Order: due (default), id or retries."`
}

// Help shows how.
func (*jobsList) Help() string {
	return example("jobs orders --state retry --by retries --reverse --limit 10")
}

// Run prints jobs.
func (c *jobsList) Run(s *streams) error {
	return c.list(s, queuePath(c.Queue, "/jobs")+c.query(c.By, c.State), jobTable)
}

func (c *oneQueue) list(s *streams, path string, table func(*conversation, io.Writer, []listedJob)) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	var answer struct {
		Jobs []listedJob
		More bool
	}
	return with.show(path, &answer, func(w io.Writer) {
		table(with, w, answer.Jobs)
		if answer.More {
			fmt.Fprintf(w, "… and more: see --limit and --from\n")
		}
	})
}

// listedJob is a job as the API lists it.
type listedJob struct {
	ID         string
	IDBase64   []byte `json:"id_base64"`
	Payloads   []struct{ Payload json.RawMessage }
	PerformIn  *float64 `json:"perform_in"`
	RetryCount int      `json:"retry_count"`
	Error      string
	State      string
	Shard      int
	BuriedAt   float64 `json:"buried_at"`
}

func (j *listedJob) name() string { return short(cmp.Or(j.ID, string(j.IDBase64)), 40) }

func jobTable(with *conversation, w io.Writer, jobs []listedJob) {
	with.table(w, "ID STATE SHARD DUE RETRIES PAYLOADS ERROR", func(row func(string, ...any)) {
		for _, j := range jobs {
			row("%s\t%s\t%d\t%s\t%d\t%d\t%s", j.name(), j.State, j.Shard, moment(or(j.PerformIn)), max(0, j.RetryCount), len(j.Payloads), short(j.Error, 80))
		}
	})
}

// moment prints unix seconds in UTC.
func moment(unix float64) string {
	if unix == 0 {
		return "-"
	}
	return time.UnixMicro(int64(unix * 1e6)).UTC().Format("2006-01-02T15:04:05Z")
}

// short is one line of at most n characters, which a terminal may print.
func short(text string, n int) string {
	if text == "" {
		return "-"
	}
	line, rest, _ := strings.Cut(text, "\n")
	quoted := strconv.Quote(line)
	line = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	if runes := []rune(line); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	if rest != "" {
		return line + " …"
	}
	return line
}

type jobsShow struct {
	oneQueue `embed:""`
	ID       string `arg:"" help:"The job's id."`
}

// Help shows how.
func (*jobsShow) Help() string { return example("jobs show orders 17") }

// Run prints one job as JSON: payloads do not fit into columns.
func (c *jobsShow) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	with.asJSON = true
	return with.show(queuePath(c.Queue, "/jobs?id="+url.QueryEscape(c.ID)), nil, nil)
}

// someJobs names jobs of a queue.
type someJobs struct {
	oneQueue `embed:""`
	IDs      []string `arg:"" optional:"" name:"id" help:"Ids of jobs."`
}

// act posts the ids, or nothing to the path for all.
func (c *someJobs) act(s *streams, path, allPath string, all bool, allFlag, done string) error {
	var body any
	switch {
	case all && len(c.IDs) > 0:
		return fail(exitUsage, "want ids or %s, got both", allFlag)
	case !all && len(c.IDs) == 0:
		return fail(exitUsage, "want at least one id, or %s", allFlag)
	case !all:
		body = map[string]any{"ids": c.IDs}
	case path == allPath:
		body = map[string]any{"all": true}
	default:
		path = allPath
	}
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	return with.change(queuePath(c.Queue, path), body, func(answer map[string]any) string {
		return fmt.Sprintf("%v %s", answer["changed"], done)
	})
}

type jobsRunNow struct {
	someJobs `embed:""`
	All      bool `help:"Every scheduled and every failed job."`
}

// Help shows how.
func (*jobsRunNow) Help() string { return example("jobs run-now orders 17 18") }

// Run makes jobs due now.
func (c *jobsRunNow) Run(s *streams) error {
	return c.act(s, "/jobs/run-now", "/run-all-now", c.All, "--all", "due now")
}

type jobsKill struct {
	someJobs  `embed:""`
	AllFailed bool `help:"Every job that failed and waits for its next attempt."`
}

// Help shows how.
func (*jobsKill) Help() string { return example("jobs kill orders --all-failed") }

// Run sends jobs to the morgue.
func (c *jobsKill) Run(s *streams) error {
	return c.act(s, "/jobs/kill", "/kill-all-failed", c.AllFailed, "--all-failed", "sent to the morgue")
}

type jobsDelete struct {
	someJobs  `embed:""`
	AllFailed bool `help:"Every job that failed and waits for its next attempt."`
}

// Help shows how.
func (*jobsDelete) Help() string { return example("jobs delete orders 17") }

// Run forgets jobs.
func (c *jobsDelete) Run(s *streams) error {
	return c.act(s, "/jobs/delete", "/delete-all-failed", c.AllFailed, "--all-failed", "deleted")
}
