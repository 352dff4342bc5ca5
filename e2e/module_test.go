//go:build linux

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestModuleOfAUser builds the program of README in a module of its own, with the replace of docs/install.md. The build
// uses no network, only the modules that have built lowkiq.
func TestModuleOfAUser(t *testing.T) {
	tier.All(t)
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	dir := t.TempDir()
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(file("README.md"))
	if blocks == nil {
		t.Fatal("README.md has no program")
	}
	// Without a network go mod tidy cannot look for the tests of other modules, so the sums are those of lowkiq.
	for name, text := range map[string]string{"main.go": blocks[1], "go.sum": file("go.sum")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	redis := redistest.Start(t)
	run := func(program string, args ...string) string {
		t.Helper()
		command := exec.Command(program, args...)
		command.Dir = dir
		command.Env = nodebin.Env("GOPROXY=off", "GOSUMDB=off", "GOWORK=off", "REDIS_URL="+redis.URL())
		var stderr strings.Builder
		command.Stderr = &stderr
		output, err := command.Output()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", program, args, err, stderr.String())
		}
		return string(output)
	}
	for _, line := range regexp.MustCompile(`(?m)^go mod (?:init|edit) .*$`).FindAllString(file("docs/install.md"), -1) {
		run("go", strings.Fields(strings.Replace(line, "../lowkiq", root, 1))[1:]...)
	}
	// Nor can go look for versions, so the requirements are those of lowkiq, too.
	requirements := regexp.MustCompile(`(?ms)^require \(\n.*?^\)\n`).FindAllString(file("go.mod"), -1)
	if requirements == nil {
		t.Fatal("go.mod has no requirements")
	}
	module, err := os.OpenFile(filepath.Join(dir, "go.mod"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = module.WriteString("\n" + strings.Join(requirements, "\n"))
	if err := errors.Join(err, module.Close()); err != nil {
		t.Fatal(err)
	}
	run("go", "build", "-mod=mod", "-o", "jobs", ".")
	if got, want := run(filepath.Join(dir, "jobs")), "order-1: paid\norder-1: shipped\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
