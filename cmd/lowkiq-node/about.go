package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/manual"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/cmd/internal/version"
)

type versionCommand struct {
	Output string `short:"o" enum:"table,json" default:"table" help:"table or json."`
}

func (c *versionCommand) Run(s *terminal.Streams) error {
	b := version.ReadBuild()
	if c.Output == "json" {
		return json.NewEncoder(s.Out).Encode(b)
	}
	_, err := fmt.Fprintf(s.Out, "%s %s\n", program, b)
	return err
}

// Commands that describe the others.

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints a script for the shell to source.
func (c *completionCommand) Run(s *terminal.Streams, ctx *kong.Context) error {
	_, err := fmt.Fprint(s.Out, manual.CompletionScript(ctx.Model.Name, c.Shell))
	return err
}

// checkPlatform returns an error if a command does not work on an operating system. A node needs a Unix. The commands that
// talk to Redis or to a node do not.
func checkPlatform(goos, command string) error {
	name, _, _ := strings.Cut(command, " ")
	if goos != "windows" || !slices.Contains([]string{"run", "dev"}, name) {
		return nil
	}
	return fmt.Errorf("%s does not work on Windows, because a node needs a Unix, such as WSL or a Linux container; push, status and the "+
		"other commands work here", name)
}
