//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Ctrl-C during the demo, and even its own violent death, leave no node process; Ctrl-C
// leaves no file either.
func TestDemoEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		sig  os.Signal
		code int
	}{{"Ctrl-C", os.Interrupt, exitInterrupted}, {"killed", os.Kill, -1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			cmd := exec.Command("lowkiq-node", "demo", "--limit", patience.String())
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "GORACE=atexit_sleep_ms=0")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cmd.Process.Kill() })
			workers := flowing(t, bufio.NewScanner(out))
			if err := cmd.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			cmd.Wait() //nolint:errcheck // the exit code says it
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("got exit code %d, want %d", got, c.code)
			}
			if !eventually(func() bool { return !slices.ContainsFunc(workers, alive) }) {
				t.Fatalf("of the node processes %v some are still there", workers)
			}
			if left, _ := os.ReadDir(tmp); len(left) > 0 && c.sig == os.Interrupt {
				t.Errorf("got %v left behind, want nothing", left)
			}
		})
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

var startedLine = regexp.MustCompile(`^Started n[0-9] as process ([0-9]+)\.$`)

// flowing reads until jobs flow, and returns the node processes.
func flowing(t *testing.T, lines *bufio.Scanner) (pids []int) {
	t.Helper()
	for lines.Scan() {
		if found := startedLine.FindStringSubmatch(lines.Text()); found != nil {
			pid, err := strconv.Atoi(found[1])
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
		if strings.HasPrefix(lines.Text(), "handled ") && len(pids) == 3 {
			return pids
		}
	}
	t.Fatal("the demo ended before jobs flowed through three nodes")
	return nil
}
