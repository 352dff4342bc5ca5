//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/signals"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/network/remote"
	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// started is a node process of a test.
type started struct {
	*remote.Client
	t   *testing.T
	cmd *exec.Cmd
}

// startNode runs lowkiq-node with a configuration file.
func startNode(t *testing.T, redis *redistest.Server, stderr *os.File, config string) *started {
	t.Helper()
	address, file := redistest.Addresses(t, 1)[0], filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("lowkiq-node", "run", "--config", file, "--redis", redis.URL(), "--http", address)
	cmd.Env, cmd.Stderr = nodebin.Env(), stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() }) //nolint:errcheck // it may have ended
	node, err := remote.New(address, "")
	if err != nil {
		t.Fatal(err)
	}
	s := &started{node, t, cmd}
	says(t, node, "/api/v1/status", `"live"`)
	return s
}

func (s *started) push(queue, id string) {
	s.t.Helper()
	if _, err := s.PostRaw(s.t.Context(), "/api/v1/queues/"+queue+"/jobs", "application/json", fmt.Appendf(nil, `{"id":%q}`, id)); err != nil {
		s.t.Fatal(err)
	}
}

// ends waits for the process's end within a limit, and returns its status.
func (s *started) ends(within time.Duration) string {
	s.t.Helper()
	timer := time.AfterFunc(within, func() { s.cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	defer timer.Stop()
	s.cmd.Wait() //nolint:errcheck // the status says it
	return s.cmd.ProcessState.String()
}

// fullPipe is a pipe that nobody reads. It is closed with the test.
func fullPipe(t *testing.T) (end *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return w
}

const noisyNode = `
node: {shutdown_timeout: 5s, ttl: 15s}
queues:
  noisy:
    shards: 1
    handler: {exec: [sh, -c, 'while read -r batch; do yes "a line that nobody reads, as the log stands still" | head -c 1000000 >&2; echo "{\"ok\":true}"; done']}
  bad:
    shards: 1
    handler: {exec: [sh, -c, 'while read -r batch; do echo "{\"ok\":false,\"error\":\"no\"}"; done']}
  good:
    shards: 4
    handler: {exec: [sh, -c, 'while read -r batch; do echo "{\"ok\":true}"; done']}
`

// stderr is a pipe that nobody reads, and a handler writes more to its own than fits: all jobs are handled
// nonetheless, status and a metric count the lines that were dropped, and SIGTERM drains.
func TestNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	node := startNode(t, redistest.Start(t), fullPipe(t), noisyNode)
	node.push("noisy", "a")
	says(t, node.Client, "/api/v1/queues/noisy", `"processed":1,`)
	for i := range 20 {
		node.push("good", fmt.Sprint(i))
		node.push("bad", fmt.Sprint(i))
	}
	node.push("noisy", "b")
	says(t, node.Client, "/api/v1/queues/noisy", `"processed":2,`)
	says(t, node.Client, "/api/v1/queues/good", `"processed":20,`)
	says(t, node.Client, "/api/v1/queues/bad", `"failed":20,`)
	says(t, node.Client, "/api/v1/status", " lines of its log: ")
	metrics, err := node.Get(t.Context(), "/metrics")
	if err != nil || !regexp.MustCompile(`(?m)^lowkiq_log_dropped_lines_total [1-9]`).Match(metrics) {
		t.Errorf("the metrics do not count dropped lines: %v", err)
	}
	node.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // its end shows it
	if got := node.ends(clitest.Patience); got != "exit status 0" {
		t.Errorf("after SIGTERM: got %s, want exit status 0", got)
	}
}

const patientNode = `
queues:
  orders:
    shards: 1
    handler: {exec: [sh, -c, 'read -r batch; touch %[1]s/busy; while [ ! -e %[1]s/go ]; do sleep 0.01; done; echo "{\"ok\":true}"; read -r end']}
`

// What people and the system send by habit drains: the job at hand is finished. SIGTERM also drains
// if the other end of stderr is closed, SIGHUP is nothing to a node that was started with nohup.
func TestSignalsThatDrain(t *testing.T) {
	t.Parallel()
	// Tests under nohup ignore SIGHUP, and so would the processes that they start.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	t.Cleanup(func() { signal.Reset(syscall.SIGHUP) })
	redis := redistest.Start(t)
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		closed bool
	}{
		{"SIGHUP", syscall.SIGHUP, false}, {"SIGQUIT", syscall.SIGQUIT, false}, {"SIGXCPU", syscall.SIGXCPU, false}, {"closed", syscall.SIGTERM, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if c.closed {
				r.Close()
			} else {
				go io.Copy(io.Discard, r) //nolint:errcheck // the log
				defer r.Close()
			}
			dir := t.TempDir()
			node := startNode(t, redis, w, "cluster: "+c.name+fmt.Sprintf(patientNode, dir))
			node.push("orders", "a")
			if !clitest.Eventually(func() bool { _, err := os.Stat(filepath.Join(dir, "busy")); return err == nil }) {
				t.Fatal("the handler was given no batch")
			}
			if c.closed {
				says(t, node.Client, "/api/v1/status", " lines of its log: ")
			}
			node.cmd.Process.Signal(c.signal) //nolint:errcheck // its end shows it
			says(t, node.Client, "/api/v1/status", `"draining"`)
			if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := node.ends(clitest.Patience); got != "exit status 0" {
				t.Errorf("got %s, want exit status 0", got)
			}
		})
	}
}

