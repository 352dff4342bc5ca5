package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/manual"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/web/actions"
)

// cli is the grammar of the command line.
type cli struct {
	Run    runCommand    `cmd:"" help:"Run a node: handle the queues of a configuration."`
	Push   pushCommand   `cmd:"" help:"Push jobs into a queue, one or a stream of NDJSON."`
	Reply  replyCommand  `cmd:"" help:"Show how the payload of a push with --wait has ended."`
	Dev    devCommand    `cmd:"" help:"Try it: a node with an embedded Redis and a sample queue."`
	Status statusCommand `cmd:"" help:"Show the cluster: nodes and queues."`

	Shards  shardsCommand  `cmd:"" help:"Show who owns which shard."`
	Members membersCommand `cmd:"" help:"Show who seems alive, by gossip."`
	Plan    planCommand    `cmd:"" help:"Show what would move if nodes came or went."`
	Drain   drainCommand   `cmd:""`
	Why     whyCommand     `cmd:"" help:"Explain what keeps a queue, or an id, from being handled now."`

	Queues queuesCommand `cmd:"" help:"List, pause, resume, reshard and delete queues."`
	Jobs   jobsCommand   `cmd:"" help:"List jobs, run them now, kill or delete them."`
	Morgue morgueCommand `cmd:"" help:"List jobs that ran out of retries, requeue or delete them."`

	Recurring recurringCommand `cmd:"" help:"List, add, change and pause recurring jobs."`
	Workflows workflowsCommand `cmd:"" help:"Start, show, list, close and cancel workflows."`

	History  historyCommand  `cmd:"" help:"Show how the runs of an id ended."`
	Journal  journalCommand  `cmd:"" help:"Show how runs ended, of one queue or all, and follow new runs."`
	Watch    watchCommand    `cmd:"" help:"Follow events: ends of runs, recoveries and changes."`
	Track    trackCommand    `cmd:""`
	Hold     holdCommand     `cmd:""`
	Cancel   cancelCommand   `cmd:""`
	Outgoing outgoingCommand `cmd:"" help:"Show the follow-ups of a queue that wait to be delivered, or drop some."`
	Rules    rulesCommand    `cmd:"" help:"Show the rules of a queue, and change them while it runs."`
	InFlight inFlightCommand `cmd:"" help:"List the jobs that handlers have."`
	Errors   errorsCommand   `cmd:"" help:"Group the errors of failed, blocked or buried jobs by kind."`
	Tags     tagsCommand     `cmd:"" help:"Count the tags of a queue's jobs."`
	Stats    statsCommand    `cmd:"" help:"Show the figures of all queues, or of days."`
	Redis    redisCommand    `cmd:"" help:"Show the state of the Redis servers."`

	Blocked blockedCommand `cmd:"" help:"Unblock ids that wait for a person (queues with exhausted: block)."`
	Check   checkCommand   `cmd:"" help:"Audit what Redis holds, and repair it."`
	Health  healthCommand  `cmd:"" help:"Ask whether a node is alive or ready, for the health checks of containers."`
	Version versionCommand `cmd:"" help:"Print the version."`

	Completion completionCommand `cmd:"" help:"Print the completion of a shell: bash, zsh or fish."`
}

// helpText has a section with the help of every command. The exit codes follow each section.
//
//go:embed help.md
var helpText string

