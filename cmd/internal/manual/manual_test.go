package manual

import (
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// grammar has what is hard to quote.
type grammar struct {
	Show struct {
		Output string   `short:"o" enum:"table,json" default:"table" help:"It's \"table\" or json: choose."`
		File   string   `placeholder:"FILE" help:"A file."`
		Limit  int      `env:"DEMO_LIMIT" help:"Most | things."`
		Names  []string `arg:"" optional:""`
	} `cmd:"" help:"Show things."`
	Things struct {
		List struct {
			All bool `help:"All."`
		} `cmd:"" default:"withargs" help:"List."`
		Move struct {
			Where string `arg:"" enum:"up,down"`
		} `cmd:"" help:"Move."`
	} `cmd:"" help:"Things."`
	Secret struct{} `cmd:"" hidden:""`
}

const common = "Exit codes:\n\n    0  ok"

func (*grammar) Help() string { return "Begin:\n\n    demo-prog show\n\n" + common }

func root(t *testing.T) *Command {
	t.Helper()
	parser, err := kong.New(&grammar{}, kong.Name("demo-prog"), kong.Description("A demo."), kong.Writers(io.Discard, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	return ReadGrammar(parser.Model, common)
}

func TestRead(t *testing.T) {
	t.Parallel()
	var paths []string
	for _, c := range root(t).flatten() {
		paths = append(paths, c.Path())
	}
	if got, want := strings.Join(paths, ", "), ", show, things, things list, things move"; got != want {
		t.Errorf("commands: got %q, want %q", got, want)
	}
	if detail := root(t).Detail; strings.Contains(detail, "Exit") {
		t.Errorf("detail: got %q, want what is common cut off", detail)
	}
}

// What may follow a line whose last word is being typed.
func TestComplete(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, want string }{
		{"sh", "show"},
		{"", "show things --help"},
		{"show --o", "--output"},
		{"show -o ", "table json"},
		{"show --output j", "json"},
		{"things ", "list move --all --help"},
		{"things move ", "up down --help"},
		{"show x --limit ", ""},
		{"show --file ", ""},
	} {
		typed := strings.Split(c.line, " ")
		if got := strings.Fields(Complete(root(t), "bash", typed...)); strings.Join(got, " ") != c.want {
			t.Errorf("%q: got %q, want %q", c.line, got, c.want)
		}
	}
	if got, want := Complete(root(t), "zsh", "show", "--o"), `--output:It's "table" or json: choose.`+"\n"; got != want {
		t.Errorf("zsh: got %q, want %q", got, want)
	}
	if got, want := Complete(root(t), "fish", "th"), "things\tThings.\n"; got != want {
		t.Errorf("fish: got %q, want %q", got, want)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if script := CompletionScript("demo-prog", shell); !strings.Contains(script, "demo-prog "+CompleteCommand+" "+shell) ||
			strings.Contains(script, "%") {
			t.Errorf("%s: got %s", shell, script)
		}
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	page := MarkdownPage(root(t), common, "Somebody writes it.")
	for _, want := range []string{"| [`show`](#show) | Show things. |", "### things move", "`demo-prog things move <where>`", "| `-o, --output=table\\|json` |", "Most \\| things."} {
		if !strings.Contains(page, want) {
			t.Errorf("got no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "secret") || strings.Contains(page, "    ") {
		t.Errorf("got what is hidden, or an example that is not fenced, in\n%s", page)
	}
}
