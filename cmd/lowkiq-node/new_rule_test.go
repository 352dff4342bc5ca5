package main

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/network/remote"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

const exampleRule = "	ZZExample int `rule:\"zz_example\" min:\"1\" max:\"9\" default:\"3\" help:\"an example\"`\n"

// TestNewRule adds a row to the table of rules, in a copy of the source, and finds the rule in files, commands, the
// API, the pages and the documents. So a rule is declared in one place.
func TestNewRule(t *testing.T) { //nolint:paralleltest // its build would slow the processes of other tests down
	tier.All(t)
	source := t.TempDir()
	copySource(t, "../..", source)
	table := filepath.Join(source, "queue", "rules", "table.go")
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(text), "type Rules struct {\n")
	if !found {
		t.Fatal("queue/rules/table.go has no type Rules")
	}
	if err := os.WriteFile(table, []byte(before+"type Rules struct {\n"+exampleRule+after), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(want string, name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0")
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), want) {
			t.Errorf("%s %q: got %s, want %q in it", name, args, out, want)
		}
	}
	run("", "go", "build", "-trimpath", "-o", "lowkiq-node", "./cmd/lowkiq-node")
	node := filepath.Join(source, "lowkiq-node")

	run("ok", "go", "test", "-vet=off", "./queue/rules", "-run", "TestDocumented", "-update")
	page, err := os.ReadFile(filepath.Join(source, "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "\n### zz_example\n\nAn example.\n\n- Value: a whole number, 1 to 9\n- Default: 3\n") {
		t.Error("docs/configuration.md has no section about zz_example")
	}

	config := func(value int) string {
		file := filepath.Join(t.TempDir(), "node.yaml")
		text := fmt.Sprintf("queues:\n  orders:\n    shards: 1\n    zz_example: %d\n    handler: {exec: [cat]}\n", value)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	run("node.yaml:4:17: queues.orders.zz_example: want a whole number, 1 to 9, got 12", node, "run", "--config", config(12))

	address := redistest.Addresses(t, 1)[0]
	cmd := exec.Command(node, "run", "--config", config(5), "--redis", redistest.Start(t).URL(), "--http", address)
	cmd.Env = nodebin.Env()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	client, err := remote.New(address, "")
	if err != nil {
		t.Fatal(err)
	}
	says(t, client, "/api/v1/queues", `"orders"`)
	says(t, client, "/api/v1/queues/orders/rules", `"key":"zz_example","value":5`)
	says(t, client, "/queues/orders/rules", "zz_example")
	run("zz_example", node, "rules", "orders", "--node", address)
	run("zz_example: want a whole number, 1 to 9, got 10", node, "rules", "orders", "--node", address, "--set", "zz_example=10")
	run(`"key":"zz_example","value":7`, node, "rules", "orders", "--node", address, "--set", "zz_example=7", "-o", "json")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://"+address+"/api/v1/queues/orders/rules", strings.NewReader(`{"set":{"zz_example":8}}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("If-Match", `"1"`)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("PATCH: got %s", answer.Status)
	}
	says(t, client, "/api/v1/queues/orders/rules", `"key":"zz_example","value":8`)
}

// copySource copies the files of a checkout that a build needs.
func copySource(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != from && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist" || name == "artifacts") {
			return filepath.SkipDir
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), text, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}
