//go:build linux

package handler

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// awaitReady waits until the handler says what is wanted of it.
func awaitReady(t *testing.T, e *Exec, what string, want func(error) bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !want(e.Ready()) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 30 s: %s; it says %v", what, e.Ready())
		}
	}
}

// A command whose processes end before they answer is not ready, and says why without what they wrote. It is
// so again once one answers, or lives for long without a batch.
func TestExecReady(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		dir := t.TempDir()
		script := `if [ ! -e mended ]; then echo secret >&2; exit 4; fi; while IFS= read -r line; do echo '{"ok":true}'; done`
		e := running(t, ExecConfig{Argv: sh(script), Dir: dir, Processes: 2}, func(e *Exec) {
			e.settled = 2 * time.Second
			if answers {
				e.settled = time.Hour
			}
		})
		awaitReady(t, e, "it is not ready", func(err error) bool { return err != nil })
		if got := e.Ready().Error(); got != "sh ends before it answers: exit status 4" {
			t.Errorf("got %q, want the exit status and no stderr", got)
		}
		if err := os.WriteFile(filepath.Join(dir, "mended"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if answers {
			if err := e.Handle(t.Context(), batch()); err != nil {
				t.Fatal(err)
			}
		}
		awaitReady(t, e, "it is ready again", func(err error) bool { return err == nil })
	}
}

// So is one that cannot be started at all.
func TestExecReadyCannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "handler")
	if err := os.WriteFile(path, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	e := running(t, ExecConfig{Argv: []string{path}})
	awaitReady(t, e, "it is not ready", func(err error) bool { return err != nil && strings.Contains(err.Error(), "does not start: ") })
}

// Processes that are killed because their batches were to stop, as after a lost lease, are no sign of a bad command.
func TestExecReadyAfterCancels(t *testing.T) {
	t.Parallel()
	e := running(t, ExecConfig{Argv: loop(`touch "$LOG"; sleep 600`), Env: []string{"LOG=" + filepath.Join(t.TempDir(), "log")}})
	for range badStarts + 1 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := e.Handle(ctx, batch()); err == nil {
			t.Error("got an answer of a process that gives none")
		}
		cancel()
	}
	if err := e.Ready(); err != nil {
		t.Errorf("got %v, want it to be ready", err)
	}
}
