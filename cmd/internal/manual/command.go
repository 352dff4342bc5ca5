package manual

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Command is a command with its subcommands. The root is the program.
type Command struct {
	Name     string
	Help     string   // one line
	Detail   string   // paragraphs and indented examples
	Usage    string   // the arguments after the path: "[QUEUE ...]"
	Words    []string // the possible values of the first argument, if they are known
	Flags    []Flag
	Children []*Command
	Default  *Command // the child that runs if none is named

	path []string
}

// Flag is an option of a command.
type Flag struct {
	Name   string // without dashes
	Short  string // one letter, or ""
	Value  string // placeholder; "" for a switch
	Help   string
	Values []string // the possible values, if they are known
	Env    string
}

// ReadGrammar returns the commands of a program without the hidden commands. It leaves out common, a text at the end of
// each command's details.
func ReadGrammar(app *kong.Application, common string) *Command {
	return readCommand(app.Node, nil, common)
}

// readCommand reads a node of the grammar and all nodes below it, without hidden commands and the flag --help. path
// has the names from the root to the node.
func readCommand(node *kong.Node, path []string, common string) *Command {
	c := &Command{Name: node.Name, Help: node.Help, path: path,
		Detail: strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(node.Detail), common))}
	for _, group := range node.AllFlags(true) {
		for _, flag := range group {
			if flag.Name != "help" {
				c.Flags = append(c.Flags, readFlag(flag))
			}
		}
	}
	var usage []string
	for i, arg := range node.Positional {
		usage = append(usage, arg.Summary())
		if i == 0 && arg.Enum != "" {
			c.Words = arg.EnumSlice()
		}
	}
	c.Usage = strings.Join(usage, " ")
	for _, child := range node.Children {
		if child.Hidden {
			continue
		}
		below := readCommand(child, append(slices.Clone(path), child.Name), common)
		c.Children = append(c.Children, below)
		if child == node.DefaultCmd {
			c.Default = below
		}
	}
	return c
}

// readFlag reads a flag. A boolean flag gets no Value.
func readFlag(flag *kong.Flag) Flag {
	f := Flag{Name: flag.Name, Help: strings.TrimSpace(flag.Help)}
	if flag.Short != 0 {
		f.Short = string(flag.Short)
	}
	if len(flag.Envs) > 0 {
		f.Env = flag.Envs[0]
	}
	if flag.IsBool() {
		return f
	}
	f.Value = flag.FormatPlaceHolder()
	if flag.Enum != "" {
		f.Values = slices.DeleteFunc(flag.EnumSlice(), func(v string) bool { return v == "" })
		f.Value = strings.Join(f.Values, "|")
	}
	return f
}

// Path returns the command as it is typed, without the program.
func (c *Command) Path() string { return strings.Join(c.path, " ") }

// flatten returns the command and all commands below it, in order.
func (c *Command) flatten() []*Command {
	list := []*Command{c}
	for _, child := range c.Children {
		list = append(list, child.flatten()...)
	}
	return list
}
