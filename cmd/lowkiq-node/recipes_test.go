//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// step is a block of a page: a configuration, with which a node starts, or commands, with what they print.
type step struct{ configuration, commands, output string }

func (s step) lines() []string {
	return strings.Split(strings.TrimSpace(strings.ReplaceAll(s.commands, "\\\n", "")), "\n")
}

var blocksOfSteps = regexp.MustCompile("(?ms)^```(yaml|sh)\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?")

func stepsOf(markdown string) (steps []step) {
	for _, found := range blocksOfSteps.FindAllStringSubmatch(markdown, -1) {
		if found[1] == "yaml" {
			steps = append(steps, step{configuration: found[2]})
		} else {
			steps = append(steps, step{commands: found[2], output: found[3]})
		}
	}
	return steps
}

var (
	tokens  = regexp.MustCompile(`"token":"[A-Za-z0-9_-]{22}"`)
	clients = regexp.MustCompile(`from 127\.0\.0\.1:\d+`)
	leases  = regexp.MustCompile(`/[0-9A-HJKMNP-TV-Z]{26}`)
	times   = regexp.MustCompile(`20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ`)
	numbers = regexp.MustCompile(`(\d+(\.\d+)?(ns|µs|ms|s|m|h))+|\d+(\.\d+)?`)
	blanks  = regexp.MustCompile(` +`)
)

// shape is what two runs of the same commands have in common.
func shape(output string) string {
	output = tokens.ReplaceAllString(output, `"token":"T"`)
	output = clients.ReplaceAllString(output, "from CLIENT")
	output = leases.ReplaceAllString(output, "/LEASE")
	output = times.ReplaceAllString(output, "TIME")
	output = numbers.ReplaceAllString(output, "N")
	return strings.TrimSpace(blanks.ReplaceAllString(output, " "))
}

// alike reports whether commands have printed what a page shows, in which a line ... stands for any lines.
func alike(got, want string) bool {
	pattern := regexp.QuoteMeta("\n" + shape(want) + "\n")
	pattern = strings.ReplaceAll(pattern, "\n\\.\\.\\.\n", "\n(?s:.*\n)?")
	return regexp.MustCompile("^" + pattern + "$").MatchString("\n" + shape(got) + "\n")
}

// The commands of these pages do what the pages say: they are run against nodes with the configurations that
// stand above them.
func TestPagesRun(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: python3 is not on PATH, so the commands of docs/concepts.md and docs/recipes.md were NOT run; install python3 to run them")
	}
	for _, page := range []string{"concepts.md", "recipes.md"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			walkPage(t, page, 10)
		})
	}
}

// The pages of the clients are run as well.
func TestClientPagesRun(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	for language, program := range map[string]string{"python": "python3", "ruby": "ruby", "node": "node"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			page := "clients/" + language + "/README.md"
			clitest.Program(t, program, page)
			walkPage(t, page, 3)
		})
	}
}

// walkPage runs the commands of a page. Each configuration has a node and a test of its own. The page must have at least
// atLeast commands.
func walkPage(t *testing.T, page string, atLeast int) {
	t.Helper()
	steps, commands := stepsOf(clitest.Documents(t)[page]), 0
	if len(steps) > 0 && steps[0].configuration == "" {
		t.Fatalf("%s has commands before the first configuration: %s", page, steps[0].commands)
	}
	for number := 1; len(steps) > 0; number++ {
		configuration, of := steps[0].configuration, steps[1:]
		if next := slices.IndexFunc(of, func(s step) bool { return s.configuration != "" }); next >= 0 {
			of = of[:next]
		}
		steps = steps[1+len(of):]
		for _, s := range of {
			commands += len(s.lines())
		}
		t.Run(fmt.Sprint("node-", number), func(t *testing.T) {
			t.Parallel()
			node := walk(t, configuration)
			for _, s := range of {
				node.do(s)
			}
			node.end()
		})
	}
	if commands < atLeast {
		t.Errorf("got %d commands, want at least %d: the test looks in the wrong place", commands, atLeast)
	}
}

// walked is a node with a configuration of a page.
type walked struct {
	t       *testing.T
	dir     string
	http    string // address of the API
	env     []string
	node    *exec.Cmd
	ended   chan error
	log     bytes.Buffer // of the node; to be read once it has ended
	follows []*followed
}

// followed is a command that goes on until it is told to end.
type followed struct {
	line, file, want string
	command          *exec.Cmd
}

