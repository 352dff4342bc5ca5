package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/internal/text/suggest"
)

// suggestFix adds to a parse error what would be right.
func suggestFix(app *kong.Application, args []string, err error) error {
	var at *kong.ParseError
	if missing, found := strings.CutPrefix(err.Error(), `expected "<`); found && errors.As(err, &at) && at.Context.Selected() != nil {
		return describeMissing(at.Context.Selected(), "<"+strings.TrimSuffix(missing, `"`))
	}
	if text := strings.Replace(err.Error(), ` must be one of "",`, " must be one of ", 1); text != err.Error() { // "" means that the flag is not given
		return errors.New(text)
	}
	if strings.Contains(err.Error(), "did you mean") || !strings.HasPrefix(err.Error(), "un") { // unexpected argument, unknown flag
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
	path := strings.TrimSuffix(strings.TrimPrefix(command.Path(), "lowkiq-node "), " list")
	text := fmt.Sprintf("%s needs %s", path, strings.Join(words, " and "))
	for line := range strings.Lines(command.Detail) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "lowkiq-node "+path+" ") {
			return fmt.Errorf("%s, for example: %s", text, line)
		}
	}
	return errors.New(text)
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
		if node != app.Node && len(names) > 0 && !strings.HasPrefix(word, "-") {
			return fmt.Errorf("%w; %s has the commands %s", err, node.Name, strings.Join(names, ", "))
		}
		return err
	}
	return err
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
