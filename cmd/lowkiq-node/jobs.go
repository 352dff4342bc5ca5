package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

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
	State       string `enum:",ready,scheduled,retry,failed,held,in_flight,blocked" default:"" help:"Only ready, scheduled, retry, held, in_flight or blocked ones; failed: those of retry, and those of ready that have failed."`
	By          string `enum:",id,due,retries" default:"" help:"Order: due (default), id or retries."`
}

// Run prints jobs.
func (c *jobsList) Run(with *conversation) error {
	return c.list(with, queuePath(c.Queue, "/jobs"), c.with(map[string]string{"by": c.By, "state": c.State, "kind": c.Kind}), jobTable)
}

func jobTable(with *conversation, jobs []web.Job) {
	with.table("ID STATE SHARD DUE FAILURES PAYLOADS ERROR", func(row func(string, ...any)) {
		for _, j := range jobs {
			due := moment(or(j.PerformIn))
			if j.State == browse.StateHeld { // nobody knows
				due = "-"
			}
			row("%s\t%s\t%d\t%s\t%d\t%d\t%s", short(j.ID(), 40), j.State, j.Shard, due, j.RetryCount+1, j.PayloadCount, short(j.Error, 80))
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
	if err := checkID(c.ID); err != nil {
		return err
	}
	with.asJSON = true
	return with.show(queuePath(c.Queue, "/jobs?id="+url.QueryEscape(c.ID)), nil, nil)
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

// Run prints what the morgue holds.
func (c *morgueList) Run(with *conversation) error {
	return c.list(with, queuePath(c.Queue, "/morgue"), c.with(map[string]string{"by": c.By, "kind": c.Kind}), morgueTable)
}

func morgueTable(with *conversation, jobs []web.Job) {
	with.table("ID BURIED SHARD PAYLOADS ERROR", func(row func(string, ...any)) {
		for _, j := range jobs {
			row("%s\t%s\t%d\t%d\t%s", short(j.ID(), 40), moment(j.BuriedAt), j.Shard, j.PayloadCount, short(j.Error, 80))
		}
	})
}

type inFlightCommand struct {
	oneQueue   `embed:""`
	rangeFlags `embed:""`
	By         string `enum:",id,due" default:"" help:"Order: id (default) or due."`
}

// Run prints what handlers have.
func (c *inFlightCommand) Run(with *conversation) error {
	return c.list(with, queuePath(c.Queue, "/in-flight"), map[string]string{"by": c.By}, inFlightTable)
}

func inFlightTable(with *conversation, jobs []web.Job) {
	with.table("ID SHARD SINCE PROGRESS FAILURES PAYLOADS ERROR", func(row func(string, ...any)) {
		for _, j := range jobs {
			row("%s\t%d\t%s\t%s\t%d\t%d\t%s", short(j.ID(), 40), j.Shard, moment(j.Since), progress(j.Progress), j.RetryCount+1, j.PayloadCount, short(j.Error, 80))
		}
	})
}

// progress is what a handler has noted of a job, in one line.
func progress(p *web.Progress) string {
	switch {
	case p == nil:
		return "-"
	case p.Log == "":
		return fmt.Sprintf("%.0f%%", 100*p.Share)
	}
	return fmt.Sprintf("%.0f%% %s", 100*p.Share, short(p.Log, 40))
}

// Lists come in pages; a cursor says where the next one begins.

// rangeFlags limit a list.
type rangeFlags struct {
	From    string `placeholder:"X" help:"First id, time (unix seconds or 2026-01-02T15:04:05Z) or retry count, as --by says."`
	To      string `placeholder:"X" help:"Last one."`
	Reverse bool   `help:"Largest first."`
	Limit   int    `default:"100" placeholder:"N" help:"Most jobs, up to 1000 (${default}); with --all: of one request."`
	Cursor  string `placeholder:"CURSOR" help:"Go on where a list with the same flags ended: its cursor."`
	All     bool   `help:"The whole list, page after page."`
}

// kindFlag picks jobs by the kind of their last error.
type kindFlag struct {
	Kind string `placeholder:"KIND" help:"Only jobs whose last error is of this kind, as lowkiq-node errors names it. What changes jobs ends with 64 if none has it."`
}

// searchFlags pick jobs by what they say.
type searchFlags struct {
	Contains string `placeholder:"TEXT" help:"Only jobs with this text in their id or in a payload, as it is stored."`
	Tag      string `placeholder:"TAG" help:"Only jobs of which a payload has this tag; with --contains the same payload."`
	Error    string `placeholder:"TEXT" help:"Only jobs with this text in their last error."`
}

// with adds them to the parameters of a list.
func (s *searchFlags) with(filter map[string]string) map[string]string {
	filter["contains"], filter["tag"], filter["error"] = s.Contains, s.Tag, s.Error
	return filter
}

// rawPage has jobs as the node wrote them: -o json hands them on.
type rawPage = web.JobPage[json.RawMessage]

// list prints a page of a list, or all of them; filter has its other parameters.
func (r *rangeFlags) list(with *conversation, path string, filter map[string]string, table func(*conversation, []web.Job)) error {
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
		return with.show(path+"?"+query.Encode(), nil, nil)
	}
	found := []json.RawMessage{}
	for {
		var page rawPage
		if err := with.fetch(path+"?"+query.Encode(), &page); err != nil {
			return err
		}
		if p.search && !r.All { // its pages may have few, or none: they are shown as one
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
				return writeJSON(with.out, append(text, '\n'))
			}
		}
		if err := p.print(page); err != nil {
			return err
		}
		if page.Next == "" || !r.All {
			return p.end(page.Next)
		}
		query.Set("cursor", page.Next)
	}
}

// pages prints one page after another as one list.
type pages struct {
	with    *conversation
	table   func(*conversation, []web.Job)
	search  bool
	printed int
	pages   int
	looked  int     // jobs
	through float64 // share of all jobs, 0 where that is not known
}

func (p *pages) print(page rawPage) error {
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
			return fail(exitFailed, "not what a lowkiq node answers: %w", err)
		}
	}
	p.table(p.with, jobs)
	return nil
}

// printJSON goes on with an array that the first page began.
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
	return writeJSON(p.with.out, text.Bytes())
}

func (p *pages) end(next string) (err error) {
	switch {
	case p.with.asJSON:
		_, err = fmt.Fprintln(p.with.out, `],"more":false,"next":""}`)
	case p.search && next == "":
		err = p.with.say("%d found, %d looked at\n", p.printed, p.looked)
	case p.search && p.through > 0:
		err = p.with.say("… looked through %.0f%%: --all, or --cursor %s\n", 100*p.through, next)
	case next != "":
		err = p.with.say("… and more: --all, or --cursor %s\n", next)
	}
	return err
}
