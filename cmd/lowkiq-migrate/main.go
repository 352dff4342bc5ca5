package main

import (
	_ "embed"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/manual"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/cmd/internal/version"
)

// program is the name at the beginning of errors.
const program = "lowkiq-migrate"

//go:embed help.md
var helpText string

const exitHelp = `Exit codes:

    0    ok
    1    some jobs stay, or it failed while it ran
    2    the program has crashed
    3    a Redis is unreachable, denies access, or cannot serve
    64   usage or configuration, or no such queue
    130  interrupted`

func main() { os.Exit(execute(os.Args[1:], terminal.StandardStreams())) }

// newParser returns the parser of the grammar, with the help.
func newParser(c *command, s *terminal.Streams, options ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(c, append([]kong.Option{
		kong.Name(program),
		kong.Description("Move the jobs of a worker of Ruby's Lowkiq into a queue."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"version": program + " " + version.ReadBuild().String()},
		kong.Bind(s),
	}, options...)...)
	if err != nil {
		return nil, err
	}
	parser.Model.Detail = strings.TrimSpace(helpText) + "\n\n" + exitHelp
	return parser, nil
}

// execute parses the arguments, runs the command and returns the exit code.
func execute(args []string, s *terminal.Streams) int {
	if len(args) == 0 {
		args = []string{"--help"}
	}
	manual.DropEmptyVariables()
	parser, err := newParser(&command{}, s, kong.Writers(s.Out, s.Err))
	if err == nil {
		err = parseAndRun(parser, args)
	}
	if err == nil {
		err = s.Lost
	}
	if err != nil {
		exit.PrintError(s.Err, program, exit.Explain(err))
	}
	return exit.CodeOf(err)
}

// parseAndRun parses the arguments and runs the command.
func parseAndRun(parser *kong.Kong, args []string) error {
	for _, arg := range args {
		if !utf8.ValidString(arg) { // the parser would replace its bytes by U+FFFD
			return exit.Fail(exit.Usage, "argument %q is not UTF-8", arg)
		}
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		return exit.WithCode(exit.Usage, manual.ExplainMistake(err))
	}
	if err := manual.CheckEmpty(ctx); err != nil {
		return exit.WithCode(exit.Usage, err)
	}
	return ctx.Run()
}
