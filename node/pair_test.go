package node

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
)

// standby starts a second node and waits until it has found all shards taken.
func standby(t *testing.T, cfg Config, shards int, handle lowkiq.HandlerFunc) *running {
	t.Helper()
	run := start(t, cfg, QueueConfig{Shards: shards}, handle)
	run.serving()
	if got := len(run.instance().claims.All()); got != 0 {
		t.Errorf("the second node has %d shards, want 0", got)
	}
	return run
}

// TestTwoNodes: the second one waits, and takes over as soon as the first has drained.
func TestTwoNodes(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	srv := redistest.Start(t)
	const shards = 8
	p := open(t, srv.URL(), shards)
	w := newWitness(1)
	handle := w.around(func(context.Context, *lowkiq.Batch) error { return nil })
	first := start(t, Config{Name: "n1", Redis: srv.URL()}, QueueConfig{Shards: shards}, handle).serving()
	second := standby(t, Config{Name: "n2", Redis: srv.URL()}, shards, handle)
	const each = 40
	for n := range each {
		if n == each/2 {
			first.cancel()
		}
		for i := range 20 {
			p.push(numbered(fmt.Sprint("id", i), n, n+1)...)
		}
	}
	p.drained()
	second.serving()
	w.check(t, 20*each)
	if w.repeats > 0 {
		t.Errorf("%d payloads were handled twice, want none: a drain loses nothing", w.repeats)
	}
}

func nothing(context.Context, *lowkiq.Batch) error { return nil }

const childVariable = "LOWKIQ_NODE_TEST_CHILD"

// childTTL is longer than the patience of a test: who waited for the lease would be too late.
const childTTL = 2 * time.Minute

// child is a node in a process of its own: this test binary, told so by its environment.
func child() {
	n, err := New(Config{Name: "n1", Redis: os.Getenv(childVariable), TTL: childTTL})
	if err == nil {
		err = n.Handle(QueueConfig{Name: "orders", Shards: 4}, lowkiq.HandlerFunc(func(ctx context.Context, b *lowkiq.Batch) error {
			fmt.Println("handling", b.Jobs[0].ID)
			<-ctx.Done()
			return ctx.Err()
		}))
	}
	if err == nil {
		err = n.Run(context.Background())
	}
	fmt.Println("child:", err)
	os.Exit(1)
}

// TestKill9: a process that is killed on this host is proven gone: its shards are seized
// at once, long before its lease would run out, by a node that waited as by
// one that starts.
func TestKill9(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("a death is proven on Linux only")
	}
	for _, waits := range []bool{true, false} {
		t.Run(fmt.Sprintf("second node waits: %v", waits), func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			p := open(t, srv.URL(), 4)
			p.push(numbered("a", 0, 1)...)
			kill := startChild(t, srv.URL())
			began := make(chan struct{})
			handle := func(context.Context, *lowkiq.Batch) error { close(began); return nil }
			if waits {
				standby(t, Config{Name: "n2", Redis: srv.URL(), TTL: childTTL}, 4, handle)
			}
			kill()
			killed := time.Now()
			if !waits {
				start(t, Config{Name: "n1", Redis: srv.URL(), TTL: childTTL}, QueueConfig{Shards: 4}, handle)
			}
			receive(t, "the job is handled again", began)
			t.Logf("seized after %s", time.Since(killed))
			p.drained()
		})
	}
}

// startChild starts a node as a process and waits until it handles a job.
func startChild(t *testing.T, url string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+url)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { cmd.Process.Kill(); cmd.Wait() } //nolint:errcheck // it may have ended
	t.Cleanup(kill)
	lines := make(chan string, 1)
	go func() {
		defer close(lines)
		line, err := bufio.NewReader(out).ReadString('\n')
		lines <- fmt.Sprint(line, err)
	}()
	if line := receive(t, "the child's first line", lines); !strings.HasPrefix(line, "handling a\n") {
		t.Fatalf("the child says %q", line)
	}
	return kill
}
