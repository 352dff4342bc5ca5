package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/web"
)

type recurringCommand struct {
	List   recurringList   `cmd:"" default:"withargs" help:"List recurring jobs."`
	Show   recurringShow   `cmd:"" help:"Show an entry."`
	Next   recurringNext   `cmd:"" help:"Show the next times at which an entry is pushed."`
	Add    recurringAdd    `cmd:""`
	Edit   recurringEdit   `cmd:""`
	Pause  recurringSwitch `cmd:""`
	Resume recurringSwitch `cmd:""`
	Run    recurringRun    `cmd:""`
	Remove recurringRemove `cmd:""`
	Reset  recurringSwitch `cmd:""`
}

// recurringPath returns the API's path of an entry, with below appended.
func recurringPath(name, below string) string {
	return "/api/v1/recurring/" + escapeSegment(name) + below
}

type recurringList struct {
	nodeFlags `embed:""`
}

// Run prints all entries.
func (c *recurringList) Run(with *session) error {
	var all web.AllRecurring
	return with.getAndPrint("/api/v1/recurring", &all, func() {
		with.PrintTable("NAME SCHEDULE QUEUE ID STATE NEXT LAST MISSED FROM", func(row func(string, ...any)) {
			for i := range all.Recurring {
				e := &all.Recurring[i]
				row("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s", e.Name, e.Schedule, e.Queue, shortLine(e.ID, 40), stateOf(e),
					momentOr(e.Next), momentOr(e.Last), e.MissedTicks, originOf(e))
			}
		})
	})
}

