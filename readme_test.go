package lowkiq_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/metrics"
)

// documents are the texts whose claims can be checked.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	for _, page := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} {
		texts[page] = read(t, page)
	}
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob("docs/adr/*.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Glob("examples/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	incidents, err := filepath.Glob("docs/incidents/*.md")
	if err != nil {
		t.Fatal(err)
	}
	clients, err := filepath.Glob("clients/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range slices.Concat(pages, decisions, examples, incidents, clients) {
		texts[filepath.ToSlash(page)] = read(t, page)
	}
	return texts
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fenced returns the code blocks of a language.
func fenced(markdown, language string) (blocks []string) {
	for _, found := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(markdown, -1) {
		blocks = append(blocks, found[1])
	}
	return blocks
}

// program turns the text of an example into that of a program, which README shows.
func program(example string) string {
	example, _, _ = strings.Cut(example, "\t// Output:")
	example = strings.Replace(example, "package lowkiq_test", "package main", 1)
	return strings.Replace(example, "func Example()", "func main()", 1) + "}\n"
}

func TestREADMEShowsTheExample(t *testing.T) {
	t.Parallel()
	want := program(read(t, "example_test.go"))
	got := fenced(read(t, "README.md"), "go")
	if len(got) != 1 || got[0] != want {
		t.Errorf("README's go block differs from example_test.go, got:\n%s\nwant:\n%s", got, want)
	}
	if program(want+" ") == want {
		t.Error("a changed program counts as the same")
	}
}

// flush is code without the white space at the beginning of its lines.
func flush(code string) string {
	return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(code, "")
}

// The Go that guides show is a piece of a test: it compiles, and does what the test says.
func TestGuidesShowTestedGo(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	walkTests(t, func(file string) { tests.WriteString(flush(read(t, file))) })
	tested, seen := tests.String(), 0
	for file, text := range documents(t) {
		for _, block := range fenced(text, "go") {
			if file == "README.md" {
				continue // a whole program: TestREADMEShowsTheExample
			}
			if seen++; !strings.Contains(tested, flush(block)) {
				t.Errorf("%s shows Go that is in no test:\n%s", file, block)
			}
		}
	}
	if seen < 5 || strings.Contains(tested, flush("\tq.Drain("+"nothing)\n")) {
		t.Errorf("got %d blocks of Go, want more: the test looks in the wrong place", seen)
	}
}

var (
	blocks  = regexp.MustCompile("(?ms)^```.*?^```$")
	inCode  = regexp.MustCompile("`([^`\n]+)`")
	linked  = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	aPath   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*/?$`)
	ourKind = regexp.MustCompile(`\.(go|lua|md|py|sh|mod)$`)
	aTarget = regexp.MustCompile("(?m)(?:^|`)make ([a-z]+)")
	aTest   = regexp.MustCompile("`((?:Test|Rule_|Protocol_|Quarantine_|Commit_)[A-Za-z0-9]+)`")
)

// strayPaths returns the paths that a document names and that exist does not know:
// targets of links, and code that ends like a source file or begins with a directory of
// the repository.
func strayPaths(file, text string, exists func(string) bool) (stray []string) {
	for _, found := range linked.FindAllStringSubmatch(blocks.ReplaceAllString(text, ""), -1) {
		target := filepath.ToSlash(filepath.Join(filepath.Dir(file), found[1]))
		if !strings.Contains(found[1], "://") && !exists(target) {
			stray = append(stray, found[1])
		}
	}
	for _, found := range inCode.FindAllStringSubmatch(text, -1) {
		top, _, nested := strings.Cut(found[1], "/")
		ours := ourKind.MatchString(found[1]) || nested && exists(top) && top != "bin"
		if aPath.MatchString(found[1]) && ours && !exists(found[1]) {
			stray = append(stray, found[1])
		}
	}
	return stray
}

// missing returns what a pattern finds in a document and known does not have.
func missing(pattern *regexp.Regexp, text string, known func(string) bool) (missing []string) {
	for _, found := range pattern.FindAllStringSubmatch(text, -1) {
		if !known(found[1]) {
			missing = append(missing, found[1])
		}
	}
	return missing
}

