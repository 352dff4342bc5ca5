package main

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"
	"time"
)

type jobsCommand struct {
	List   jobsList    `cmd:"" default:"withargs" help:"List jobs by id, due time or retries."`
	Show   jobsShow    `cmd:"" help:"Show one job, wherever it is."`
	RunNow waitingJobs `cmd:"" help:"Make waiting jobs due now."`
	Kill   failedJobs  `cmd:"" help:"Send waiting jobs to the morgue."`
	Delete failedJobs  `cmd:"" help:"Forget waiting jobs."`
}

type jobsList struct {
	oneQueue   `embed:""`
	rangeFlags `embed:""`
	kindFlag   `embed:""`
	State      string `enum:",ready,scheduled,retry,failed,in_flight,blocked" default:"" help:"Only ready, scheduled, retry, in_flight or blocked ones; failed: those of retry, and those of ready that have failed."`
	By         string `enum:",id,due,retries" default:"" help:"Order: due (default), id or retries."`
}

// Run prints jobs.
func (c *jobsList) Run(with *conversation) error {
	query := c.query(c.By, c.State)
	setAll(query, map[string]string{"kind": c.Kind})
	return c.list(with, c.oneQueue, "/jobs", query, func(jobs []listedJob) { jobTable(with, jobs) })
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

func jobTable(with *conversation, jobs []listedJob) {
	with.table("ID STATE SHARD DUE FAILURES PAYLOADS ERROR", func(row func(string, ...any)) {
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

// Run prints one job as JSON: payloads do not fit into columns.
func (c *jobsShow) Run(with *conversation) error {
	with.asJSON = true
	return with.show(queuePath(c.Queue, "/jobs?id="+url.QueryEscape(c.ID)), nil, nil)
}
