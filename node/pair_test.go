package node

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// standby starts a second node and waits until it has found all shards taken.
func standby(t *testing.T, cfg Config, shards int, handle lowkiq.HandlerFunc) *running {
	t.Helper()
	run := start(t, cfg, QueueConfig{Shards: shards}, handle)
	await(t, "the second node listens to all shards", func() bool {
		in := run.instance()
		if in == nil {
			return false
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		return len(in.heard) == shards
	})
	if got := len(run.instance().all()); got != 0 {
		t.Errorf("the second node has %d shards, want 0", got)
	}
	return run
}

// TestTwoNodes: the second one waits, and takes over as soon as the first has drained.
func TestTwoNodes(t *testing.T) {
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

// TestTakeoverByWakeUp: a release wakes who waits for the shard. The claimer of the second
// node polls once an hour here.
func TestTakeoverByWakeUp(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	first := start(t, Config{Name: "n2", Redis: srv.URL()}, QueueConfig{Shards: 4}, nothing).serving()
	in := unstarted(t, srv.URL(), 4)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := newClaimer(in)
	if got := c.claimAll(ctx, in.missing()); got != 0 {
		t.Errorf("claimed %d shards of another node", got)
	}
	first.stop()
	paused := make(chan struct{})
	go func() { defer close(paused); c.pause(ctx, 2*time.Hour) }()
	receive(t, "all shards are claimed", paused)
	if got := len(in.all()); got != 4 {
		t.Errorf("the second node has %d shards, want 4", got)
	}
}

func nothing(context.Context, *lowkiq.Batch) error { return nil }

// TestSilentDeath: an instance that ends without a word, on a host nobody can look at, is
// seized once its lease has run out and a ttl has passed; not before.
func TestSilentDeath(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	far := []byte(`{"host":"elsewhere","pids":"pid:[1]","pid":1,"start":"1","ttl_ms":3000}`)
	lease, err := p.client.TakeLease(t.Context(), "n0/X.1", far, []byte("{}"), shortTTL)
	if err != nil {
		t.Fatal(err)
	}
	p.push(append(numbered("a", 0, 1), numbered("b", 0, 1)...)...)
	for i := range 2 {
		owner, err := p.Shard(i).Owner(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Shard(i).Claim(t.Context(), lease.Instance, "fresh", owner); err != nil {
			t.Fatal(err)
		}
	}
	var leased atomic.Bool
	leased.Store(true)
	w := newWitness(1)
	started := time.Now()
	run := start(t, Config{Redis: srv.URL(), TTL: shortTTL}, QueueConfig{Shards: 2}, w.around(func(context.Context, *lowkiq.Batch) error {
		if leased.Load() {
			if i, err := p.client.Instance(context.Background(), "n0/X.1"); err != nil || i.Lease != nil {
				t.Errorf("handled while the owner's lease lives, %v", err)
			}
			leased.Store(false)
		}
		return nil
	}))
	run.serving()
	p.drained()
	w.check(t, 2)
	if took := time.Since(started); took < shortTTL {
		t.Errorf("seized after %s, want at least a ttl of %s", took, shortTTL)
	}
}

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
