package main

import (
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/manual"
)

// Commands that describe the others.

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints a script for the shell to source.
func (c *completionCommand) Run(s *streams, ctx *kong.Context) error {
	_, err := fmt.Fprint(s.out, manual.Completion(ctx.Model.Name, c.Shell))
	return err
}

type manCommand struct {
	Markdown bool `help:"As a page of Markdown: docs/cli.md."`
}

// Run prints all commands.
func (c *manCommand) Run(s *streams, ctx *kong.Context) error {
	print := manual.Man
	if c.Markdown {
		print = manual.Markdown
	}
	_, err := fmt.Fprint(s.out, print(manual.Read(ctx.Model, exitHelp), exitHelp))
	return err
}
