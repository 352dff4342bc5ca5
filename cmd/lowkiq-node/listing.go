package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
)

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
	Kind string `placeholder:"KIND" help:"Only jobs whose last error is of this kind, as lowkiq-node errors names it. What changes jobs ends with 2 if none has it."`
}

func (r *rangeFlags) query(by, state string) url.Values {
	values, reverse := url.Values{}, ""
	if r.Reverse {
		reverse = "true"
	}
	setAll(values, map[string]string{"by": by, "state": state, "from": r.From, "to": r.To, "reverse": reverse,
		"limit": strconv.Itoa(r.Limit), "cursor": r.Cursor})
	return values
}

// setAll sets the values that are not empty.
func setAll(into url.Values, values map[string]string) {
	for name, value := range values {
		if value != "" {
			into.Set(name, value)
		}
	}
}

// listPage is a part of a list as the API answers it.
type listPage struct {
	Jobs []json.RawMessage `json:"jobs"`
	Next string            `json:"next"`
}

// list prints a page, or all of them.
func (r *rangeFlags) list(with *conversation, q oneQueue, path string, query url.Values, table func([]listedJob)) error {
	path = queuePath(q.Queue, path)
	if with.asJSON && !r.All {
		return with.show(path+"?"+query.Encode(), nil, nil)
	}
	p := &pages{with: with, table: table}
	for {
		var page listPage
		if err := with.fetch(path+"?"+query.Encode(), &page); err != nil {
			return err
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
	table   func([]listedJob)
	printed int
	pages   int
}

func (p *pages) print(page listPage) error {
	defer func() { p.printed, p.pages = p.printed+len(page.Jobs), p.pages+1 }()
	if p.with.asJSON {
		return p.printJSON(page.Jobs)
	}
	if p.pages > 0 && len(page.Jobs) == 0 {
		return nil
	}
	jobs := make([]listedJob, len(page.Jobs))
	for i, raw := range page.Jobs {
		if err := json.Unmarshal(raw, &jobs[i]); err != nil {
			return fail(exitFailed, "not what a lowkiq node answers: %w", err)
		}
	}
	p.table(jobs)
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
	case next != "":
		err = p.with.say("… and more: --all, or --cursor %s\n", next)
	}
	return err
}
