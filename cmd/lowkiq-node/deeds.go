package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq/internal/remote"
)

// What people do to many jobs: in steps that a node answers one by one, so that no request
// is long, and what is broken off can go on.

// stepLimit is how many jobs one request changes.
const stepLimit = 1000

// someJobs names jobs of a queue: by their ids, or by what they have in common.
type someJobs struct {
	oneQueue `embed:""`
	kindFlag `embed:""`
	DryRun   bool     `help:"Count the jobs, and change nothing."`
	Yes      bool     `short:"y" help:"Do not ask. Without a terminal, what destroys more than the ids that are named needs it."`
	Cursor   string   `placeholder:"CURSOR" help:"Go on where the same command was broken off: the cursor it printed."`
	IDs      []string `arg:"" optional:"" name:"id" help:"Ids of jobs."`
}

// deed is something to do to jobs.
type deed struct {
	path  string
	all   bool   // to all jobs of the state
	flag  string // the flag that says so, "" if there is none
	state string
	done  string // for people: "17 <done>"
	ask   string // what a person is asked first, "" if it can be undone: "<ask> 17 jobs of queue orders?"
}

// progress is how far it has come.
type progress struct {
	Changed int    `json:"changed"`
	Skipped int    `json:"skipped"`
	Left    int    `json:"left"`
	Next    string `json:"next"`
}

// act does it to the ids, or step by step to all.
func (c *someJobs) act(s *streams, d deed) error {
	all := d.all || c.Kind != ""
	switch {
	case all && len(c.IDs) > 0:
		return fail(exitUsage, "want ids, or %s or --kind, got both", d.flag)
	case !all && len(c.IDs) == 0:
		return fail(exitUsage, "want at least one id, or %s", d.flag)
	case !all && c.Cursor != "":
		return fail(exitUsage, "--cursor goes with %s", d.flag)
	}
	if all && d.ask != "" && !c.Yes && !c.DryRun && !terminal(s.in) {
		return fail(exitUsage, "this cannot be undone, and there is no terminal to ask: want --yes, or --dry-run to count")
	}
	with, err := c.asking.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	path := queuePath(c.Queue, d.path)
	if c.DryRun {
		sum, err := with.steps(path, c.body(d, all, true))
		if err != nil {
			return err
		}
		d.done = "would be " + d.done
		return c.summary(with, sum, d)
	}
	if d.ask != "" && !c.Yes && terminal(s.in) {
		found, err := with.steps(path, c.body(d, all, true))
		if err != nil {
			return err
		}
		if found.Changed == 0 {
			return c.summary(with, found, d) // there is nothing to ask about
		}
		if !confirm(s, fmt.Sprintf("%s %s of queue %s?", d.ask, count(found.Changed, "job"), plain(c.Queue))) {
			return fail(exitFailed, "nothing was changed")
		}
	}
	sum, err := with.steps(path, c.body(d, all, false))
	if err != nil {
		return brokenOff(with.ctx, sum, d, err)
	}
	return c.summary(with, sum, d)
}

// summary prints what was done. A kind that no job has is a slip of the pen more often than not.
func (c *someJobs) summary(with *conversation, sum progress, d deed) error {
	if c.Kind == "" || c.Cursor != "" || sum.Changed+sum.Skipped > 0 {
		return with.summary(sum, d)
	}
	if with.asJSON {
		if err := with.summary(sum, d); err != nil {
			return err
		}
	}
	return c.noKind(with, d)
}

// shownKinds is how many kinds an error names.
const shownKinds = 5

