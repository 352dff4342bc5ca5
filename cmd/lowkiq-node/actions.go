package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/web"
)

// What people do to many jobs: in steps that a node answers one by one, so that no request
// is long, and what is broken off can go on.

// stepLimit is how many jobs one request changes.
const stepLimit = "1000"

// wording is what a command says of its action where that of the table does not fit into its
// sentences.
type wording struct {
	ask  string // of a person, first: "<ask> 17 jobs of queue orders?"; "": what is done can be undone
	done string // of the jobs: "17 <done>", "17 would be <done>"
}

func wordingOf(a *browse.Action) wording {
	said := map[*browse.Action]wording{
		browse.RunNow:      {done: "due now"},
		browse.Kill:        {ask: "Send to the morgue"},
		browse.BuryOldest:  {ask: "Bury the oldest payload", done: "let go on"},
		browse.BuryBlocked: {ask: "Send to the morgue", done: browse.Kill.Done},
	}[a]
	if a.Destroys {
		said.ask = "Delete for ever"
	}
	said.done = cmp.Or(said.done, a.Done)
	return said
}

// actionOf is the action on jobs that a command does: "jobs kill" is the one whose path is
// jobs/kill.
func actionOf(command string) (*browse.Action, bool) {
	all := browse.Actions()
	i := slices.IndexFunc(all, func(a *browse.Action) bool { return a.Path == strings.ReplaceAll(command, " ", "/") })
	if i < 0 {
		return nil, false
	}
	return all[i], true
}

// Each action on jobs is a command, which has its help from the table: see describe.
type blockedCommand struct {
	Requeue allJobs `cmd:"" set:"all=All blocked ids."`
	Skip    allJobs `cmd:"" set:"all=All blocked ids."`
	Bury    allJobs `cmd:"" set:"all=All blocked ids."`
}

// allJobs are blocked or buried jobs.
type allJobs struct {
	someJobs `embed:""`
	All      bool `help:"${all}"`
}

// Run does what the command is called.
func (c *allJobs) Run(with *conversation, ctx *kong.Context) error {
	return c.perform(with, requestOf(ctx, c.All, "--all", ""))
}

// failedJobs are jobs that wait or are due, of which those that failed can be named as a whole.
type failedJobs struct {
	someJobs  `embed:""`
	AllFailed bool `help:"Every job that failed and waits for its next attempt, or whose turn has come."`
	All       bool `hidden:""` // there is none: it says so
}

// Run does what the command is called.
func (c *failedJobs) Run(with *conversation, ctx *kong.Context) error {
	if c.All {
		return fail(exitUsage, "%s has no --all: --all-failed takes every job that failed; jobs that never failed are named by their ids. "+
			"A retired queue goes as a whole: lowkiq-node queues delete %s --force", commandOf(ctx), c.Queue)
	}
	return c.perform(with, requestOf(ctx, c.AllFailed, "--all-failed", "failed"))
}

// waitingJobs are jobs whose time has not come.
type waitingJobs struct {
	someJobs `embed:""`
	All      bool   `help:"Every scheduled and every failed job."`
	State    string `enum:",scheduled,retry" default:"" help:"Of all, only scheduled or retry ones."`
}

// Run does what the command is called.
func (c *waitingJobs) Run(with *conversation, ctx *kong.Context) error {
	return c.perform(with, requestOf(ctx, c.All || c.State != "", "--all", c.State))
}

// commandOf is the command as it is typed, without the program: "jobs kill".
func commandOf(ctx *kong.Context) string {
	return ctx.Selected().Parent.Name + " " + ctx.Selected().Name
}

// someJobs names jobs of a queue: by their ids, or by what they have in common.
type someJobs struct {
	oneQueue `embed:""`
	kindFlag `embed:""`
	DryRun   bool     `help:"Count the jobs, and change nothing."`
	Yes      bool     `short:"y" help:"Do not ask. Without a terminal, what destroys more than the ids that are named needs it."`
	Cursor   string   `placeholder:"CURSOR" help:"Go on where the same command was broken off: the cursor it printed."`
	IDs      []string `arg:"" optional:"" name:"id" help:"Ids of jobs."`
}

// request is an action, and the jobs it is for unless ids are named.
type request struct {
	*browse.Action
	wording
	all   bool   // all jobs of the state
	flag  string // the flag that says so
	state string // "" for all that the action takes
}

func requestOf(ctx *kong.Context, all bool, flag, state string) request {
	action, _ := actionOf(commandOf(ctx)) // a test holds the commands against the table
	return request{action, wordingOf(action), all, flag, state}
}

