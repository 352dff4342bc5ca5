package lowkiq_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/lowkiq/lowkiq"

// imports maps a package to what its non-test files import. The module's path is
// written as "lowkiq", which keeps its packages apart from the standard library's.
type imports map[string][]string

// add adds what a file of a package imports.
func (graph imports) add(pkg string, syntax *ast.File) {
	for _, spec := range syntax.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		if below, ok := strings.CutPrefix(imported, modulePath); ok {
			imported = "lowkiq" + below
		}
		graph[pkg] = append(graph[pkg], imported)
	}
}

// Names that stand in the rules. "x/..." is x and all below it.
const (
	stdlib  = "the standard library"
	goRedis = "github.com/redis/go-redis/v9/..."
	raft    = "github.com/hashicorp/raft/..."
	gossip  = "github.com/hashicorp/memberlist/..."
)

// only says what a package may import and nothing else.
var only = map[string][]string{
	"lowkiq":      {stdlib},
	"lowkiq/wire": {stdlib, "lowkiq"},
	"lowkiq/lua":  {stdlib},
}

// never says what packages must not import.
var never = map[string][]string{
	"lowkiq/rebalance/...":      {"lowkiq/queue/...", "lowkiq/node/...", "lowkiq/web/...", "net/http/...", goRedis, "lowkiq/internal/store/redisdb"},
	"lowkiq/queue/...":          {raft, gossip, "lowkiq/rebalance/...", "lowkiq/membership/...", "lowkiq/node/..."},
	"lowkiq/queue":              {"lowkiq/queue/browse", "lowkiq/queue/audit", "lowkiq/queue/recurring", "lowkiq/queue/remove", "lowkiq/queue/reshard", "lowkiq/queue/transfer"}, // producers link none of them
	"lowkiq/queue/protocol":     {"lowkiq/queue", "lowkiq/queue/browse", "lowkiq/queue/audit", "lowkiq/queue/recurring", "lowkiq/queue/remove", "lowkiq/queue/reshard", "lowkiq/queue/transfer"},
	"lowkiq/queue/lease":        {"lowkiq/queue", "lowkiq/queue/protocol"},
	"lowkiq/queue/browse":       {"lowkiq/queue", "lowkiq/queue/audit"}, // what looks into shards needs no producer
	"lowkiq/queue/audit":        {"lowkiq/queue"},
	"lowkiq/membership/...":     {raft, goRedis, "lowkiq/internal/store/redisdb", "lowkiq/rebalance/...", "lowkiq/queue/..."},
	"lowkiq/metrics/...":        {"lowkiq/node/..."},
	"lowkiq/node/...":           {"lowkiq/web/...", "lowkiq/status", "lowkiq/queue/browse", "lowkiq/queue/audit", "lowkiq/queue/days", "lowkiq/queue/remove", "lowkiq/queue/transfer"}, // they inspect
	"lowkiq/status":             {"lowkiq/node/...", "lowkiq/web/...", raft, gossip},
	"lowkiq/web/...":            {"lowkiq/node/..."},
	"lowkiq/web/actions":        {"lowkiq/web", "lowkiq/web/auth", "lowkiq/web/dashboard", "net/http/..."}, // callers give it plain values
	"lowkiq/cmd/internal/...":   {"lowkiq/node/...", "lowkiq/web/...", "lowkiq/internal/network/remote"},   // lowkiq-migrate links them
	"lowkiq/cmd/lowkiq-migrate": {"lowkiq/node/...", "lowkiq/web/..."},
	"lowkiq/node/internal/...":  {"lowkiq/node/...", "lowkiq/web/...", goRedis, "lowkiq/internal/store/redisdb"}, // rooms know neither each other nor the node
}

