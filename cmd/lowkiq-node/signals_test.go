//go:build unix

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/internal/network/remote"
	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
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
	cmd.Env = nodebin.Env()
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
	if !clitest.Eventually(func() bool { _, err := os.Stat(busy); return err == nil }) {
		t.Fatal("the handler was given no batch")
	}
	interrupt(t, cmd)
	says(t, node, "/api/v1/status", `"draining"`)
	interrupt(t, cmd)
	cmd.Wait() //nolint:errcheck // the exit code says it
	if got := cmd.ProcessState.ExitCode(); got != exit.Interrupted {
		t.Errorf("got exit code %d, want %d", got, exit.Interrupted)
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
	if !clitest.Eventually(func() bool {
		answer, err = node.Get(t.Context(), path)
		return err == nil && strings.Contains(string(answer), text)
	}) {
		t.Fatalf("%s: got %s (%v), want %s", path, answer, errors.Unwrap(err), text)
	}
}

// A command that waits for a node is interrupted, which is no fault of the node.
func TestAskingInterrupted(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var stderr strings.Builder
	cmd := exec.Command("lowkiq-node", "status", "--node", "http://"+silent.Addr().String())
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := silent.Accept() // it asks now
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	interrupt(t, cmd)
	cmd.Wait() //nolint:errcheck // the exit code says it
	if got := cmd.ProcessState.ExitCode(); got != exit.Interrupted || stderr.String() != "lowkiq-node: interrupted\n" {
		t.Errorf("got exit code %d and %q, want %d and interrupted", got, stderr.String(), exit.Interrupted)
	}
}

// A push that cannot heed the first interrupt, here because it opens a pipe that nobody writes
// into, ends at the second.
func TestPushInterruptedTwice(t *testing.T) {
	t.Parallel()
	redis, fifo := redistest.Start(t), filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("lowkiq-node", "push", "--redis", redis.URL(), "--queue", "orders", "--shards", "1", fifo)
	// Tests in the background of a shell ignore interrupts, and so would what they start, but for
	// what they do not ignore at that moment.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	err := cmd.Start()
	signal.Reset(os.Interrupt)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	giveUp := time.After(clitest.Patience)
	for {
		select {
		case <-ended:
			return
		case <-giveUp:
			cmd.Process.Kill() //nolint:errcheck // the test has failed
			<-ended
			t.Fatal("it goes on, however often it is interrupted")
		case <-time.After(50 * time.Millisecond):
			cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it may have ended
		}
	}
}
