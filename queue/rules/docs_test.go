package rules

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/text/bounds"
)

var update = flag.Bool("update", false, "write the section of docs/configuration.md")

const (
	document = "../../docs/configuration.md"
	begin    = "<!-- The sections of rules: go test ./queue/rules -run TestDocumented -update -->\n"
	end      = "<!-- The end of the sections of rules. -->\n"
)

// TestDocumented checks that docs/configuration.md has a section for each rule of the table.
func TestDocumented(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(data), begin)
	shown, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		t.Fatalf("%s lacks the line %s or %s", document, begin, end)
	}
	want := sections()
	if *update {
		if err := os.WriteFile(document, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if shown != want {
		t.Errorf("%s shows other rules than the table has: go test ./queue/rules -run TestDocumented -update", document)
	}
}

// sections returns the sections of the document.
func sections() string {
	var b strings.Builder
	for i := range table {
		f := &table[i]
		fmt.Fprintf(&b, "\n### %s\n\n%s.\n\n- Value: %s", f.key, sentence(f.tag.Get("help")), f.wanted())
		for _, part := range f.parts() {
			fmt.Fprintf(&b, "\n- `%s`: %s", part.key, part.wanted())
		}
		if text := f.tag.Get("default"); text != "" {
			fmt.Fprintf(&b, "\n- Default: %s", text)
		}
		if f.tag.Get("at") != "" {
			fmt.Fprintf(&b, "\n- Only at run time: `lowkiq-node %s`.", map[string]string{"tracked": "track", "holds": "hold"}[f.key])
		}
		b.WriteString("\n")
	}
	return b.String() + "\n"
}

func (f *row) parts() []row {
	if f.typ.Kind() != reflect.Struct {
		return nil
	}
	return rowsOf(f.typ)
}

// wanted describes the allowed values.
func (f *row) wanted() string {
	t := f.typ
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[RetryIn]():
		return retryForms
	case t == reflect.TypeFor[IDs]():
		return "a list of ids"
	case t == reflect.TypeFor[Holds]():
		return "a list of holds"
	case t.Kind() == reflect.Struct && len(rowsOf(t)) > 0:
		return f.describeForms()
	}
	return strings.ReplaceAll(bounds.Want(t, f.tag), `"`, "")
}

func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