// perform does it to the ids, or step by step to all.
func (c *someJobs) perform(with *conversation, r request) error {
	r.all = r.all || c.Kind != ""
	all, destroys := r.all, r.ask != "" && !c.Yes && !c.DryRun
	switch {
	case all && len(c.IDs) > 0:
		return fail(exitUsage, "want ids, or %s or --kind, got both", r.flag)
	case !all && len(c.IDs) == 0:
		return fail(exitUsage, "want at least one id, or %s", r.flag)
	case !all && c.Cursor != "":
		return fail(exitUsage, "--cursor goes with %s", r.flag)
	case all && destroys && !terminal(with.in):
		return errNoTerminal
	}
	for _, id := range c.IDs {
		if err := checkID(id); err != nil {
			return err
		}
	}
	path := queuePath(c.Queue, "/"+r.Path)
	if c.DryRun || destroys && terminal(with.in) {
		found, err := with.steps(path, c.body(r, true))
		switch {
		case err != nil:
			return err
		case c.DryRun:
			r.done = "would be " + r.done
			return c.summary(with, found, r)
		case found.Changed == 0:
			return c.summary(with, found, r) // there is nothing to ask about
		}
		if err := with.sure("%s %s of queue %s?", r.ask, count(found.Changed, "job"), plain(c.Queue)); err != nil {
			return err
		}
	}
	sum, err := with.steps(path, c.body(r, false))
	if err != nil {
		return brokenOff(with.ctx, sum, r, err)
	}
	return c.summary(with, sum, r)
}

// sure asks a person before what cannot be undone. An error: it is not to be done.
func (c *conversation) sure(question string, args ...any) error {
	yes, err := confirm(c.ctx, c.streams, fmt.Sprintf(question, args...))
	if err == nil && !yes {
		err = fail(exitFailed, "nothing was changed")
	}
	return err
}

// summary prints what was done. A kind that no job has is a slip of the pen more often than not.
func (c *someJobs) summary(with *conversation, sum web.Changed, r request) error {
	if c.Kind == "" || c.Cursor != "" || sum.Changed+sum.Skipped > 0 {
		return with.summary(sum, r)
	}
	if with.asJSON {
		if err := with.summary(sum, r); err != nil {
			return err
		}
	}
	return c.noKind(with, r)
}

// shownKinds is how many kinds an error names.
const shownKinds = 5

// noKind says that no job has an error of the kind, and which kinds there are.
func (c *someJobs) noKind(with *conversation, r request) error {
	state := r.errorState()
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

// errorState is the state of those jobs by whose errors a request chooses, as the command errors
// has it.
func (r request) errorState() string {
	switch {
	case r.States[0] != "":
		return string(r.States[0]) // blocked or morgue
	case r.state == "failed":
		return r.state
	}
	return "retry" // what is due already is not made due
}

// shellQuoted is a text as it is given to a command.
func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// body is what a node is sent.
func (c *someJobs) body(r request, dryRun bool) web.Selection {
	if !r.all {
		return web.Selection{IDs: c.IDs, DryRun: dryRun}
	}
	return web.Selection{All: &r.all, Limit: stepLimit, State: r.state, Kind: c.Kind, Cursor: c.Cursor, DryRun: dryRun}
}

// steps posts until there is no next step.
func (c *conversation) steps(path string, body web.Selection) (sum web.Changed, err error) {
	var shown *bar
	for {
		answer, err := c.Post(c.ctx, path, body)
		if err != nil {
			return withFailed(sum, err), err
		}
		var step web.Changed
		if err := decode(path, answer, &step); err != nil {
			return sum, err
		}
		sum = web.Changed{Changed: sum.Changed + step.Changed, Skipped: sum.Skipped + step.Skipped, Left: step.Left, Next: step.Next}
		if step.Next == "" {
			return sum, nil
		}
		if shown == nil {
			shown = newBar(c.err, int64(step.Changed+step.Skipped+step.Left), "working")
			defer shown.clear()
		}
		shown.at(sum.Changed + sum.Skipped)
		body.Cursor = step.Next
	}
}

// withFailed adds what a step had done before its error.
func withFailed(p web.Changed, err error) web.Changed {
	var answer *web.Problem
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
func brokenOff(ctx context.Context, sum web.Changed, r request, err error) error {
	code := codeOf(err)
	if ctx.Err() != nil {
		code, err = exitInterrupted, errors.New("interrupted")
	}
	switch {
	case sum.Next != "":
		err = fmt.Errorf("%w; %d were %s before, go on with --cursor %s", err, sum.Changed, r.done, sum.Next)
	case sum.Changed > 0:
		err = fmt.Errorf("%w; %d were %s before", err, sum.Changed, r.done)
	}
	return &exitError{code, err}
}

// summary prints what was done, and what was not.
func (c *conversation) summary(sum web.Changed, r request) error {
	if c.asJSON {
		return json.NewEncoder(c.out).Encode(sum)
	}
	text := fmt.Sprintf("%d %s", sum.Changed, r.done)
	if sum.Skipped > 0 {
		text += fmt.Sprintf(", %d not there", sum.Skipped)
	}
	return c.say("%s\n", text)
}
