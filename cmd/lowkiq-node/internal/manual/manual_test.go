package manual

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	return Read(parser.Model, common)
}

func TestRead(t *testing.T) {
	t.Parallel()
	var paths []string
	for _, c := range root(t).all() {
		paths = append(paths, c.Path())
	}
	if got, want := strings.Join(paths, ", "), ", show, things, things list, things move"; got != want {
		t.Errorf("commands: got %q, want %q", got, want)
	}
	if detail := root(t).Detail; strings.Contains(detail, "Exit") {
		t.Errorf("detail: got %q, want what is common cut off", detail)
	}
}

// What a shell offers for a line whose last word is being typed.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, want string }{
		{"demo-prog sh", "show"},
		{"demo-prog ", "show things --help"},
		{"demo-prog show --o", "--output"},
		{"demo-prog show -o ", "table json"},
		{"demo-prog show --output j", "json"},
		{"demo-prog things ", "list move --all --help"},
		{"demo-prog things move ", "up down --help"},
		{"demo-prog show x --limit ", ""},
	} {
		for shell, offers := range map[string]func(*testing.T, string) string{"bash": bashOffers, "fish": fishOffers, "zsh": zshOffers} {
			t.Run(shell+"/"+c.line, func(t *testing.T) {
				t.Parallel()
				if _, err := exec.LookPath(shell); err != nil {
					t.Skipf("%s is not installed", shell)
				}
				if got, want := words(offers(t, c.line), c.line), words(c.want, c.line); got != want {
					t.Errorf("%s offers %q, want %q", shell, got, want)
				}
			})
		}
	}
}

// words are the offers in order, --help left out, which fish does not need, and dashed ones
// where none was begun: fish holds them back.
func words(text, line string) string {
	dashed := strings.Contains(line[strings.LastIndex(line, " "):], "-")
	var kept []string
	for word := range strings.FieldsSeq(text) {
		if dashed || !strings.HasPrefix(word, "-") {
			kept = append(kept, word)
		}
	}
	return strings.Join(kept, " ")
}

func run(t *testing.T, shell, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), shell, "-c", script)
	cmd.Stdin = strings.NewReader("")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", shell, err, out)
	}
	return string(out)
}

func bashOffers(t *testing.T, line string) string {
	return run(t, "bash", Completion(root(t), "bash")+`
line=`+quote(line)+`
read -ra COMP_WORDS <<< "$line"
[[ $line == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_demo_prog
echo "${COMPREPLY[*]}"`)
}

func fishOffers(t *testing.T, line string) string {
	out := run(t, "fish", Completion(root(t), "fish")+"\ncomplete -C "+fishQuote(line))
	var offers []string
	for offer := range strings.Lines(out) {
		word, _, _ := strings.Cut(strings.TrimSpace(offer), "\t")
		offers = append(offers, word)
	}
	return inOrder(t, strings.Join(offers, " "), line)
}

// inOrder puts fish's alphabet into the order of the grammar.
func inOrder(t *testing.T, text, line string) string {
	var list []string
	for _, c := range root(t).all() {
		for _, word := range append(append([]string{c.Name}, c.Words...), "--output", "table", "json") {
			if strings.Contains(" "+text+" ", " "+word+" ") && !strings.Contains(strings.Join(list, " "), word) {
				list = append(list, word)
			}
		}
	}
	return strings.Join(list, " ")
}

// zshOffers calls the function as zsh's completion system would, which takes a terminal.
func zshOffers(t *testing.T, line string) string {
	return run(t, "zsh", `compdef() { :; }
_message() { :; }
now=
show() { for word in "$@"; do case $word in $now*) print -rn -- "${word//\\:/:} " ;; esac; done; }
compadd() { shift; show "$@"; }
_describe() { show "${(@)${(P)2}%%:*}"; }
`+Completion(root(t), "zsh")+`
line=`+quote(line)+`
words=(${=line})
[[ $line == *" " ]] && words+=("")
CURRENT=${#words}
now=${words[-1]}
_demo_prog`)
}

func TestMan(t *testing.T) {
	t.Parallel()
	page := Man(root(t), common)
	for _, want := range []string{".SH NAME\ndemo\\-prog \\- A demo.", ".SS demo\\-prog things move <where>", `.B \-o, \-\-output=table|json`, "(DEMO_LIMIT)", ".SH EXIT STATUS"} {
		if !strings.Contains(page, want) {
			t.Errorf("got no %q in\n%s", want, page)
		}
	}
	if got, want := roff(".x\\y-ż"), `\&.x\ey\-\[u017C]`; got != want {
		t.Errorf("roff: got %s, want %s", got, want)
	}
	if _, err := exec.LookPath("groff"); err != nil {
		return
	}
	cmd := exec.CommandContext(t.Context(), "groff", "-man", "-Tutf8", "-wmac", "-wmissing", "-z")
	cmd.Stdin = strings.NewReader(page)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	page := Markdown(root(t), common)
	for _, want := range []string{"| [`show`](#show) | Show things. |", "### things move", "`demo-prog things move <where>`", "| `-o, --output=table\\|json` |", "Most \\| things."} {
		if !strings.Contains(page, want) {
			t.Errorf("got no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "secret") || strings.Contains(page, "    ") {
		t.Errorf("got what is hidden, or an example that is not fenced, in\n%s", page)
	}
}
