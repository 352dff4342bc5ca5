package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/text/shell"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
)

// Actions on many jobs are done in steps, each a request to a node. So no request takes long, and an interrupted command can
// continue.

// stepLimit is how many jobs a request changes.
const stepLimit = "1000"

// wording has the words of a command for its action, where the words of the table do not fit into its sentences.
type wording struct {
	ask  string // the question before the action: "<ask> 17 jobs of queue orders?"; "" asks nothing, because the action can be undone
	done string // the result: "17 <done>", "17 would be <done>"
}

// wordingOf returns the words for an action. Every action that destroys jobs asks first.
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

// blockedCommand and the other groups have a command for each action on jobs. Its help comes from the table; see setHelp.
type blockedCommand struct {
	Requeue allJobs `cmd:"" set:"all=All blocked ids."`
	Skip    allJobs `cmd:"" set:"all=All blocked ids."`
	Bury    allJobs `cmd:"" set:"all=All blocked ids."`
}

// allJobs selects blocked or buried jobs.
type allJobs struct {
	someJobs `embed:""`
	All      bool `help:"${all}"`
}

// Run performs the action that the command names.
func (c *allJobs) Run(with *session, ctx *kong.Context) error {
	return c.performAction(with, requestOf(ctx, c.All, "--all", ""))
}

// failedJobs selects jobs that wait or are due. Those that failed can be selected as a whole.
type failedJobs struct {
	someJobs  `embed:""`
	AllFailed bool `help:"Every job that failed, whether its next attempt is due or not."`
	All       bool `hidden:""` // only for its error, which names the other flags
}

// Run performs the action that the command names.
func (c *failedJobs) Run(with *session, ctx *kong.Context) error {
	if c.All {
		return exit.Fail(exit.Usage, "%s has no --all: --all-failed takes every job that failed; jobs that never failed are named by their ids. "+
			"A retired queue goes as a whole: lowkiq-node queues delete %s --force", commandOf(ctx), c.Queue)
	}
	return c.performAction(with, requestOf(ctx, c.AllFailed, "--all-failed", "failed"))
}

// waitingJobs selects jobs that are not due.
type waitingJobs struct {
	someJobs `embed:""`
	All      bool   `help:"Every scheduled and every failed job."`
	State    string `enum:",scheduled,retry" default:"" help:"Only scheduled jobs, or only retry jobs."`
}

// Run performs the action that the command names.
func (c *waitingJobs) Run(with *session, ctx *kong.Context) error {
	return c.performAction(with, requestOf(ctx, c.All || c.State != "", "--all", c.State))
}

// commandOf returns the command as it is typed, without the program: "jobs kill".
func commandOf(ctx *kong.Context) string {
	return ctx.Selected().Parent.Name + " " + ctx.Selected().Name
}

// someJobs selects jobs of a queue, by their ids or by a common property.
type someJobs struct {
	oneQueue `embed:""`
	kindFlag `embed:""`
	DryRun   bool     `help:"Count the jobs, and change nothing."`
	Yes      bool     `short:"y" help:"Do not ask. Needed without a terminal to destroy more than the named ids."`
	Cursor   string   `placeholder:"CURSOR" help:"Continue an interrupted command: the cursor that it printed."`
	IDs      []string `arg:"" optional:"" name:"id" help:"Ids of jobs."`
}

// request is an action and its jobs, unless ids are named.
type request struct {
	*browse.Action
	wording
	all   bool   // all jobs of the state
	flag  string // the flag that sets all
	state string // "" for all states of the action
}

func requestOf(ctx *kong.Context, all bool, flag, state string) request {
	action := actions.OfCommand(commandOf(ctx)).Jobs // a test compares the commands with the table
	return request{action, wordingOf(action), all, flag, state}
}

// performAction performs the action on the named ids, or step by step on all jobs.
func (c *someJobs) performAction(with *session, r request) error {
	r.all = r.all || c.Kind != ""
	all, destroys := r.all, r.ask != "" && !c.Yes && !c.DryRun
	switch {
	case all && len(c.IDs) > 0:
		return exit.Fail(exit.Usage, "give either ids, or %s or --kind", r.flag)
	case !all && len(c.IDs) == 0:
		return exit.Fail(exit.Usage, "give at least one id, or %s", r.flag)
	case !all && c.Cursor != "":
		return exit.Fail(exit.Usage, "--cursor goes with %s", r.flag)
	case all && destroys && !terminal.IsTerminal(with.In):
		return errNoTerminal
	}
	for _, id := range c.IDs {
		if err := checkID(id); err != nil {
			return err
		}
	}
	path := queuePath(c.Queue, "/"+r.Path)
	if c.DryRun || destroys && terminal.IsTerminal(with.In) {
		found, err := with.postSteps(path, c.requestBody(r, true))
		switch {
		case err != nil:
			return err
		case c.DryRun:
			r.done = "would be " + r.done
			return c.printSummary(with, found, r)
		case found.Changed == 0:
			return c.printSummary(with, found, r) // without a job there is no question
		}
		if err := with.confirm("%s %s of queue %s?", r.ask, terminal.CountNoun(found.Changed, "job"), terminal.EscapeText(c.Queue)); err != nil {
			return err
		}
	}
	sum, err := with.postSteps(path, c.requestBody(r, false))
	if err != nil {
		return explainBreak(with.ctx, sum, r, err)
	}
	return c.printSummary(with, sum, r)
}