// stateOf returns a word for the state of an entry.
func stateOf(e *web.Recurring) string {
	switch {
	case e.Schedule == "":
		return "unreadable"
	case e.Paused:
		return "paused"
	case e.Late >= 1:
		return "late " + formatSeconds(e.Late)
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
	return formatTime(*unix)
}

type oneRecurring struct {
	nodeFlags `embed:""`
	Name      string `arg:"" help:"Name of the entry."`
}

type recurringShow struct {
	oneRecurring `embed:""`
}

// Run prints an entry.
func (c *recurringShow) Run(with *session) error {
	var e web.Recurring
	return with.getAndPrint(recurringPath(c.Name, ""), &e, func() { showRecurring(with, &e) })
}

// showRecurring prints an entry, with a line for each field that has a value.
func showRecurring(with *session, e *web.Recurring) {
	line := func(what, text string) {
		if text != "" && text != "-" {
			with.Printf("%-9s %s\n", what+":", text)
		}
	}
	line("name", e.Name)
	line("schedule", e.Schedule)
	for _, f := range recurring.Fields() {
		text := f.Text(&e.Spec)
		switch {
		case !f.IsText():
			for _, name := range slices.Sorted(maps.Keys(e.Header)) {
				line(f.Name, name+"="+e.Header[name])
			}
		case f.Name != "every" && f.Name != "offset": // they are part of the schedule
			line(f.Name, text)
		}
	}
	line("from", originOf(e))
	line("state", stateOf(e))
	line("next", momentOr(e.Next))
	if e.Last != nil {
		line("last", formatTime(*e.Last)+", at "+momentOr(e.PushedAt))
	}
	if e.MissedTicks > 0 {
		line("left out", terminal.CountNoun(int(e.MissedTicks), "tick"))
	}
	line("error", e.Error)
}

type recurringNext struct {
	oneRecurring `embed:""`
	Limit        int `default:"10" short:"n" help:"Number of times to show: 1 to 1000."`
}

// Run prints the next times when an entry is pushed.
func (c *recurringNext) Run(with *session) error {
	var answer web.Upcoming
	return with.getAndPrint(recurringPath(c.Name, "/next?limit="+strconv.Itoa(c.Limit)), &answer, func() {
		for _, t := range answer.Times {
			with.Printf("%s\n", formatTime(t))
		}
	})
}

// recurringFields are the flags of an entry's fields: pointers, which are nil if a flag was not given.
type recurringFields struct {
	Flags kong.Plugins `embed:""`
}

// newRecurringFields makes flags of the fields of a Spec.
func newRecurringFields() recurringFields {
	var flags []reflect.StructField
	for _, f := range recurring.Fields() {
		of, more := reflect.TypeFor[*string](), ""
		switch {
		case !f.IsText():
			of, more = reflect.TypeFor[[]string](), ` sep:"none"`
		case f.Type.Kind() == reflect.Int:
			of = reflect.TypeFor[*int]()
		case f.Name == "queue":
			more = ` short:"q"`
		}
		help := strings.ToUpper(f.Help[:1]) + f.Help[1:] + "."
		flags = append(flags, reflect.StructField{Name: "Flag_" + f.Name, Type: of,
			Tag: reflect.StructTag(fmt.Sprintf(`name:%q placeholder:%q help:%q%s`, f.Name, f.Placeholder, help, more))})
	}
	return recurringFields{kong.Plugins{reflect.New(reflect.StructOf(flags)).Interface()}}
}

// requestBody returns the given flags as the body of a request.
func (f *recurringFields) requestBody() (map[string]any, error) {
	body := map[string]any{}
	flags := reflect.ValueOf(f.Flags[0]).Elem()
	for i, field := range recurring.Fields() {
		if flags.Field(i).IsNil() {
			continue
		}
		switch value := flags.Field(i).Interface().(type) {
		case []string:
			header := map[string]string{}
			for _, text := range value {
				name, value, ok := strings.Cut(text, "=")
				if !ok {
					return nil, exit.Fail(exit.Usage, "--%s is %q; it must be NAME=VALUE, as in --header tag=vip", field.Name, text)
				}
				header[name] = value
			}
			body[field.Name] = header
		case *string:
			body[field.Name] = *value
			if field.Type != reflect.TypeFor[json.RawMessage]() {
				continue
			}
			if !json.Valid([]byte(*value)) {
				return nil, exit.Fail(exit.Usage, `--%s %s: want JSON, as in '{"at":"{tick}"}'; a text needs quotes of its own: '"text"'`,
					field.Name, shortLine(*value, 60))
			}
			body[field.Name] = json.RawMessage(*value)
		case *int:
			body[field.Name] = *value
		}
	}
	return body, nil
}

type recurringAdd struct {
	oneRecurring    `embed:""`
	recurringFields `embed:""`
}

// Run adds an entry.
func (c *recurringAdd) Run(with *session) error {
	body, err := c.requestBody()
	switch {
	case err != nil:
		return err
	case body["queue"] == nil:
		return exit.Fail(exit.Usage, "--queue is missing, as in: recurring add tick --every 1s --queue orders")
	case (body["cron"] == nil) == (body["every"] == nil):
		return exit.Fail(exit.Usage, "give either --cron or --every, as in: recurring add tick --every 1s --queue orders")
	}
	return c.postChange(with, "", body, "added")
}

type recurringEdit struct {
	oneRecurring    `embed:""`
	recurringFields `embed:""`
}

// Run changes the fields whose flags are given.
func (c *recurringEdit) Run(with *session) error {
	body, err := c.requestBody()
	switch {
	case err != nil:
		return err
	case len(body) == 0:
		return exit.Fail(exit.Usage, "nothing to change; give at least one flag, as in: recurring edit tick --every 10s")
	}
	return c.postChange(with, "/edit", body, "changed")
}

// postChange posts a change, and prints when the entry is pushed next.
func (c *oneRecurring) postChange(with *session, below string, body any, done string) error {
	path := recurringPath(c.Name, below)
	answer, err := with.Post(with.ctx, path, body)
	switch {
	case err != nil:
		return err
	case with.asJSON:
		return terminal.WriteJSON(with.Out, answer)
	}
	var e web.Recurring
	if err := decodeAnswer(path, answer, &e); err != nil {
		return err
	}
	next := "its next push is at " + momentOr(e.Next)
	if e.Paused {
		next = "it is paused"
	}
	return with.Printf("%s is %s: %s into queue %s; %s\n", e.Name, done, cmp.Or(e.Schedule, "never"), e.Queue, next)
}

type recurringSwitch struct {
	oneRecurring `embed:""`
}

// Run performs the action that the command names.
func (c *recurringSwitch) Run(with *session, ctx *kong.Context) error {
	action := ctx.Selected().Name
	done := map[string]string{"pause": "paused", "resume": "resumed", "reset": "as its file says"}[action]
	return c.postChange(with, "/"+action, nil, done)
}

type recurringRun struct {
	oneRecurring `embed:""`
}

// Run pushes an entry's job.
func (c *recurringRun) Run(with *session) error {
	path := recurringPath(c.Name, "/run")
	answer, err := with.Post(with.ctx, path, nil)
	if err != nil {
		return err
	}
	var pushed web.Pushed
	if err := decodeAnswer(path, answer, &pushed); err != nil {
		return err
	}
	if with.asJSON {
		if err := terminal.WriteJSON(with.Out, answer); err != nil {
			return err
		}
	}
	for _, r := range pushed.Results {
		switch {
		case !r.OK:
			return exit.Fail(exit.Failed, "%s was not pushed: %s", c.Name, r.Error)
		case with.asJSON:
		case r.Merged:
			return with.Printf("%s is pushed: it is one with an equal payload of id %s that waits\n", c.Name, r.ID())
		default:
			return with.Printf("%s is pushed, with id %s\n", c.Name, r.ID())
		}
	}
	return nil
}

type recurringRemove struct {
	oneRecurring `embed:""`
	yesFlag      `embed:""`
}

// Run removes an entry.
func (c *recurringRemove) Run(with *session) error {
	if c.asks(with) {
		if err := with.confirm("Remove recurring entry %s for ever?", terminal.EscapeText(c.Name)); err != nil {
			return err
		}
	}
	return with.postChange(recurringPath(c.Name, "/remove"), nil, "%s is removed\n", c.Name)
}
