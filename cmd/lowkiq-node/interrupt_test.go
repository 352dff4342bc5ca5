//go:build unix

package main

import (
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/redistest"
)

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
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted || stderr.String() != "lowkiq-node: interrupted\n" {
		t.Errorf("got exit code %d and %q, want %d and interrupted", got, stderr.String(), exitInterrupted)
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
	giveUp := time.After(patience)
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
