package main

import (
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/manual"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/testing/golden"
)

func grammarOf(t *testing.T) *kong.Application {
	t.Helper()
	parser, err := newParser(&cli{}, &terminal.Streams{}, kong.Writers(io.Discard, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model
}

// Every command shows an example of itself, and the exit codes.
func TestHelpHasExamples(t *testing.T) {
	t.Parallel()
	leaves := grammarOf(t).Leaves(true)
	if len(leaves) < 30 {
		t.Errorf("got %d commands, want at least 30", len(leaves))
	}
	for _, leaf := range leaves {
		path := strings.TrimPrefix(leaf.Path(), "lowkiq-node ")
		short := strings.TrimSuffix(path, " list")
		if !strings.Contains(leaf.Detail, "lowkiq-node "+path) && !strings.Contains(leaf.Detail, "lowkiq-node "+short) {
			t.Errorf("%s: its help has no example", path)
		}
		if !strings.HasSuffix(leaf.Detail, exitHelp) {
			t.Errorf("%s: its help does not end with the exit codes", path)
		}
	}
}

// Every section of help.md is of a command.
func TestHelpSections(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"": true, "lowkiq-node": true}
	var walk func(node *kong.Node, path string)
	walk = func(node *kong.Node, path string) {
		known[path] = true
		for _, child := range node.Children {
			walk(child, path+" "+child.Name)
		}
	}
	walk(grammarOf(t).Node, "lowkiq-node")
	for command := range helpSections() {
		if !known[command] {
			t.Errorf("help.md has a section %q, which is no command", command)
		}
	}
}

// Help fits into 80 columns: what is indented is not wrapped, nor is a word.
func TestHelpFits(t *testing.T) {
	t.Parallel()
	for _, leaf := range grammarOf(t).Leaves(true) {
		for line := range strings.Lines(leaf.Detail) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); strings.HasPrefix(line, "    ") && n > 80 {
				t.Errorf("%s: got %d columns, want at most 80: %s", leaf.Path(), n, line)
			}
			for _, word := range strings.Fields(line) {
				if len(word) > 76 {
					t.Errorf("%s: a word of its help has %d letters, want at most 76: %s", leaf.Path(), len(word), word)
				}
			}
		}
	}
}

// The same flag is spelled the same everywhere.
func TestFlagsAreConsistent(t *testing.T) {
	t.Parallel()
	shorts := map[string]string{}
	for _, leaf := range grammarOf(t).Leaves(true) {
		for _, flag := range leaf.Flags {
			if flag.Short == 0 {
				continue
			}
			letter := string(flag.Short)
			if other := shorts[letter]; other != "" && other != flag.Name {
				t.Errorf("-%s is --%s and --%s", letter, other, flag.Name)
			}
			shorts[letter] = flag.Name
		}
	}
}

func TestCLIPage(t *testing.T) {
	t.Parallel()
	const written = "A test writes this page: `LOWKIQ_GOLDEN_WRITE=1 go test ./cmd/lowkiq-node -run TestCLIPage`."
	golden.File(t, "../../docs/cli.md", manual.MarkdownPage(manual.ReadGrammar(grammarOf(t), exitHelp), exitHelp, written))
}
