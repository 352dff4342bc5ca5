package main

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/web"
)

type recurringCommand struct {
	List   recurringList   `cmd:"" default:"withargs" help:"List what recurs."`
	Show   recurringShow   `cmd:"" help:"Show one entry."`
	Next   recurringNext   `cmd:"" help:"Show the next times at which one is pushed."`
	Add    recurringAdd    `cmd:"" help:"Add something that recurs."`
	Edit   recurringEdit   `cmd:"" help:"Change an entry; what is not given stays."`
	Pause  recurringSwitch `cmd:"" help:"Let the ticks of one go by."`
	Resume recurringSwitch `cmd:"" help:"Go on with its next tick."`
	Run    recurringRun    `cmd:"" help:"Push its job now, whatever its ticks are."`
	Remove recurringRemove `cmd:"" help:"Remove one that was added at run time."`
	Reset  recurringSwitch `cmd:"" help:"Make one from a file what the file says."`
}

// recurringPath is the API's path of an entry, and below it.
func recurringPath(name, below string) string {
	return "/api/v1/recurring/" + url.PathEscape(name) + below
}

type recurringList struct {
	asking `embed:""`
}

// Run prints all entries.
func (c *recurringList) Run(with *conversation) error {
	var all web.AllRecurring
	return with.show("/api/v1/recurring", &all, func() {
		with.table("NAME SCHEDULE QUEUE ID STATE NEXT LAST MISSED FROM", func(row func(string, ...any)) {
			for i := range all.Recurring {
				e := &all.Recurring[i]
				row("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s", e.Name, e.Schedule, e.Queue, short(e.ID, 40), stateOf(e), momentOr(e.Next), momentOr(e.Last), e.MissedTicks, originOf(e))
			}
		})
	})
}

// stateOf is a word for how an entry is.
func stateOf(e *web.Recurring) string {
	switch {
	case e.Schedule == "":
		return "unreadable"
	case e.Paused:
		return "paused"
	case e.Late >= 1:
		return "late " + seconds(e.Late)
	case e.Error != "":
		return "refused"
	}
	return "on"
}

func originOf(e *web.Recurring) string {
	if e.Edited {
		return string(e.Origin) + ", edited"
	}
	return string(e.Origin)
}

func momentOr(unix *float64) string {
	if unix == nil {
		return "-"
	}
	return moment(*unix)
}

type oneRecurring struct {
	asking `embed:""`
	Name   string `arg:"" help:"Name of the entry."`
}

type recurringShow struct {
	oneRecurring `embed:""`
}

// Run prints one entry.
func (c *recurringShow) Run(with *conversation) error {
	var e web.Recurring
	return with.show(recurringPath(c.Name, ""), &e, func() { showRecurring(with, &e) })
}

func showRecurring(with *conversation, e *web.Recurring) {
	line := func(what, text string) {
		if text != "" && text != "-" {
			with.say("%-9s %s\n", what+":", text)
		}
	}
	line("name", e.Name)
	line("schedule", e.Schedule)
	line("cron", e.Cron)
	line("jitter", e.Jitter)
	line("queue", e.Queue)
	line("id", e.ID)
	line("payload", string(e.Payload))
	for _, name := range slices.Sorted(maps.Keys(e.Header)) {
		line("header", name+"="+e.Header[name])
	}
	missed := string(e.Missed)
	if e.Backlog > 0 {
		missed += ", at most " + strconv.Itoa(e.Backlog)
	}
	line("missed", missed)
	line("from", originOf(e))
	line("state", stateOf(e))
	line("next", momentOr(e.Next))
	if e.Last != nil {
		line("last", moment(*e.Last)+", at "+momentOr(e.PushedAt))
	}
	if e.MissedTicks > 0 {
		line("left out", count(int(e.MissedTicks), "tick"))
	}
	line("error", e.Error)
}

type recurringNext struct {
	oneRecurring `embed:""`
	Limit        int `default:"10" short:"n" help:"How many times: 1 to 1000."`
}

// Run prints when an entry is pushed next.
func (c *recurringNext) Run(with *conversation) error {
	var answer web.Upcoming
	return with.show(recurringPath(c.Name, "/next?limit="+strconv.Itoa(c.Limit)), &answer, func() {
		for _, t := range answer.Times {
			with.say("%s\n", moment(t))
		}
	})
}

// recurringFields are the flags that say what an entry is; nil was not given.
type recurringFields struct {
	Cron    *string  `placeholder:"CRON" help:"When: minute, hour, day of the month, month, day of the week, as in '0 6 * * 1-5', or @daily and the like."`
	Zone    *string  `placeholder:"ZONE" help:"On whose clocks --cron is read, as Europe/Berlin. Default: UTC."`
	Every   *string  `placeholder:"TIME" help:"Instead of --cron: an interval from 1s, counted from the Unix epoch."`
	Offset  *string  `placeholder:"TIME" help:"Of --every: so long after the epoch it counts from."`
	Jitter  *string  `placeholder:"TIME" help:"The most by which a push comes after its tick."`
	Queue   *string  `short:"q" placeholder:"NAME" help:"Queue to push into."`
	ID      *string  `placeholder:"ID" help:"Of the job. Default: the name."`
	Payload *string  `placeholder:"JSON" help:"Its payload; {tick} in it becomes the tick's time. Default: none."`
	Header  []string `sep:"none" placeholder:"NAME=VALUE" help:"A header of it; may come again. Besides each push has tick, and missed if ticks were left out."`
	Missed  *string  `placeholder:"RULE" help:"What becomes of ticks that are a minute late or more: one push for all of them (one, the default), none, or all."`
	Backlog *int     `placeholder:"N" help:"Of --missed all: the newest N are pushed. Default: 100."`
}

