package main

import (
	_ "embed"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/manual"
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
	Drain   drainCommand   `cmd:"" help:"Empty a node; --undo lets it take shards again."`
	Why     whyCommand     `cmd:"" help:"Explain why an id is not being handled now."`

	Queues queuesCommand `cmd:"" help:"List, pause, resume and delete queues."`
	Jobs   jobsCommand   `cmd:"" help:"List jobs, run them now, kill or delete them."`
	Morgue morgueCommand `cmd:"" help:"List jobs that ran out of retries, requeue or delete them."`

	Recurring recurringCommand `cmd:"" help:"List, add, change and pause what is pushed again and again."`

	History  historyCommand  `cmd:"" help:"Show how the runs of an id ended."`
	Journal  journalCommand  `cmd:"" help:"Show how runs ended, of one queue or all, and follow what comes."`
	Watch    watchCommand    `cmd:"" help:"Follow what happens: how runs end, what is recovered and changed."`
	Track    trackCommand    `cmd:"" help:"Keep every run of an id in the journal."`
	Hold     holdCommand     `cmd:"" help:"Keep an id, or ids with a prefix, from handlers."`
	Cancel   cancelCommand   `cmd:"" help:"End the run of an id: its handler is told to stop."`
	Rules    rulesCommand    `cmd:"" help:"Show the rules of a queue, and change them while it runs."`
	InFlight inFlightCommand `cmd:"" help:"List the jobs that handlers have."`
	Errors   errorsCommand   `cmd:"" help:"Group the errors of failed, blocked or buried jobs by kind."`
	Tags     tagsCommand     `cmd:"" help:"Count the tags of a queue's jobs."`
	Stats    statsCommand    `cmd:"" help:"Show the figures of all queues as Ruby Lowkiq does."`
	Redis    redisCommand    `cmd:"" help:"Show what the Redis servers say of themselves."`

	Blocked blockedCommand `cmd:"" help:"Let ids go on that wait for a person (queues with exhausted: block)."`
	Migrate migrateCommand `cmd:"" help:"Move the jobs of a worker of Ruby's Lowkiq into a queue."`
	Check   checkCommand   `cmd:"" help:"Audit what Redis holds, and repair it."`
	Health  healthCommand  `cmd:"" help:"Ask whether a node is alive, or ready: for containers' health checks."`
	Version versionCommand `cmd:"" help:"Print the version."`

	Completion completionCommand `cmd:"" help:"Print the completion of a shell: bash, zsh or fish."`
	Man        manCommand        `cmd:"" help:"Print the manual page."`
}

// helpText has the help of every command in a section of its name; below it come the exit codes.
//
//go:embed help.md
var helpText string

// newParser reads the grammar, and the help of its commands.
func newParser(c *cli, s *streams, options ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(c, append([]kong.Option{
		kong.Name("lowkiq-node"),
		kong.Description("Ordered background jobs on Redis: one id is never handled twice at once, and never out of order."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Bind(s),
	}, options...)...)
	if err != nil {
		return nil, err
	}
	describe(parser.Model.Node, "", helpSections())
	return parser, nil
}

// helpSections are the sections of help.md.
func helpSections() map[string]string {
	sections := map[string]string{}
	for section := range strings.SplitSeq("\n"+helpText, "\n## ") {
		command, text, _ := strings.Cut(section, "\n")
		sections[command] = strings.TrimSpace(text)
	}
	return sections
}

// describe gives a command, and those below it, their help; what does an action on jobs has what
// the table of actions says of it.
func describe(node *kong.Node, path string, sections map[string]string) {
	path = strings.TrimSpace(path + " " + node.Name)
	about := ""
	if a, ok := actionOf(strings.TrimPrefix(path, "lowkiq-node ")); ok {
		node.Help, about = strings.ToUpper(a.Brief[:1])+a.Brief[1:]+".", a.About
	}
	node.Detail = strings.TrimSpace(about + "\n\n" + sections[path] + "\n\n" + exitHelp)
	for _, child := range node.Children {
		describe(child, path, sections)
	}
}

// execute parses the arguments, runs the command and returns the exit code.
func execute(args []string, s *streams) int {
	parser, err := newParser(&cli{}, s, kong.Writers(s.out, s.err))
	if err != nil {
		report(s.err, err)
		return exitFailed
	}
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "--version":
		args[0] = "version"
	case args[0] == manual.Asked && len(args) > 1:
		fmt.Fprint(s.out, manual.Complete(manual.Read(parser.Model, exitHelp), args[1], args[2:]...))
		return exitOK
	}
	if i := slices.IndexFunc(args, func(arg string) bool { return !utf8.ValidString(arg) }); i >= 0 {
		// The parser would put U+FFFD in its place: the command would be about another id.
		report(s.err, fmt.Errorf(`argument %q is not UTF-8: an id or payload of other bytes is pushed as a line, {"id_base64":"…","payload":{"$base64":"…"}}, and asked for in the API's paths, as in %%FF`, args[i]))
		return exitUsage
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		report(s.err, suggested(parser.Model, args, err))
		return exitUsage
	}
	if err := refusal(runtime.GOOS, ctx.Command()); err != nil {
		report(s.err, err)
		return exitUsage
	}
	if err = run(ctx, s); err == nil {
		err = s.lost
	}
	if err != nil {
		report(s.err, advised(err))
		return codeOf(err)
	}
	return exitOK
}

// run runs the command. One that asks a node gets a conversation.
func run(ctx *kong.Context, s *streams) error {
	if asker, ok := ctx.Selected().Target.Addr().Interface().(interface {
		ask(s *streams) (*conversation, error)
	}); ok {
		with, err := asker.ask(s)
		if err != nil {
			return err
		}
		defer with.stop()
		ctx.Bind(with)
	}
	return ctx.Run()
}
