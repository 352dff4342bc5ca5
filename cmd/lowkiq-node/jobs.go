package main

import (
	"cmp"
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
    lowkiq-node jobs orders --state retry --kind 'no account #' --all -o json
    lowkiq-node jobs kill orders --all-failed --dry-run
    lowkiq-node jobs kill orders --all-failed --yes

A queue that is called like a command is named after list: jobs list show.

FAILURES is how often a job failed in a row. The retry_count of -o json is one less: -1 for a job that never failed, 0 for one that waits for its first retry. --by retries goes by it.

What is in flight is left alone.

` + exitHelp
}

type jobsList struct {
	oneQueue   `embed:""`
	rangeFlags `embed:""`
	kindFlag   `embed:""`
	State      string `enum:",ready,scheduled,retry,failed,in_flight,blocked" default:"" help:"Only ready, scheduled, retry, in_flight or blocked ones; failed: those of retry, and those of ready that have failed."`
	By         string `enum:",id,due,retries" default:"" help:"Order: due (default), id or retries."`
}

// Help shows how.
func (*jobsList) Help() string {
	return example("jobs orders --state retry --by retries --reverse --limit 10")
}

// Run prints jobs.
func (c *jobsList) Run(s *streams) error {
	query := c.query(c.By, c.State)
	setAll(query, map[string]string{"kind": c.Kind})
	return c.list(s, c.oneQueue, "/jobs", query, jobTable)
}

// listedJob is a job as the API lists it.
type listedJob struct {
	ID         string
	IDBase64   []byte   `json:"id_base64"`
	Payloads   int      `json:"payload_count"` // a list shows the first ones only
	PerformIn  *float64 `json:"perform_in"`
	RetryCount int      `json:"retry_count"`
	Error      string
	State      string
	Shard      int
	BuriedAt   float64 `json:"buried_at"`
}

func (j *listedJob) name() string { return short(cmp.Or(j.ID, string(j.IDBase64)), 40) }

func jobTable(with *conversation, w io.Writer, jobs []listedJob) {
	with.table(w, "ID STATE SHARD DUE FAILURES PAYLOADS ERROR", func(row func(string, ...any)) {
		for _, j := range jobs {
			row("%s\t%s\t%d\t%s\t%d\t%d\t%s", j.name(), j.State, j.Shard, moment(or(j.PerformIn)), j.RetryCount+1, j.Payloads, short(j.Error, 80))
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
func (*jobsShow) Help() string {
	return "The exit code is 2 if there is no such job, as that of why.\n\n" + example("jobs show orders 17")
}

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

type jobsRunNow struct {
	someJobs `embed:""`
	All      bool   `help:"Every scheduled and every failed job."`
	State    string `enum:",scheduled,retry" default:"" help:"Of all, only scheduled or retry ones."`
}

// Help shows how.
func (*jobsRunNow) Help() string { return example("jobs run-now orders 17 18") }

// Run makes jobs due now.
func (c *jobsRunNow) Run(s *streams) error {
	return c.act(s, deed{path: "/jobs/run-now", all: c.All || c.State != "", flag: "--all", state: c.State, done: "due now"})
}

type jobsKill struct {
	someJobs  `embed:""`
	AllFailed bool `help:"Every job that failed and waits for its next attempt, or whose turn has come."`
	All       bool `hidden:""` // there is none: it says so
}

// Help shows how.
func (*jobsKill) Help() string { return example("jobs kill orders --all-failed --dry-run") }

// noAll says what there is in place of --all, which would take jobs that never failed as well.
func noAll(command, queue string) error {
	return fail(exitUsage, "%s has no --all: --all-failed takes every job that failed; jobs that never failed are named by their ids. "+
		"A retired queue goes as a whole: lowkiq-node queues delete %s --force", command, queue)
}

// Run sends jobs to the morgue.
func (c *jobsKill) Run(s *streams) error {
	if c.All {
		return noAll("jobs kill", c.Queue)
	}
	return c.act(s, deed{path: "/jobs/kill", all: c.AllFailed, flag: "--all-failed", state: "failed", done: "sent to the morgue", ask: "Send to the morgue"})
}

type jobsDelete struct {
	someJobs  `embed:""`
	AllFailed bool `help:"Every job that failed and waits for its next attempt, or whose turn has come."`
	All       bool `hidden:""` // there is none: it says so
}

// Help shows how.
func (*jobsDelete) Help() string { return example("jobs delete orders 17") }

// Run forgets jobs.
func (c *jobsDelete) Run(s *streams) error {
	if c.All {
		return noAll("jobs delete", c.Queue)
	}
	return c.act(s, deed{path: "/jobs/delete", all: c.AllFailed, flag: "--all-failed", state: "failed", done: "deleted", ask: "Delete for ever"})
}
