package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/web"
)

type jobsCommand struct {
	List   jobsList    `cmd:"" default:"withargs" help:"List jobs by id, due time or retries."`
	Show   jobsShow    `cmd:"" help:"Show one job, wherever it is."`
	RunNow waitingJobs `cmd:""`
	Kill   failedJobs  `cmd:""`
	Delete failedJobs  `cmd:""`
}

type jobsList struct {
	oneQueue    `embed:""`
	rangeFlags  `embed:""`
	kindFlag    `embed:""`
	searchFlags `embed:""`
	State       string `enum:",ready,scheduled,retry,failed,held,in_flight,blocked" default:"" help:"Only jobs in this state. failed: jobs in retry, and ready jobs that have failed."`
	By          string `enum:",id,due,retries" default:"" help:"Order: due (default), id or retries."`
}

// Run prints jobs.
func (c *jobsList) Run(with *session) error {
	return c.printList(with, queuePath(c.Queue, "/jobs"), c.addTo(map[string]string{"by": c.By, "state": c.State, "kind": c.Kind}), jobTable)
}

func jobTable(with *session, jobs []web.Job) {
	with.PrintTable("ID STATE SHARD DUE FAILURES PAYLOADS ERROR", func(row func(string, ...any)) {
		for _, j := range jobs {
			due := formatTime(valueOrZero(j.PerformIn))
			if j.State == browse.StateHeld { // unknown until the hold ends
				due = "-"
			}
			row("%s\t%s\t%d\t%s\t%d\t%d\t%s", shortLine(j.ID(), 40), j.State, j.Shard, due, j.RetryCount+1, j.PayloadCount, shortLine(j.Error, 80))
		}
	})
}

// formatTime returns unix seconds as a time in UTC.
func formatTime(unix float64) string {
	if unix == 0 {
		return "-"
	}
	return time.UnixMicro(int64(unix * 1e6)).UTC().Format("2006-01-02T15:04:05Z")
}

