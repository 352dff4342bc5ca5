//go:build unix

package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestMain is also the main of the lowkiq-demo that the tests run.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"lowkiq-demo": main})
}

func TestScripts(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0") // or every command ends a second late
			env.Setenv("TMPDIR", filepath.Join(env.WorkDir, ".tmp"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits},
	})
}

// patience is for a machine that does other things as well; what passes does not wait for it.
const patience = 90 * time.Second

// Ctrl-C during the demo, and even its own violent death, leave no node process; Ctrl-C
// leaves no file either.
func TestDemoEnds(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	for _, c := range []struct {
		name string
		sig  os.Signal
		code int
	}{{"Ctrl-C", os.Interrupt, exitInterrupted}, {"killed", os.Kill, -1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			cmd := exec.Command("lowkiq-demo", "--limit", patience.String())
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "GORACE=atexit_sleep_ms=0")
			var complaints bytes.Buffer
			cmd.Stderr = &complaints
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cmd.Process.Kill() })
			workers, said := flowing(t, bufio.NewScanner(out))
			if workers == nil {
				cmd.Wait() //nolint:errcheck // what it complains of says it
				t.Fatalf("the demo ended before jobs flowed through three nodes: it said\n%s\nand complained\n%s", said, &complaints)
			}
			if err := cmd.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			cmd.Wait() //nolint:errcheck // the exit code says it
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("got exit code %d, want %d", got, c.code)
			}
			for deadline := time.Now().Add(patience); slices.ContainsFunc(workers, alive); <-time.After(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("of the node processes %v some are still there", workers)
				}
			}
			if left, _ := os.ReadDir(tmp); len(left) > 0 && c.sig == os.Interrupt {
				t.Errorf("got %v left behind, want nothing", left)
			}
		})
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

var startedLine = regexp.MustCompile(`^Started n[0-9] as process ([0-9]+)\.$`)

// flowing reads until jobs flow, and returns the node processes; nil if the demo ends before, and what it has said.
func flowing(t *testing.T, lines *bufio.Scanner) (pids []int, said string) {
	t.Helper()
	for lines.Scan() {
		said += lines.Text() + "\n"
		if found := startedLine.FindStringSubmatch(lines.Text()); found != nil {
			pid, err := strconv.Atoi(found[1])
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
		if strings.HasPrefix(lines.Text(), "handled ") && len(pids) == 3 {
			return pids, said
		}
	}
	return nil, said
}