// shelves are the directories of internal/. A package stands on a shelf, or is listed here itself.
var shelves = []string{
	"lowkiq/internal/calendar",
	"lowkiq/internal/model",
	"lowkiq/internal/network/...", // addresses, connections, certificates
	"lowkiq/internal/process/...", // a process of this host: who it is, its memory, its log, its waits
	"lowkiq/internal/store/...",   // what Redis keeps, and how it is reached
	"lowkiq/internal/testing/...", // what tests alone use
	"lowkiq/internal/text/...",    // texts that people write and read
	"lowkiq/internal/verdict",     // what a handler's answer means, to nodes and to lowkiqtest
}

// importers says who alone may import a package; tests always may.
var importers = map[string][]string{
	goRedis:                               {"lowkiq/internal/store/redisdb", "lowkiq/internal/testing/redistest", "lowkiq/internal/testing/clitest", "lowkiq/lab/bench/..."},
	"lowkiq/cmd/...":                      {"lowkiq/cmd/...", "lowkiq/e2e/..."},
	"lowkiq/lab/...":                      {"lowkiq/lab/...", "lowkiq/e2e/...", "lowkiq/deploy/..."}, // what measures and shows is no part of the product
	"lowkiq/migrate/...":                  {"lowkiq/migrate/...", "lowkiq/cmd/lowkiq-migrate"},       // a node links none of it
	"lowkiq/internal/testing/redistest":   {"lowkiq/e2e/..."},
	"lowkiq/internal/testing/clitest":     {}, // tests alone
	"lowkiq/internal/testing/historytest": {}, // the same
	"lowkiq/migrate/rubystates":           {}, // the same
}

// vague names say nothing about what a package answers.
var vague = []string{"util", "utils", "common", "types", "pkg", "helper", "helpers"}

// objections returns every breach of the rules in a graph of imports, in order.
func objections(graph imports) []string {
	var found []string
	for _, pkg := range slices.Sorted(maps.Keys(graph)) {
		for part := range strings.SplitSeq(pkg, "/") {
			if slices.Contains(vague, part) {
				found = append(found, fmt.Sprintf("%s: %q is no name for a package", pkg, part))
			}
		}
		for _, imported := range graph[pkg] {
			if why := objection(pkg, imported); why != "" {
				found = append(found, fmt.Sprintf("%s imports %s: %s", pkg, imported, why))
			}
		}
	}
	return found
}

func objection(pkg, imported string) string {
	if allowed, ok := only[pkg]; ok && !within(imported, allowed) {
		return "it may import only " + strings.Join(allowed, ", ")
	}
	for subject, forbidden := range never {
		if within(pkg, []string{subject}) && within(imported, forbidden) {
			return strings.TrimSuffix(subject, "/...") + " must not know it"
		}
	}
	if within(pkg, []string{"lowkiq/internal/..."}) && !within(pkg, shelves) {
		return "it stands on no shelf: the shelves are " + strings.Join(shelves, ", ")
	}
	for target, allowed := range importers {
		if within(imported, []string{target}) && !within(pkg, allowed) {
			return "only " + strings.Join(allowed, ", ") + " may"
		}
	}
	return ""
}

// within reports whether a package is in one of the sets.
func within(pkg string, sets []string) bool {
	return slices.ContainsFunc(sets, func(set string) bool {
		prefix, below := strings.CutSuffix(set, "/...")
		switch {
		case set == stdlib:
			return isStandard(pkg)
		case below:
			return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
		}
		return pkg == set
	})
}

func isStandard(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return first != "lowkiq" && !strings.Contains(first, ".")
}

// keySpellers returns the files, named by their path in the module, that spell a
// Redis key although they are not the one file that does.
func keySpellers(sources map[string]string) []string {
	var found []string
	for _, file := range slices.Sorted(maps.Keys(sources)) {
		if file != "internal/store/redisdb/keys.go" && strings.Contains(sources[file], "lk:{") {
			found = append(found, file)
		}
	}
	return found
}

// maxNodeLines is the maximum number of lines of code of this module, without comments and empty lines, that
// a program with a node links.
const maxNodeLines = 33_000

// inspectors are for the API, the pages and the commands. Jobs are handled without them.
var inspectors = []string{"lowkiq/status", "lowkiq/queue/browse", "lowkiq/queue/audit", "lowkiq/queue/days", "lowkiq/queue/remove", "lowkiq/queue/transfer"}