// shortLine returns a line of at most n characters that a terminal may print.
func shortLine(text string, n int) string {
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

// Run prints a job as JSON, because payloads do not fit into columns.
func (c *jobsShow) Run(with *session) error {
	if err := checkID(c.ID); err != nil {
		return err
	}
	with.asJSON = true
	return with.getAndPrint(queuePath(c.Queue, "/jobs?id="+url.QueryEscape(c.ID)), nil, nil)
}

type morgueCommand struct {
	List    morgueList `cmd:"" default:"withargs" help:"List buried jobs by the time of their burial."`
	Requeue allJobs    `cmd:"" set:"all=The whole morgue."`
	Delete  allJobs    `cmd:"" set:"all=The whole morgue."`
}

type morgueList struct {
	oneQueue    `embed:""`
	rangeFlags  `embed:""`
	kindFlag    `embed:""`
	searchFlags `embed:""`
	By          string `enum:",time,id,retries" default:"" help:"Order: time of the burial (default), id or retries."`
}

// Run prints the jobs of the morgue.
func (c *morgueList) Run(with *session) error {
	return c.printList(with, queuePath(c.Queue, "/morgue"), c.addTo(map[string]string{"by": c.By, "kind": c.Kind}), morgueTable)
}

func morgueTable(with *session, jobs []web.Job) {
	with.PrintTable("ID BURIED SHARD PAYLOADS ERROR", func(row func(string, ...any)) {
		for _, j := range jobs {
			row("%s\t%s\t%d\t%d\t%s", shortLine(j.ID(), 40), formatTime(j.BuriedAt), j.Shard, j.PayloadCount, shortLine(j.Error, 80))
		}
	})
}

type inFlightCommand struct {
	oneQueue   `embed:""`
	rangeFlags `embed:""`
	By         string `enum:",id,due" default:"" help:"Order: id (default) or due."`
}

// Run prints the jobs that handlers have.
func (c *inFlightCommand) Run(with *session) error {
	return c.printList(with, queuePath(c.Queue, "/in-flight"), map[string]string{"by": c.By}, inFlightTable)
}

func inFlightTable(with *session, jobs []web.Job) {
	with.PrintTable("ID SHARD SINCE PROGRESS FAILURES PAYLOADS ERROR", func(row func(string, ...any)) {
		for _, j := range jobs {
			row("%s\t%d\t%s\t%s\t%d\t%d\t%s", shortLine(j.ID(), 40), j.Shard, formatTime(j.Since), progressText(j.Progress), j.RetryCount+1,
				j.PayloadCount, shortLine(j.Error, 80))
		}
	})
}

// progressText returns in a line what a handler has noted of a job.
func progressText(p *web.Progress) string {
	switch {
	case p == nil:
		return "-"
	case p.Log == "":
		return fmt.Sprintf("%.0f%%", 100*p.Share)
	}
	return fmt.Sprintf("%.0f%% %s", 100*p.Share, shortLine(p.Log, 40))
}

// Lists come in pages. A cursor says where the next page begins.

// rangeFlags limit a list.
type rangeFlags struct {
	From    string `placeholder:"X" help:"First id, time (unix seconds or 2026-01-02T15:04:05Z) or retry count, depending on --by."`
	To      string `placeholder:"X" help:"Last id, time or retry count."`
	Reverse bool   `help:"Largest first."`
	Limit   int    `default:"100" placeholder:"N" help:"Maximum number of jobs, at most 1000 (${default}); with --all, of each request."`
	Cursor  string `placeholder:"CURSOR" help:"Continue a list with the same flags: the cursor that it printed."`
	All     bool   `help:"The whole list, page after page."`
}

// kindFlag selects jobs by the kind of their last error.
type kindFlag struct {
	Kind string `placeholder:"KIND" help:"Only jobs whose last error is of this kind, as lowkiq-node errors names it. Commands that change jobs end with exit code 64 if no job has it."`
}

// searchFlags select jobs by their content.
type searchFlags struct {
	Contains string `placeholder:"TEXT" help:"Only jobs with this text in their id or in a payload, as it is stored."`
	Tag      string `placeholder:"TAG" help:"Only jobs with a payload that has this tag. With --contains both must hold for the same payload."`
	Error    string `placeholder:"TEXT" help:"Only jobs with this text in their last error."`
}

// addTo adds the flags to the parameters of a list.
func (s *searchFlags) addTo(filter map[string]string) map[string]string {
	filter["contains"], filter["tag"], filter["error"] = s.Contains, s.Tag, s.Error
	return filter
}

// rawPage has jobs as the node wrote them, for -o json.
type rawPage = web.JobPage[json.RawMessage]

// printList prints a page of a list, or the whole list. filter has further parameters.
func (r *rangeFlags) printList(with *session, path string, filter map[string]string, table func(*session, []web.Job)) error {
	query := url.Values{"limit": {strconv.Itoa(r.Limit)}}
	if r.Reverse {
		query.Set("reverse", "true")
	}
	for _, set := range []map[string]string{filter, {"from": r.From, "to": r.To, "cursor": r.Cursor}} {
		for name, value := range set {
			if value != "" {
				query.Set(name, value)
			}
		}
	}
	p := &pages{with: with, table: table, search: filter["contains"]+filter["tag"]+filter["error"] != ""}
	if with.asJSON && !r.All && !p.search {
		return with.getAndPrint(path+"?"+query.Encode(), nil, nil)
	}
	found := []json.RawMessage{}
	for {
		var page rawPage
		if err := with.fetchJSON(path+"?"+query.Encode(), &page); err != nil {
			return err
		}
		if p.search && !r.All { // pages of a search may have few jobs or none, and are joined
			found = append(found, page.Jobs...)
			if page.Next != "" && len(found) < r.Limit {
				p.looked += page.Examined
				query.Set("cursor", page.Next)
				query.Set("limit", strconv.Itoa(r.Limit-len(found)))
				continue
			}
			if page.Jobs = found; with.asJSON {
				page.Examined += p.looked
				text, err := json.Marshal(page)
				if err != nil {
					return err
				}
				return terminal.WriteJSON(with.Out, append(text, '\n'))
			}
		}
		if err := p.printPage(page); err != nil {
			return err
		}
		if page.Next == "" || !r.All {
			return p.printEnd(page.Next)
		}
		query.Set("cursor", page.Next)
	}
}

// pages prints pages as a single list.
type pages struct {
	with    *session
	table   func(*session, []web.Job)
	search  bool
	printed int
	pages   int
	looked  int     // jobs
	through float64 // share of all jobs, 0 if it is not known
}

// printPage prints a page and counts its jobs. In a table, an empty page after the first page
// prints nothing.
func (p *pages) printPage(page rawPage) error {
	defer func() { p.printed, p.pages = p.printed+len(page.Jobs), p.pages+1 }()
	p.looked, p.through = p.looked+page.Examined, page.Through
	if p.with.asJSON {
		return p.printJSON(page.Jobs)
	}
	if p.pages > 0 && len(page.Jobs) == 0 {
		return nil
	}
	jobs := make([]web.Job, len(page.Jobs))
	for i, raw := range page.Jobs {
		if err := json.Unmarshal(raw, &jobs[i]); err != nil {
			return exit.Fail(exit.Failed, "not the answer of a lowkiq node: %w", err)
		}
	}
	p.table(p.with, jobs)
	return nil
}

// printJSON continues the array that the first page began.
func (p *pages) printJSON(jobs []json.RawMessage) error {
	var text bytes.Buffer
	if p.pages == 0 {
		text.WriteString(`{"jobs":[`)
	}
	for i, job := range jobs {
		if p.printed+i > 0 {
			text.WriteByte(',')
		}
		text.Write(job)
	}
	return terminal.WriteJSON(p.with.Out, text.Bytes())
}

// printEnd ends the JSON, or says how to continue. next is the cursor of the next page, "" if there
// is none.
func (p *pages) printEnd(next string) (err error) {
	switch {
	case p.with.asJSON:
		_, err = fmt.Fprintln(p.with.Out, `],"more":false,"next":""}`)
	case p.search && next == "":
		err = p.with.Printf("%d found, %d read\n", p.printed, p.looked)
	case p.search && p.through > 0:
		err = p.with.Printf("… looked through %.0f%%: --all, or --cursor %s\n", 100*p.through, next)
	case next != "":
		err = p.with.Printf("… and more: --all, or --cursor %s\n", next)
	}
	return err
}
