// Command mutations breaks the promises on purpose, one at a time, in a copy of the checkout, and runs the tests of the
// packages concerned. Each run must fail. A mutation that no test finds is a promise that no test keeps.
//
//	go run ./scripts/mutations             all mutations
//	go run ./scripts/mutations -run fence  those with "fence" in their name
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"
)

// mutation is a broken promise.
type mutation struct {
	name string
	// promise is the broken promise, from I1 to I8 of docs/design.md, or a sentence of the documents.
	promise string
	// file is the changed file. old occurs once in it and is replaced by new.
	file, old, new string
	// test are arguments of "go test": the packages that must notice, and possibly a choice of their tests.
	test []string
}

func main() {
	only := flag.String("run", "", "a regular expression that names of mutations must match")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := runMutations(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

func runMutations(ctx context.Context, only string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lowkiq-mutations-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := copyCheckout(ctx, dir); err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MUTATION\tPROMISE\tFOUND BY\tSECONDS")
	missed := 0
	for _, m := range mutations {
		if !wanted.MatchString(m.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s ... ", m.name)
		began := time.Now()
		by, err := m.tryMutation(ctx, dir)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			fmt.Fprintln(os.Stderr, err)
			missed++
			by = "NOT TRIED"
		case by == "":
			missed++
			by = "NONE"
		}
		fmt.Fprintln(os.Stderr, by)
		fmt.Fprintf(table, "%s\t%s\t%s\t%.0f\n", m.name, m.promise, by, time.Since(began).Seconds())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if missed > 0 {
		return fmt.Errorf("%d mutations found by no test", missed)
	}
	return nil
}

// copyCheckout copies the files that git knows, as they are in the working directory.
func copyCheckout(ctx context.Context, dir string) error {
	list, err := exec.CommandContext(ctx, "git", "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for file := range strings.SplitSeq(strings.Trim(string(list), "\x00"), "\x00") {
		info, err := os.Stat(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted and not committed yet
		}
		if err != nil {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, content, info.Mode()); err != nil {
			return err
		}
	}
	return nil
}

// tryMutation breaks the promise in dir. It returns the first test that fails, "" if all pass.
func (m mutation) tryMutation(ctx context.Context, dir string) (string, error) {
	file := filepath.Join(dir, m.file)
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	broken, err := m.apply(string(text))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file, []byte(broken), 0o644); err != nil {
		return "", err
	}
	defer os.WriteFile(file, text, 0o644)
	err = goTest(ctx, dir, append([]string{"-count=1", "-failfast", "-timeout=15m"}, m.test...)...)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err == nil {
		return "", nil
	}
	if strings.Contains(err.Error(), "[build failed]") {
		return "", fmt.Errorf("the mutation does not build: %w", err)
	}
	return firstFailure(err.Error()), nil
}

// apply replaces old, which must occur once in the text, by new.
func (m mutation) apply(text string) (string, error) {
	if n := strings.Count(text, m.old); n != 1 {
		return "", fmt.Errorf("%s has %q %d times, which must occur once; update the mutation", m.file, m.old, n)
	}
	return strings.Replace(text, m.old, m.new, 1), nil
}

// goTest runs "go test" in dir. Its error has the output of the command.
func goTest(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-vet=off"}, args...)...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go test: %w\n%s", err, out.String())
	}
	return nil
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// firstFailure returns the innermost test of the first failure in the output of "go test".
func firstFailure(output string) string {
	found := failure.FindAllStringSubmatch(output, -1)
	if found == nil {
		if strings.Contains(output, "panic: ") {
			return "a panic"
		}
		return "go test"
	}
	name := found[0][1]
	for _, f := range found[1:] {
		if strings.HasPrefix(f[1], name+"/") {
			name = f[1]
		}
	}
	return name
}
