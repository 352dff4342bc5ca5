//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Ctrl-C during the demo, and even its own violent death, leave no worker process; Ctrl-C
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
			cmd := exec.Command("lowkiq-node", "demo")
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "GORACE=atexit_sleep_ms=0")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cmd.Process.Kill() })
			worker := restarted(t, bufio.NewScanner(out))
			if err := cmd.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			cmd.Wait() //nolint:errcheck // the exit code says it
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("got exit code %d, want %d", got, c.code)
			}
			for deadline := time.Now().Add(patience); syscall.Kill(worker, 0) == nil; {
				if time.Now().After(deadline) {
					t.Fatalf("worker process %d is still there", worker)
				}
				<-time.After(10 * time.Millisecond)
			}
			if left, _ := os.ReadDir(tmp); len(left) > 0 && c.sig == os.Interrupt {
				t.Errorf("got %v left behind, want nothing", left)
			}
		})
	}
}

// restarted reads until the demo names its second worker.
func restarted(t *testing.T, lines *bufio.Scanner) (pid int) {
	t.Helper()
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "Restarted as process "); ok {
			pid, err := strconv.Atoi(strings.TrimSuffix(text, "."))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("the demo ended before it restarted its worker")
	return 0
}