// newParser returns the parser of the grammar, with the help of its commands.
func newParser(c *cli, s *terminal.Streams, options ...kong.Option) (*kong.Kong, error) {
	c.Recurring.Add.recurringFields, c.Recurring.Edit.recurringFields = newRecurringFields(), newRecurringFields()
	parser, err := kong.New(c, append([]kong.Option{
		kong.Name("lowkiq-node"),
		kong.Description("Ordered background jobs on Redis: one id is never handled twice at once, and never out of order."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Bind(s),
	}, options...)...)
	if err != nil {
		return nil, err
	}
	setHelp(parser.Model.Node, "", helpSections())
	return parser, nil
}

// helpSections returns the sections of help.md by command.
func helpSections() map[string]string {
	sections := map[string]string{}
	for section := range strings.SplitSeq("\n"+helpText, "\n## ") {
		command, text, _ := strings.Cut(section, "\n")
		sections[command] = strings.TrimSpace(text)
	}
	return sections
}

// setHelp sets the help of a command and of its subcommands. The help of actions on jobs and entries comes from their
// tables.
func setHelp(node *kong.Node, path string, sections map[string]string) {
	path = strings.TrimSpace(path + " " + node.Name)
	about := ""
	if a := actions.OfCommand(strings.TrimPrefix(path, "lowkiq-node ")); a != nil {
		node.Help, about = strings.ToUpper(a.Brief[:1])+a.Brief[1:]+".", a.About
	}
	node.Detail = strings.TrimSpace(about + "\n\n" + sections[path] + "\n\n" + exitHelp)
	for _, child := range node.Children {
		setHelp(child, path, sections)
	}
}

// execute parses the arguments, runs the command and returns the exit code.
func execute(args []string, s *terminal.Streams) int {
	manual.DropEmptyVariables()
	parser, err := newParser(&cli{}, s, kong.Writers(s.Out, s.Err))
	if err != nil {
		exit.PrintError(s.Err, program, err)
		return exit.Failed
	}
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "--version":
		args[0] = "version"
	case args[0] == manual.CompleteCommand && len(args) > 1:
		fmt.Fprint(s.Out, manual.Complete(manual.ReadGrammar(parser.Model, exitHelp), args[1], args[2:]...))
		return exit.OK
	}
	if i := slices.IndexFunc(args, func(arg string) bool { return !utf8.ValidString(arg) }); i >= 0 {
		// The parser would replace its bytes by U+FFFD, and the command would concern another id.
		exit.PrintError(s.Err, program, fmt.Errorf(`argument %q is not UTF-8: an id or payload of other bytes is pushed as a line, {"id_base64":"…","payload":{"$base64":"…"}}, and asked for in the API's paths, as in %%FF`, args[i]))
		return exit.Usage
	}
	args = commandFirst(args)
	ctx, err := parser.Parse(args)
	if err != nil {
		exit.PrintError(s.Err, program, suggestFix(parser.Model, args, err))
		return exit.Usage
	}
	if err := cmp.Or(manual.CheckEmpty(ctx), checkPlatform(runtime.GOOS, ctx.Command())); err != nil {
		exit.PrintError(s.Err, program, err)
		return exit.Usage
	}
	if err = runSelected(ctx, s); err == nil {
		err = s.Lost
	}
	if err != nil {
		exit.PrintError(s.Err, program, addAdvice(err))
		return exitCode(err)
	}
	return exit.OK
}

// commandFirst moves flags before the command behind it, where the parser expects them.
func commandFirst(args []string) []string {
	n := 0
	for n < len(args) && strings.HasPrefix(args[n], "-") && args[n] != "--" {
		name, _, valued := strings.Cut(args[n], "=")
		takes, known := leadingFlags[name]
		if !known && strings.HasPrefix(name, "-o") && !strings.HasPrefix(name, "--") {
			takes, known, valued = true, true, true // -ojson
		}
		if !known {
			return args // the parser reports the error
		}
		n++
		if takes && !valued {
			n++
		}
	}
	if n == 0 || n >= len(args) {
		return args
	}
	end := len(args)
	if i := slices.Index(args, "--"); i >= n {
		end = i
	}
	return slices.Concat(args[n:end], args[:n], args[end:])
}

// leadingFlags are the flags that commandFirst moves: those of commands that ask a node. The value says whether the flag
// takes a value.
var leadingFlags = map[string]bool{"-o": true, "--output": true, "--node": true, "--token-file": true, "--ca": true, "--cert": true, "--key": true}

// runSelected runs the command. A command that asks a node gets a session.
func runSelected(ctx *kong.Context, s *terminal.Streams) error {
	if asker, ok := ctx.Selected().Target.Addr().Interface().(interface {
		openSession(s *terminal.Streams) (*session, error)
	}); ok {
		with, err := asker.openSession(s)
		if err != nil {
			return err
		}
		defer with.stop()
		ctx.Bind(with)
	}
	return ctx.Run()
}
