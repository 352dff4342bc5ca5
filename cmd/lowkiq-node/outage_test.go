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

	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
)

// pushing is a lowkiq-node push whose standard input the test writes.
type pushing struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr bytes.Buffer
	stdout bytes.Buffer
}

func startPush(t *testing.T, redis string, args ...string) *pushing {
	t.Helper()
	p := &pushing{cmd: exec.Command("lowkiq-node", append([]string{"push", "--redis", redis, "--queue", "orders"}, args...)...)}
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill() })
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
	client, err := queue.Open(queue.Config{Redis: redis})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got := -1
	if !eventually(func() bool {
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
	redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	p := startPush(t, redis.URL(), "--shards", "4", "--patience", "1s")
	p.write(t, 1, 100)
	waiting(t, redis.URL(), 100)
	redis.Kill()
	p.write(t, 101, 200)
	if code := p.end(t); code != exitUnreachable || !strings.Contains(p.stderr.String(), "resume with --skip 100\n") {
		t.Fatalf("got exit code %d and %q, want %d and resume with --skip 100", code, p.stderr.String(), exitUnreachable)
	}
	if got, want := p.stdout.String(), `{"pushed":100,"merged":0,"refused":0,"lines":100}`+"\n"; got != want {
		t.Errorf("stdout: got %s, want %s", got, want)
	}
	redis.Restart()
	p = startPush(t, redis.URL(), "--skip", "100")
	p.write(t, 1, 200)
	if code := p.end(t); code != exitOK {
		t.Fatalf("got exit code %d and %q, want 0", code, p.stderr.String())
	}
	waiting(t, redis.URL(), 200)
}

// Redis is lost and comes back in time: nobody needs to do anything.
func TestPushSurvivesRestart(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	p := startPush(t, redis.URL(), "--shards", "4")
	p.write(t, 1, 100)
	waiting(t, redis.URL(), 100)
	redis.Kill()
	p.write(t, 101, 200)
	redis.Restart()
	if code := p.end(t); code != exitOK {
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
	if code := p.cmd.ProcessState.ExitCode(); code != exitInterrupted || !told {
		t.Errorf("got %v, exit code %d and %q, want %d and resume with --skip 10 or 11", err, code, said, exitInterrupted)
	}
}

// On a Redis Cluster everything is the same.
func TestPushCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	p := startPush(t, cluster.URL(), "--shards", "16")
	p.write(t, 1, 5000)
	if code := p.end(t); code != exitOK || p.stdout.String() != `{"pushed":5000,"merged":0,"refused":0,"lines":5000}`+"\n" {
		t.Fatalf("got exit code %d, %q and %q, want 0 and 5000 pushed", code, p.stdout.String(), p.stderr.String())
	}
	waiting(t, cluster.URL(), 5000)
}

// Redis is not there yet: the push says so, and waits for it.
func TestPushWaitsForRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	redis.Kill()
	stderr := filepath.Join(t.TempDir(), "stderr")
	file, err := os.Create(stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("lowkiq-node", "push", "--redis", redis.URL(), "--queue", "orders", "--shards", "4", "--patience", patience.String(), "--id", "a")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	said := func() string { text, _ := os.ReadFile(stderr); return string(text) }
	if !eventually(func() bool { return strings.Contains(said(), "redis is away, trying for 1m30s: ") }) {
		t.Fatalf("stderr: got %q, want it to say that Redis is away", said())
	}
	redis.Restart()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("got %v and %q, want it to be pushed", err, said())
	}
	if n := strings.Count(said(), "\n"); n != 1 {
		t.Errorf("got %d lines on stderr, want 1: %q", n, said())
	}
	waiting(t, redis.URL(), 1)
}
