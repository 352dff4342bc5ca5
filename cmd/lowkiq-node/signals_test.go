//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/remote"
)

const stuckNode = `
queues:
  orders:
    shards: 1
    handler: {exec: [sh, -c, "read -r batch; touch %s; exec sleep 100"]}
`

// The second SIGINT ends a node at once, whatever its handlers do.
func TestSecondInterrupt(t *testing.T) {
	t.Parallel()
	redis, address := redistest.Start(t), redistest.Addresses(t, 1)[0]
	file, busy := filepath.Join(t.TempDir(), "node.yaml"), filepath.Join(t.TempDir(), "busy")
	if err := os.WriteFile(file, fmt.Appendf(nil, stuckNode, busy), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("lowkiq-node", "run", "--config", file, "--redis", redis.URL(), "--http", address)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	node, err := remote.New(address, "")
	if err != nil {
		t.Fatal(err)
	}
	says(t, node, "/api/v1/queues", `"orders"`)
	if _, err := node.PostRaw(t.Context(), "/api/v1/queues/orders/jobs", "application/json", []byte(`{"id":"a"}`)); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { _, err := os.Stat(busy); return err == nil }) {
		t.Fatal("the handler was given no batch")
	}
	interrupt(t, cmd)
	says(t, node, "/api/v1/status", `"draining"`)
	interrupt(t, cmd)
	cmd.Wait() //nolint:errcheck // the exit code says it
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted {
		t.Errorf("got exit code %d, want %d", got, exitInterrupted)
	}
}

func interrupt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

// says waits until the node's answer contains the text.
func says(t *testing.T, node *remote.Client, path, text string) {
	t.Helper()
	var answer []byte
	var err error
	if !eventually(func() bool {
		answer, err = node.Get(t.Context(), path)
		return err == nil && strings.Contains(string(answer), text)
	}) {
		t.Fatalf("%s: got %s (%v), want %s", path, answer, errors.Unwrap(err), text)
	}
}
