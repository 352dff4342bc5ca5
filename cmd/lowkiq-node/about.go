package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/manual"
)

type versionCommand struct {
	Output string `short:"o" enum:"table,json" default:"table" help:"table or json."`
}

// build is what the binary knows of itself.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func version() build {
	b := build{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			b.Revision = setting.Value
		}
	}
	return b
}

func (c *versionCommand) Run(s *streams) error {
	b := version()
	if c.Output == "json" {
		return json.NewEncoder(s.out).Encode(b)
	}
	_, err := fmt.Fprintf(s.out, "lowkiq-node %s (%s, %s)\n", b.Version, b.Go, b.Platform)
	return err
}

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

// refusal says why a command cannot work on an operating system, nil where it can. A
// node needs what only a Unix has; the commands that talk to Redis or to a node do not.
func refusal(goos, command string) error {
	name, _, _ := strings.Cut(command, " ")
	if goos != "windows" || !slices.Contains([]string{"run", "dev"}, name) {
		return nil
	}
	return fmt.Errorf("%s does not work on Windows: nodes need a Unix, as WSL or a Linux container is one; push, status and the other commands work here", name)
}