// yesFlag is the flag of commands that destroy what they name. Without a terminal they do not ask.
type yesFlag struct {
	Yes bool `short:"y" help:"Do not ask on a terminal."`
}

func (f yesFlag) asks(with *session) bool { return !f.Yes && terminal.IsTerminal(with.In) }

// confirm asks a person before something that cannot be undone. It returns an error if the answer is not yes.
func (c *session) confirm(question string, args ...any) error {
	yes, err := terminal.Confirm(c.ctx, c.Streams, fmt.Sprintf(question, args...))
	if err == nil && !yes {
		err = exit.Fail(exit.Failed, "nothing was changed")
	}
	return err
}

// printSummary prints what was done. A kind that no job has is most likely mistyped, and is an error.
func (c *someJobs) printSummary(with *session, sum web.Changed, r request) error {
	if c.Kind == "" || c.Cursor != "" || sum.Changed+sum.Skipped > 0 {
		return with.printChanged(sum, r)
	}
	if with.asJSON {
		if err := with.printChanged(sum, r); err != nil {
			return err
		}
	}
	return c.unknownKind(with, r)
}

// shownKinds is how many kinds an error names.
const shownKinds = 5

// unknownKind returns the error that no job has an error of the kind. It names the kinds that exist.
func (c *someJobs) unknownKind(with *session, r request) error {
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
			kinds = append(kinds, shell.Quote(g.Kind))
		}
	}
	if len(kinds) == 0 {
		return exit.Fail(exit.Usage, "queue %s has no %s with an error of the kind %s, nor of another (%s lists them)", c.Queue, noun,
			shell.Quote(c.Kind), list)
	}
	more := ""
	if len(answer.Groups) > len(kinds) || !answer.All {
		more = ", …"
	}
	return exit.Fail(exit.Usage, "queue %s has no %s with an error of the kind %s; there are %s%s (%s lists them)",
		c.Queue, noun, shell.Quote(c.Kind), strings.Join(kinds, ", "), more, list)
}

// errorState returns the state, as the command errors names it, of the jobs whose errors a request selects by.
func (r request) errorState() string {
	switch {
	case r.States[0] != "":
		return string(r.States[0]) // blocked or morgue
	case r.state == "failed":
		return r.state
	}
	return "retry" // a job that is due already is not made due
}

// requestBody returns the body of the request to a node.
func (c *someJobs) requestBody(r request, dryRun bool) web.Selection {
	if !r.all {
		return web.Selection{IDs: c.IDs, Filter: web.Filter{DryRun: dryRun}}
	}
	return web.Selection{All: &r.all, Filter: web.Filter{Limit: stepLimit, State: r.state, Kind: c.Kind, Cursor: c.Cursor, DryRun: dryRun}}
}

// postSteps posts requests until a node answers without a next step.
func (c *session) postSteps(path string, body web.Selection) (sum web.Changed, err error) {
	var shown *terminal.Bar
	for {
		answer, err := c.Post(c.ctx, path, body)
		if err != nil {
			return addFailedStep(sum, err), err
		}
		var step web.Changed
		if err := decodeAnswer(path, answer, &step); err != nil {
			return sum, err
		}
		sum = web.Changed{Changed: sum.Changed + step.Changed, Skipped: sum.Skipped + step.Skipped, Left: step.Left, Next: step.Next}
		if step.Next == "" {
			return sum, nil
		}
		if shown == nil {
			shown = terminal.NewBar(c.Err, int64(step.Changed+step.Skipped+step.Left), "working")
			defer shown.Clear()
		}
		shown.Set(sum.Changed + sum.Skipped)
		body.Cursor = step.Next
	}
}

// addFailedStep adds the jobs that a failed step had changed before its error.
func addFailedStep(p web.Changed, err error) web.Changed {
	var answer *web.Problem
	if errors.As(err, &answer) && answer.Changed != nil {
		p.Changed += *answer.Changed
		if answer.Next != "" {
			p.Next = answer.Next
		}
		answer.Changed = nil // the sum reports it
	}
	return p
}

// explainBreak adds to an error how far the command came, and how to continue.
func explainBreak(ctx context.Context, sum web.Changed, r request, err error) error {
	code := exitCode(err)
	if ctx.Err() != nil {
		code, err = exit.Interrupted, errors.New("interrupted")
	}
	switch {
	case sum.Next != "":
		err = fmt.Errorf("%w; %d were %s before, continue with --cursor %s", err, sum.Changed, r.done, sum.Next)
	case sum.Changed > 0:
		err = fmt.Errorf("%w; %d were %s before", err, sum.Changed, r.done)
	}
	return exit.WithCode(code, err)
}

// printChanged prints how many jobs were changed, and how many were not there.
func (c *session) printChanged(sum web.Changed, r request) error {
	if c.asJSON {
		return json.NewEncoder(terminal.EscapingWriter{Writer: c.Out}).Encode(sum)
	}
	text := fmt.Sprintf("%d %s", sum.Changed, r.done)
	if sum.Skipped > 0 {
		text += fmt.Sprintf(", %d not there", sum.Skipped)
	}
	return c.Printf("%s\n", text)
}