func walk(t *testing.T, configuration string) *walked {
	redis, addresses := redistest.Start(t), redistest.Addresses(t, 3) // HTTP, gossip, and Raft one port above gossip
	w := &walked{t: t, dir: t.TempDir(), http: addresses[0], ended: make(chan error, 1)}
	for _, name := range []string{"examples", "clients"} {
		target, err := filepath.Abs("../../" + name)
		if err == nil {
			err = os.Symlink(target, filepath.Join(w.dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(w.dir, "node.yaml"), []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	// No page is about a node that is late; on a machine that does much else one may be, by more than a usual lease.
	w.env = nodebin.Env("LOWKIQ_REDIS="+redis.URL(), "LOWKIQ_URL=http://"+w.http, "LOWKIQ_NODE_TTL=1m")
	w.node = w.command("exec lowkiq-node run --config node.yaml --name n1 --http " + w.http + " --bind " + addresses[1])
	w.node.Stderr = &w.log
	if err := w.node.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { w.ended <- w.node.Wait() }()
	t.Cleanup(func() {
		_ = w.node.Process.Kill() // unless it has ended
		<-w.ended
	})
	if !clitest.Eventually(func() bool {
		return len(w.ended) > 0 || clitest.Get(w.http, "/readyz") != "" && strings.Contains(clitest.Get(w.http, "/api/v1/shards"), `"assigned":"n1","owner":"n1/`)
	}) || len(w.ended) > 0 {
		_ = w.node.Process.Kill()
		err := <-w.ended
		w.ended <- err
		t.Fatalf("no node with this configuration:\n%s\n%v\n%s", configuration, err, w.log.String())
	}
	return w
}

func (w *walked) command(line string) *exec.Cmd {
	command := exec.Command("sh", "-c", line)
	command.Dir, command.Env = w.dir, w.env
	return command
}

// do runs commands.
func (w *walked) do(s step) {
	w.t.Helper()
	w.settle()
	var all strings.Builder
	lines := s.lines()
	if _, err := exec.LookPath("curl"); err != nil && strings.Contains(s.commands, "curl ") {
		w.t.Logf("SKIPPED: curl is not on PATH, so this was NOT run; install curl to run it: %s", s.commands)
		return
	}
	for _, line := range lines {
		if strings.Contains(line, "--follow") {
			if len(lines) > 1 {
				w.t.Fatalf("%q goes on for ever: want a block of its own", line)
			}
			w.follow(line, s.output)
			return
		}
		output, err := w.output(line)
		if err != nil {
			w.t.Error(err)
		}
		all.WriteString(output)
	}
	if s.output != "" && !alike(all.String(), s.output) {
		w.t.Errorf("%s\nprints\n%s\nwant\n%s", s.commands, all.String(), s.output)
	}
}

// settle waits until the node has handled what the steps before have pushed. The next step may list what waits.
func (w *walked) settle() {
	w.t.Helper()
	var stats string
	busy := regexp.MustCompile(`"(ready|in_flight|outgoing)":[1-9]`)
	if !clitest.Eventually(func() bool {
		stats = clitest.Get(w.http, "/api/v1/queues")
		return strings.Contains(stats, `"in_flight":`) && !busy.MatchString(stats)
	}) {
		w.t.Fatalf("jobs wait that the node should have handled: %s", stats)
	}
}

// output runs a line of commands and returns what it prints, with an error that names the line if it fails.
func (w *walked) output(line string) (string, error) {
	command := w.command(line)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return string(output), fmt.Errorf("%s: %w\n%s%s", line, err, output, stderr.String())
	}
	return string(output), nil
}

func (w *walked) follow(line, want string) {
	f := &followed{line: line, want: want, file: filepath.Join(w.dir, "followed")}
	file, err := os.Create(f.file)
	if err != nil {
		w.t.Fatal(err)
	}
	defer file.Close()
	f.command = w.command("exec " + line)
	f.command.Stdout = file
	if err := f.command.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if f.command.ProcessState == nil {
			_ = f.command.Process.Kill()
			_ = f.command.Wait()
		}
	})
	w.follows = append(w.follows, f)
}

// end ends the node, and what follows it once that has printed what it should.
func (w *walked) end() {
	if w == nil {
		return
	}
	w.t.Helper()
	for _, f := range w.follows {
		var got []byte
		if !clitest.Eventually(func() bool {
			got, _ = os.ReadFile(f.file)
			return alike(string(got), f.want)
		}) {
			w.t.Errorf("%s\nprints\n%s\nwant\n%s", f.line, got, f.want)
		}
		_ = f.command.Process.Signal(os.Interrupt)
		_ = f.command.Wait()
	}
	_ = w.node.Process.Signal(syscall.SIGTERM)
	err := <-w.ended
	w.ended <- err
	if err != nil {
		w.t.Errorf("the node ended with %v:\n%s", err, w.log.String())
	}
}

func TestPagesThatLieAreFoundOut(t *testing.T) {
	t.Parallel()
	got := "QUEUE   JOBS\norders     12\nmails       3\n"
	for want, good := range map[string]bool{
		"QUEUE JOBS\norders 7\nmails 8\n": true,
		"QUEUE JOBS\n...\nmails 8\n":      true,
		"...\nmails 8\n":                  true,
		"QUEUE JOBS\norders 7\n":          false,
		"QUEUE JOBS\norders 7\n...\n":     true,
		"QUEUE JOBS\nhistory 7\n...\n":    false,
		"...\norders -\n...\n":            false,
	} {
		if alike(got, want) != good {
			t.Errorf("%q counts as %q: got %t, want %t", got, want, !good, good)
		}
	}
	steps := stepsOf("```yaml\na: 1\n```\n\ntext\n\n```sh\ntrue\n```\n\n```\nout\n```\n\n```sh\nfalse\n```\n")
	if len(steps) != 3 || steps[0].configuration != "a: 1\n" || steps[1].output != "out\n" || steps[2].output != "" {
		t.Errorf("got the steps %+v", steps)
	}
}