func TestNodeLinksLittle(t *testing.T) {
	t.Parallel()
	graph, lines := make(imports), map[string]int{}
	walkSources(t, func(file string, syntax *ast.File) {
		pkg := path.Join("lowkiq", path.Dir(file))
		graph.add(pkg, syntax)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				lines[pkg]++
			}
		}
	})
	linked, sum := map[string]bool{}, 0
	var link func(pkg string)
	link = func(pkg string) {
		if linked[pkg] || lines[pkg] == 0 {
			return
		}
		linked[pkg] = true
		sum += lines[pkg]
		for _, imported := range graph[pkg] {
			link(imported)
		}
	}
	link("lowkiq/node")
	for _, pkg := range inspectors {
		if linked[pkg] {
			t.Errorf("a program with a node links %s", pkg)
		}
	}
	if sum > maxNodeLines {
		t.Errorf("a program with a node links %d lines of code of this module, at most %d are allowed", sum, maxNodeLines)
	}
	t.Logf("a program with a node links %d lines of code of %d packages", sum, len(linked))
}

// walkSources calls visit with every non-test Go file of this module, nested
// modules and testdata aside.
func walkSources(t *testing.T, visit func(file string, syntax *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != "." && isApart(file):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err == nil {
			visit(filepath.ToSlash(file), syntax)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// isApart reports whether go build ./... leaves a directory out.
func isApart(dir string) bool {
	name := filepath.Base(dir)
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

func TestPackagesImportDownwardsOnly(t *testing.T) {
	t.Parallel()
	graph := make(imports)
	walkSources(t, func(file string, syntax *ast.File) {
		graph.add(path.Join("lowkiq", path.Dir(file)), syntax)
	})
	if len(graph["lowkiq"]) == 0 {
		t.Fatal("found no imports of the root package: the test looks in the wrong place")
	}
	for _, objection := range objections(graph) {
		t.Error(objection)
	}
}

func TestOneFileSpellsRedisKeys(t *testing.T) {
	t.Parallel()
	sources := make(map[string]string)
	walkSources(t, func(file string, syntax *ast.File) {
		ast.Inspect(syntax, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				sources[file] += literal.Value + "\n"
			}
			return true
		})
	})
	for _, file := range keySpellers(sources) {
		t.Errorf("%s spells a Redis key; only internal/store/redisdb/keys.go does", file)
	}
}

// Through it code could call go-redis without importing it.
func TestOnlyTestsUseTheirClient(t *testing.T) {
	t.Parallel()
	walkSources(t, func(file string, syntax *ast.File) {
		ast.Inspect(syntax, func(n ast.Node) bool {
			if selector, ok := n.(*ast.SelectorExpr); ok && selector.Sel.Name == "ForTests" {
				t.Errorf("%s: ForTests is called outside of tests", file)
			}
			return true
		})
	})
}

func TestObjections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pkg, imported string
		objected      bool
	}{
		{"lowkiq", "fmt", false},
		{"lowkiq", "lowkiq/wire", true},
		{"lowkiq", "github.com/oklog/run", true},
		{"lowkiq/wire", "lowkiq", false},
		{"lowkiq/wire", "lowkiq/queue", true},
		{"lowkiq/lua", "embed", false},
		{"lowkiq/lua", "lowkiq", true},
		{"lowkiq/rebalance", "github.com/hashicorp/raft", false},
		{"lowkiq/rebalance", "net/http", true},
		{"lowkiq/rebalance", "lowkiq/queue", true},
		{"lowkiq/rebalance", "lowkiq/web", true},
		{"lowkiq/rebalance/deep", "lowkiq/node/handler", true},
		{"lowkiq/rebalance", "github.com/redis/go-redis/v9", true},
		{"lowkiq/internal/store/redisdb", "github.com/redis/go-redis/v9", false},
		{"lowkiq/queue", "github.com/redis/go-redis/v9", true},
		{"lowkiq/queue", "github.com/hashicorp/raft", true},
		{"lowkiq/queue", "github.com/hashicorp/memberlist", true},
		{"lowkiq/queue", "lowkiq/rebalance", true},
		{"lowkiq/queue", "lowkiq/membership", true},
		{"lowkiq/queue", "lowkiq/node/handler", true},
		{"lowkiq/queue", "lowkiq/queue/protocol", false},
		{"lowkiq/queue/protocol", "lowkiq/queue", true},
		{"lowkiq/membership", "github.com/hashicorp/memberlist", false},
		{"lowkiq/membership", "github.com/hashicorp/raft", true},
		{"lowkiq/membership", "lowkiq/queue", true},
		{"lowkiq/membership", "lowkiq/rebalance", true},
		{"lowkiq/node", "lowkiq/queue", false},
		{"lowkiq/node", "github.com/redis/go-redis/v9", true},
		{"lowkiq/node", "lowkiq/node/internal/claims", false},
		{"lowkiq/node/internal/claims", "lowkiq/queue", false},
		{"lowkiq/node/internal/claims", "lowkiq/node/internal/lease", true},
		{"lowkiq/node/internal/claims", "lowkiq/node", true},
		{"lowkiq/node", "lowkiq/cmd/lowkiq-node", true},
		{"lowkiq/node", "lowkiq/internal/testing/redistest", true},
		{"lowkiq/node", "lowkiq/web", true},
		{"lowkiq/node", "lowkiq/web/dashboard", true},
		{"lowkiq/node", "lowkiq/status", true},
		{"lowkiq/node/internal/runner", "lowkiq/queue/browse", true},
		{"lowkiq/status", "lowkiq/web", true},
		{"lowkiq/metrics", "lowkiq/node", true},
		{"lowkiq/web", "lowkiq/node", true},
		{"lowkiq/web", "lowkiq/web/actions", false},
		{"lowkiq/web/actions", "net/http", true},
		{"lowkiq/web/actions", "lowkiq/web/auth", true},
		{"lowkiq/web", "lowkiq/cmd/lowkiq-node", true},
		{"lowkiq/cmd/lowkiq-node", "lowkiq/node", false},
		{"lowkiq/cmd/lowkiq-node", "github.com/redis/go-redis/v9", true},
		{"lowkiq/e2e", "lowkiq/cmd/lowkiq-node", false},
		{"lowkiq/internal/testing/redistest", "github.com/redis/go-redis/v9", false},
		{"lowkiq/node", "lowkiq/lab/judge", true},
		{"lowkiq/e2e", "lowkiq/lab/judge", false},
		{"lowkiq/node", "lowkiq/migrate/movein", true},
		{"lowkiq/cmd/lowkiq-node", "lowkiq/migrate/movein", true},
		{"lowkiq/cmd/internal/connect", "lowkiq/migrate/rubyqueue", true},
		{"lowkiq/cmd/lowkiq-migrate", "lowkiq/migrate/movein", false},
		{"lowkiq/cmd/lowkiq-migrate", "lowkiq/web", true},
		{"lowkiq/cmd/internal/config", "lowkiq/node", true},
		{"lowkiq/cmd/internal/exit", "lowkiq/web", true},
		{"lowkiq/internal/anything", "fmt", true},
		{"lowkiq/internal/text/suggest", "fmt", false},
		{"lowkiq/node/util", "fmt", true},
		{"lowkiq/pkg/queue", "fmt", true},
	} {
		t.Run(c.pkg+" imports "+c.imported, func(t *testing.T) {
			got := objections(imports{c.pkg: {c.imported}})
			if (len(got) > 0) != c.objected {
				t.Errorf("got %q, want an objection: %t", got, c.objected)
			}
		})
	}
}

func TestKeySpellersObjects(t *testing.T) {
	t.Parallel()
	got := keySpellers(map[string]string{
		"internal/store/redisdb/keys.go": `"lk:{"`, "node/runner.go": `"lk:{" + cluster`, "web/api.go": `"look"`,
	})
	if want := []string{"node/runner.go"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