func TestDocumentsNameWhatExists(t *testing.T) {
	t.Parallel()
	makefile, tests := read(t, "Makefile"), testSources(t)
	for file, text := range documents(t) {
		for _, path := range strayPaths(file, text, exists) {
			t.Errorf("%s names %s, which does not exist", file, path)
		}
		for _, target := range missing(aTarget, text, func(name string) bool { return strings.Contains(makefile, "\n"+name+": ") }) {
			t.Errorf("%s names make %s, which does not exist", file, target)
		}
		for _, test := range missing(aTest, text, func(name string) bool { return slices.Contains(tests, name) }) {
			t.Errorf("%s names %s, which does not exist", file, test)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(filepath.FromSlash(path))
	return err == nil
}

// testSources returns the names of all tests of the module.
func testSources(t *testing.T) (names []string) {
	t.Helper()
	named := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(|\{"([A-Z][a-z]+_[A-Za-z0-9]+)", `)
	walkTests(t, func(file string) {
		for _, found := range named.FindAllStringSubmatch(read(t, file), -1) {
			names = append(names, found[1]+found[2])
		}
	})
	return names
}

// walkTests visits the files of all tests of the module.
func walkTests(t *testing.T, visit func(file string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		visit(file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDocumentsAreFoundOut(t *testing.T) {
	t.Parallel()
	text := "see [there](gone.md), `queue/gone.go`, `gone.lua` and [here](README.md#redis), `queue/`, `a/b`, `node.yaml`\n" +
		"make gone\n`make test` `TestGone` `Rule_Gone`\n"
	stray := strayPaths("README.md", text, func(path string) bool { return path == "queue" || path == "queue/" || path == "README.md" })
	if want := []string{"gone.md", "queue/gone.go", "gone.lua"}; !slices.Equal(stray, want) {
		t.Errorf("stray paths: got %q, want %q", stray, want)
	}
	if got, want := missing(aTarget, text, func(name string) bool { return name == "test" }), []string{"gone"}; !slices.Equal(got, want) {
		t.Errorf("targets: got %q, want %q", got, want)
	}
	if got, want := missing(aTest, text, func(string) bool { return false }), []string{"TestGone", "Rule_Gone"}; !slices.Equal(got, want) {
		t.Errorf("tests: got %q, want %q", got, want)
	}
}

// declared are the names of all metrics that a node or a producer may export.
func declared() (names []string) {
	for _, m := range metrics.Table() {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// The tables of the documents have what a node exports and serves, and nothing else.
func TestTablesAreComplete(t *testing.T) {
	t.Parallel()
	metric := regexp.MustCompile("`(lowkiq_[a-z_]+)`")
	exported := declared()
	if documented := all(metric, read(t, "docs/operations.md")); len(exported) < 20 || !slices.Equal(documented, exported) {
		t.Errorf("metrics: docs/operations.md has %q, the table of package metrics %q", documented, exported)
	}
	for file, text := range documents(t) {
		for _, name := range all(metric, text) {
			if !slices.Contains(exported, name) {
				t.Errorf("%s names the metric %s, which does not exist", file, name)
			}
		}
	}
	page, served := read(t, "docs/api.md"), routes(read(t, "web/openapi.yaml"))
	if len(served) < 20 {
		t.Errorf("got %d routes, want more: the test looks in the wrong place", len(served))
	}
	for _, route := range served {
		if !strings.Contains(page, "| `"+route+"` |") {
			t.Errorf("docs/api.md lacks the route %s", route)
		}
	}
}

// brokenLinks returns the links of a document to a heading that is not there, or to a place in a
// file that has no headings, as to a line of code. That the files are there is strayPaths'
// business.
func brokenLinks(file, text string, texts map[string]string) (broken []string) {
	for _, found := range regexp.MustCompile(`\]\(([^)#\s]*)#([^)]*)\)`).FindAllStringSubmatch(text, -1) {
		target := file
		if found[1] != "" {
			target = filepath.ToSlash(filepath.Join(filepath.Dir(file), found[1]))
		}
		if !strings.Contains(found[1], "://") && !slices.Contains(anchors(texts[target]), found[2]) {
			broken = append(broken, found[1]+"#"+found[2])
		}
	}
	return broken
}

// anchors are what GitHub calls the headings of a document.
func anchors(markdown string) (names []string) {
	markdown = regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(markdown, "")
	for _, found := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(markdown, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(found[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

func TestLinksLeadToHeadings(t *testing.T) {
	t.Parallel()
	texts := documents(t)
	for file, text := range texts {
		for _, link := range brokenLinks(file, text, texts) {
			t.Errorf("%s links to %s, which is no heading", file, link)
		}
	}
	texts = map[string]string{"docs/a.md": "# A b: `c`, d\n```\n# no\n```\n", "README.md": "# Top\n"}
	text := "[1](#top) [2](#gone) [3](docs/a.md#a-b-c-d) [4](docs/a.md#no) [5](https://x#y) [6](job.go#L9)"
	if got, want := brokenLinks("README.md", text, texts), []string{"#gone", "docs/a.md#no", "job.go#L9"}; !slices.Equal(got, want) {
		t.Errorf("broken links: got %q, want %q", got, want)
	}
}

// all returns what a pattern finds, sorted, each once.
func all(pattern *regexp.Regexp, text string) (found []string) {
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// routes are the requests of openapi.yaml, which a test of package web holds against its table.
func routes(openapi string) (patterns []string) {
	path := ""
	for _, line := range regexp.MustCompile(`(?m)^  (/[^:]*):$|^    (get|post):$`).FindAllStringSubmatch(openapi, -1) {
		if line[1] != "" {
			path = strings.TrimSuffix(line[1], "{name}")
			continue
		}
		patterns = append(patterns, strings.ToUpper(line[2])+" "+path)
	}
	return patterns
}
