//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// pushing is a lowkiq-node push whose standard input the test writes.
type pushing struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr bytes.Buffer
	stdout bytes.Buffer
}

func pushCommandOf(redis string, args ...string) *pushing {
	p := &pushing{cmd: exec.Command("lowkiq-node", append([]string{"push", "--redis", redis, "--queue", "orders"}, args...)...)}
	p.cmd.Env = nodebin.Env()
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	return p
}

func (p *pushing) start(t *testing.T) {
	t.Helper()
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill() })
}

func startPush(t *testing.T, redis string, args ...string) *pushing {
	t.Helper()
	p := pushCommandOf(redis, args...)
	p.start(t)
	return p
}

// write writes lines in one piece: between two the process might lose its patience.
func (p *pushing) write(t *testing.T, from, to int) {
	t.Helper()
	var lines strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&lines, "{\"id\":\"%d\"}\n", i)
	}
	if _, err := io.WriteString(p.in, lines.String()); err != nil {
		t.Fatal(err)
	}
}

// end waits and returns the exit code.
func (p *pushing) end(t *testing.T) int {
	t.Helper()
	p.in.Close()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// waiting waits until n jobs are in the queue.
func waiting(t *testing.T, redis string, n int) {
	t.Helper()
	client, err := protocol.Open(protocol.Config{Redis: redis})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got := -1
	if !clitest.Eventually(func() bool {
		if q, err := client.Queue(context.Background(), "orders"); err == nil {
			if stats, err := q.Stats(t.Context()); err == nil {
				got = stats.Jobs.Ready
			}
		}
		return got == n
	}) {
		t.Fatalf("got %d jobs waiting, want %d", got, n)
	}
}

// Redis is lost in the middle of a stream and stays away: the push says where to go on,
// and going on there loses nothing.
func TestPushOutage(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, redistest.Durable...)
	p := startPush(t, redis.URL(), "--shards", "4", "--patience", "1s")
	p.write(t, 1, 100)
	waiting(t, redis.URL(), 100)
	redis.Kill()
	p.write(t, 101, 200)
	if code := p.end(t); code != exit.Unreachable || !strings.Contains(p.stderr.String(), "resume with --skip 100\n") {
		t.Fatalf("got exit code %d and %q, want %d and resume with --skip 100", code, p.stderr.String(), exit.Unreachable)
	}
	if got, want := p.stdout.String(), `{"pushed":100,"merged":0,"refused":0,"lines":100}`+"\n"; got != want {
		t.Errorf("stdout: got %s, want %s", got, want)
	}
	redis.Restart()
	p = startPush(t, redis.URL(), "--skip", "100")
	p.write(t, 1, 200)
	if code := p.end(t); code != exit.OK {
		t.Fatalf("got exit code %d and %q, want 0", code, p.stderr.String())
	}
	waiting(t, redis.URL(), 200)
}

// Redis is lost and comes back in time: nobody needs to do anything.
func TestPushSurvivesRestart(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, redistest.Durable...)
	p := startPush(t, redis.URL(), "--shards", "4")
	p.write(t, 1, 100)
	waiting(t, redis.URL(), 100)
	redis.Kill()
	p.write(t, 101, 200)
	redis.Restart()
	if code := p.end(t); code != exit.OK {
		t.Fatalf("got exit code %d and %q, want 0", code, p.stderr.String())
	}
	waiting(t, redis.URL(), 200)
}

// Interrupted by Ctrl-C, the push says where to go on.
func TestPushInterrupted(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startPush(t, redis.URL(), "--shards", "4")
	p.write(t, 1, 10)
	waiting(t, redis.URL(), 10)
	p.write(t, 11, 11) // it takes this one when it knows that Redis has the others
	waiting(t, redis.URL(), 11)
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	// Its standard input stays open: it must not wait for that.
	err := p.cmd.Wait()
	said := p.stderr.String()
	told := strings.Contains(said, "resume with --skip 10\n") || strings.Contains(said, "resume with --skip 11\n")
	if code := p.cmd.ProcessState.ExitCode(); code != exit.Interrupted || !told {
		t.Errorf("got %v, exit code %d and %q, want %d and resume with --skip 10 or 11", err, code, said, exit.Interrupted)
	}
}

// Redis is not there yet: the push says so, and waits for it.
func TestPushWaitsForRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, redistest.Durable...)
	redis.Kill()
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	p := pushCommandOf(redis.URL(), "--shards", "4", "--patience", clitest.Patience.String(), "--id", "a")
	p.cmd.Stderr = stderr
	p.start(t)
	said := func() string { text, _ := os.ReadFile(stderr.Name()); return string(text) }
	if !clitest.Eventually(func() bool { return strings.Contains(said(), "redis is away, trying for 1m30s: ") }) {
		t.Fatalf("stderr: got %q, want it to say that Redis is away", said())
	}
	redis.Restart()
	if code := p.end(t); code != exit.OK {
		t.Fatalf("got exit code %d and %q, want it to be pushed", code, said())
	}
	if n := strings.Count(said(), "\n"); n != 1 {
		t.Errorf("got %d lines on stderr, want 1: %q", n, said())
	}
	waiting(t, redis.URL(), 1)
}

// TestPushToFullRedis checks that a push says that a full Redis refuses it, and not that Redis is away.
func TestPushToFullRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	p := startPush(t, redis.URL(), "--shards", "4", "--patience", "10ms", "--id", "a")
	code, said := p.end(t), p.stderr.String()
	if code != exit.Unreachable || !strings.HasPrefix(said, "lowkiq-node: redis refuses pushes, trying for 10ms: ") || !strings.Contains(said, "is out of memory") {
		t.Errorf("got exit code %d and %q, want %d and that Redis refuses", code, said, exit.Unreachable)
	}
}
