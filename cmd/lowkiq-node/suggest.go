package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/manual"
	"github.com/lowkiq/lowkiq/internal/text/suggest"
)

// suggestFix adds to a parse error what would be right.
func suggestFix(app *kong.Application, args []string, err error) error {
	var at *kong.ParseError
	if missing, found := strings.CutPrefix(err.Error(), `expected "<`); found && errors.As(err, &at) && at.Context.Selected() != nil {
		return describeMissing(at.Context.Selected(), "<"+strings.TrimSuffix(missing, `"`))
	}
	if !strings.HasPrefix(err.Error(), "un") { // unexpected argument, unknown flag
		return manual.ExplainMistake(err)
	}
	if flag, _, _ := strings.Cut(args[0], "="); strings.HasPrefix(flag, "-") && strings.HasPrefix(err.Error(), "unknown flag "+flag) {
		return fmt.Errorf("unknown flag %s before the command; the flags of a command must follow it, as in lowkiq-node run --config FILE", flag)
	}
	if strings.Contains(err.Error(), "did you mean") {
		return err
	}
	return suggestCommand(app, args, err)
}

// describeMissing returns the error of a command without its arguments. It describes them and shows an example.
func describeMissing(command *kong.Node, missing string) error {
	var words []string
	for _, arg := range command.Positional {
		if strings.Contains(missing, arg.Summary()) {
			words = append(words, fmt.Sprintf("%s (%s)", arg.Summary(), strings.ToLower(arg.Help[:1])+strings.TrimSuffix(arg.Help[1:], ".")))
		}
	}
	return fmt.Errorf("%s needs %s%s", shortPath(command), strings.Join(words, " and "), exampleOf(command))
}

// shortPath returns the words of a command. The word of a default command is left out.
func shortPath(command *kong.Node) string {
	return strings.TrimSuffix(strings.TrimPrefix(command.Path(), "lowkiq-node "), " list")
}

// exampleOf returns ", for example: …" with the first example of a command's help, or "".
func exampleOf(command *kong.Node) string {
	for line := range strings.Lines(command.Detail) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "lowkiq-node "+shortPath(command)) {
			return ", for example: " + line
		}
	}
	return ""
}

// suggestCommand adds the nearest command to an error where kong adds none. That is below a command that lists without a
// subcommand, as in "queues paus orders".
func suggestCommand(app *kong.Application, args []string, err error) error {
	node := app.Node
	for _, word := range args {
		next := childOf(node, word)
		if next != nil {
			node = next
			continue
		}
		names := childrenOf(node)
		if meant := suggest.NearestName(word, names, min(3, len(word))); meant != "" {
			return fmt.Errorf("%w, did you mean %q?", err, meant)
		}
		switch {
		case strings.HasPrefix(err.Error(), "unknown flag") && len(node.Positional) > 0:
			return fmt.Errorf("%w; %s takes %s%s", err, shortPath(node), argumentsOf(node), exampleOf(node))
		case strings.HasPrefix(word, "-"):
			return err
		case node == app.Node:
			return fmt.Errorf("unknown command %s; lowkiq-node --help lists the commands", word)
		case len(names) > 0:
			return fmt.Errorf("%w; %s has the commands %s", err, node.Name, strings.Join(names, ", "))
		case strings.HasPrefix(err.Error(), "unexpected argument"):
			return fmt.Errorf("%w; %s takes %s%s", err, shortPath(node), argumentsOf(node), exampleOf(node))
		}
		return err
	}
	return err
}

// argumentsOf returns the arguments of a command, as its usage shows them.
func argumentsOf(command *kong.Node) string {
	var all []string
	for _, arg := range command.Positional {
		all = append(all, arg.Summary())
	}
	if len(all) == 0 {
		return "no argument"
	}
	return strings.Join(all, " ")
}

func childrenOf(node *kong.Node) (names []string) {
	for _, child := range node.Children {
		names = append(names, child.Name)
	}
	return names
}

func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}