// underHangs is the environment of a process of this test binary that does nothing when it is to stop.
const underHangs = "CLI_TEST_HANGS"

// hang ends by the last resort, if at all: its stacks go to a pipe that nobody reads.
func hang() {
	ctx, _ := signals.UntilStopped(blocked{}, 300*time.Millisecond)
	fmt.Println("ready")
	<-ctx.Done()
	select {}
}

// blocked is a pipe that nobody reads.
type blocked struct{}

func (blocked) Write([]byte) (int, error) { select {} }

// A process that is told to stop ends in time, whatever hangs. Signals that it gets before change nothing.
func TestLastResort(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), clitest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = nodebin.Env(underHangs + "=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTTIN, syscall.SIGTTIN, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGTERM} {
		cmd.Process.Signal(sig) //nolint:errcheck // its end shows it
	}
	cmd.Wait() //nolint:errcheck // the exit code says it
	if got := cmd.ProcessState.ExitCode(); got != exit.Stuck {
		t.Errorf("got exit code %d, want %d", got, exit.Stuck)
	}
}

const frozenNode = `
node: {shutdown_timeout: 100ms, ttl: 15s}
queues:
  orders:
    shards: 1
    handler: {exec: [sh, -c, 'read -r batch; echo "{\"ok\":true}"; read -r end']}
`

// SIGTERM ends a node 5 s after shutdown_timeout, also if Redis does not answer and nobody reads the log.
func TestStopWhileAllHangs(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	node := startNode(t, redis, fullPipe(t), frozenNode)
	redis.Pause()
	defer redis.Resume()
	node.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // its end shows it
	if got := node.ends(clitest.Patience / 2); got != "exit status 0" && got != "exit status 75" {
		t.Errorf("got %s, want an end by itself", got)
	}
}

// No two meanings share an exit code, and none is what Go ends a program with that crashes.
func TestExitCodesAreApart(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{2: true}
	for _, code := range []int{exit.OK, exit.Failed, exit.Unreachable, exit.Faults, exit.Buried, exit.Pending, exit.Usage, exit.Stuck,
		exit.Interrupted} {
		if seen[code] {
			t.Errorf("exit code %d has two meanings", code)
		}
		seen[code] = true
		if !strings.Contains(exitHelp, fmt.Sprintf("\n    %-4d ", code)) {
			t.Errorf("the help does not say what exit code %d means", code)
		}
	}
}

// The last words of a node do not wait for who reads them.
func TestLastWords(t *testing.T) {
	t.Parallel()
	w := fullPipe(t)
	w.Write(bytes.Repeat([]byte("x"), 64<<10)) //nolint:errcheck // as much as fits
	if err := reportEnd(&terminal.Streams{Err: w}, exit.Fail(exit.Failed, "no")); exitCode(err) != exit.Failed || err.Error() != "" {
		t.Errorf("got %v with exit code %d, want no text and %d", err, exitCode(err), exit.Failed)
	}
}