// noKind says that no job has an error of the kind, and which kinds there are.
func (c *someJobs) noKind(with *conversation, d deed) error {
	state := d.errorState()
	noun := map[string]string{"failed": "failed job", "retry": "job between two attempts", "blocked": "blocked id", "morgue": "buried job"}[state]
	answer, err := errorsOf(with, c.Queue, state)
	if err != nil {
		return err
	}
	list := fmt.Sprintf("lowkiq-node errors %s --state %s", c.Queue, state)
	var kinds []string
	for _, g := range answer.Groups {
		if g.Kind != "" && len(kinds) < shownKinds {
			kinds = append(kinds, shellQuoted(g.Kind))
		}
	}
	if len(kinds) == 0 {
		return fail(exitUsage, "queue %s has no %s with an error of the kind %s, nor of another (%s lists them)", c.Queue, noun, shellQuoted(c.Kind), list)
	}
	more := ""
	if len(answer.Groups) > len(kinds) || !answer.All {
		more = ", …"
	}
	return fail(exitUsage, "queue %s has no %s with an error of the kind %s; there are %s%s (%s lists them)",
		c.Queue, noun, shellQuoted(c.Kind), strings.Join(kinds, ", "), more, list)
}

// errorState is the state of those jobs by whose errors a deed chooses, as the command errors has it.
func (d deed) errorState() string {
	switch place, _, _ := strings.Cut(strings.TrimPrefix(d.path, "/"), "/"); {
	case place != "jobs":
		return place // blocked or morgue
	case d.state == "failed":
		return d.state
	}
	return "retry" // what is due already is not made due
}

// shellQuoted is a text as it is given to a command.
func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// body is what a node is sent.
func (c *someJobs) body(d deed, all, dryRun bool) map[string]any {
	body := map[string]any{"ids": c.IDs}
	if all {
		body = map[string]any{"all": true, "limit": stepLimit}
		for name, value := range map[string]string{"state": d.state, "kind": c.Kind, "cursor": c.Cursor} {
			if value != "" {
				body[name] = value
			}
		}
	}
	if dryRun {
		body["dry_run"] = true
	}
	return body
}

// steps posts until there is no next step.
func (c *conversation) steps(path string, body map[string]any) (sum progress, err error) {
	var shown *bar
	for {
		answer, err := c.Post(c.ctx, path, body)
		if err != nil {
			return sum.failed(err), err
		}
		var step progress
		if err := json.Unmarshal(answer, &step); err != nil {
			return sum, fail(exitFailed, "%s: not what a lowkiq node answers: %w", path, err)
		}
		sum = progress{sum.Changed + step.Changed, sum.Skipped + step.Skipped, step.Left, step.Next}
		if step.Next == "" {
			return sum, nil
		}
		if shown == nil {
			shown = newBar(c.out.err, int64(step.Changed+step.Skipped+step.Left), "working")
			defer shown.clear()
		}
		shown.at(sum.Changed + sum.Skipped)
		body["cursor"] = step.Next
	}
}

// failed adds what a step had done before its error.
func (p progress) failed(err error) progress {
	var answer *remote.Error
	if errors.As(err, &answer) && answer.Changed != nil {
		p.Changed += *answer.Changed
		if answer.Next != "" {
			p.Next = answer.Next
		}
		answer.Changed = nil // the sum says it
	}
	return p
}

// brokenOff says how far it came, and how to go on.
func brokenOff(ctx context.Context, sum progress, d deed, err error) error {
	code := codeOf(err)
	if ctx.Err() != nil {
		code, err = exitInterrupted, errors.New("interrupted")
	}
	switch {
	case sum.Next != "":
		err = fmt.Errorf("%w; %d were %s before, go on with --cursor %s", err, sum.Changed, d.done, sum.Next)
	case sum.Changed > 0:
		err = fmt.Errorf("%w; %d were %s before", err, sum.Changed, d.done)
	}
	return &exitError{code, err}
}

// summary prints what was done, and what was not.
func (c *conversation) summary(sum progress, d deed) error {
	if c.asJSON {
		return json.NewEncoder(c.out.out).Encode(sum)
	}
	text := fmt.Sprintf("%d %s", sum.Changed, d.done)
	if sum.Skipped > 0 {
		text += fmt.Sprintf(", %d not there", sum.Skipped)
	}
	return say(c.out.out, "%s\n", text)
}
