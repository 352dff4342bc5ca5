package manual

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Command is a command with all below it. The root is the program.
type Command struct {
	Name     string
	Help     string   // one line
	Detail   string   // paragraphs and indented examples
	Usage    string   // what follows the path: "[QUEUE ...]"
	Words    []string // what its first argument may be, if that is known
	Flags    []Flag
	Children []*Command
	Default  *Command // the child that is meant when none is named

	path []string
}

// Flag is an option of a command.
type Flag struct {
	Name   string // without dashes
	Short  string // one letter, or ""
	Value  string // placeholder; "" for a switch
	Help   string
	Values []string // all it may be, if that is known
	Env    string
}

// Read takes the grammar of a program apart, hidden commands left out. common is a text that
// the commands' details end with; the root keeps it.
func Read(app *kong.Application, common string) *Command {
	return read(app.Node, nil, common)
}

func read(node *kong.Node, path []string, common string) *Command {
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
		below := read(child, append(slices.Clone(path), child.Name), common)
		c.Children = append(c.Children, below)
		if child == node.DefaultCmd {
			c.Default = below
		}
	}
	return c
}

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

// Path is the command as it is typed, without the program.
func (c *Command) Path() string { return strings.Join(c.path, " ") }

// all are the command and all below it, in order.
func (c *Command) all() []*Command {
	list := []*Command{c}
	for _, child := range c.Children {
		list = append(list, child.all()...)
	}
	return list
}