// body is what a node is sent: what was given.
func (f *recurringFields) body() (map[string]any, error) {
	body := map[string]any{}
	for name, text := range map[string]*string{
		"cron": f.Cron, "zone": f.Zone, "every": f.Every, "offset": f.Offset, "jitter": f.Jitter, "queue": f.Queue, "id": f.ID, "missed": f.Missed,
	} {
		if text != nil {
			body[name] = *text
		}
	}
	if f.Payload != nil {
		if !json.Valid([]byte(*f.Payload)) {
			return nil, fail(exitUsage, `--payload %s: want JSON, as in '{"at":"{tick}"}'; a text needs quotes of its own: '"text"'`, short(*f.Payload, 60))
		}
		body["payload"] = json.RawMessage(*f.Payload)
	}
	if f.Header != nil {
		header := map[string]string{}
		for _, text := range f.Header {
			name, value, ok := strings.Cut(text, "=")
			if !ok {
				return nil, fail(exitUsage, "--header %q: want NAME=VALUE, as in --header tag=vip", text)
			}
			header[name] = value
		}
		body["header"] = header
	}
	if f.Backlog != nil {
		body["backlog"] = *f.Backlog
	}
	return body, nil
}

type recurringAdd struct {
	oneRecurring    `embed:""`
	recurringFields `embed:""`
}

// Run adds an entry.
func (c *recurringAdd) Run(with *conversation) error {
	body, err := c.body()
	switch {
	case err != nil:
		return err
	case c.Queue == nil:
		return fail(exitUsage, "want --queue, as in: recurring add tick --every 1s --queue orders")
	case (c.Cron == nil) == (c.Every == nil):
		return fail(exitUsage, "want --cron or --every, one of them, as in: recurring add tick --every 1s --queue orders")
	}
	return c.change(with, "", body, "added")
}

type recurringEdit struct {
	oneRecurring    `embed:""`
	recurringFields `embed:""`
}

// Run changes what is given.
func (c *recurringEdit) Run(with *conversation) error {
	body, err := c.body()
	switch {
	case err != nil:
		return err
	case len(body) == 0:
		return fail(exitUsage, "nothing to change: want at least one flag, as in: recurring edit tick --every 10s")
	}
	return c.change(with, "/edit", body, "changed")
}

// change posts, and says when the entry is pushed next.
func (c *oneRecurring) change(with *conversation, below string, body any, done string) error {
	path := recurringPath(c.Name, below)
	answer, err := with.Post(with.ctx, path, body)
	switch {
	case err != nil:
		return err
	case with.asJSON:
		return writeJSON(with.out, answer)
	}
	var e web.Recurring
	if err := decode(path, answer, &e); err != nil {
		return err
	}
	next := "its next push is at " + momentOr(e.Next)
	if e.Paused {
		next = "it is paused"
	}
	return with.say("%s is %s: %s into queue %s; %s\n", e.Name, done, cmp.Or(e.Schedule, "never"), e.Queue, next)
}

type recurringSwitch struct {
	oneRecurring `embed:""`
}

// Run does what the command is called.
func (c *recurringSwitch) Run(with *conversation, ctx *kong.Context) error {
	action := ctx.Selected().Name
	done := map[string]string{"pause": "paused", "resume": "resumed", "reset": "as its file says"}[action]
	return c.change(with, "/"+action, nil, done)
}

type recurringRun struct {
	oneRecurring `embed:""`
}

// Run pushes an entry's job.
func (c *recurringRun) Run(with *conversation) error {
	path := recurringPath(c.Name, "/run")
	answer, err := with.Post(with.ctx, path, nil)
	if err != nil {
		return err
	}
	var pushed web.Pushed
	if err := decode(path, answer, &pushed); err != nil {
		return err
	}
	if with.asJSON {
		if err := writeJSON(with.out, answer); err != nil {
			return err
		}
	}
	for _, r := range pushed.Results {
		switch {
		case !r.OK:
			return fail(exitFailed, "%s was not pushed: %s", c.Name, r.Error)
		case with.asJSON:
		case r.Merged:
			return with.say("%s is pushed: it is one with an equal payload of id %s that waits\n", c.Name, r.ID())
		default:
			return with.say("%s is pushed, with id %s\n", c.Name, r.ID())
		}
	}
	return nil
}

type recurringRemove struct {
	oneRecurring `embed:""`
}

// Run removes an entry.
func (c *recurringRemove) Run(with *conversation) error {
	return with.change(recurringPath(c.Name, "/remove"), nil, "%s is removed\n", c.Name)
}
