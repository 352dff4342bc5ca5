package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/tier"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
)

// patience is for a machine that runs all packages' tests at once.
const patience = 60 * time.Second

// await asks until the condition holds.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %s: %s\n%s", patience, what, runner.Stacks())
		}
	}
}

// receive waits for a value.
func receive[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("not within %s: %s\n%s", patience, what, runner.Stacks())
	}
	return v
}

// running is a node of a test.
type running struct {
	*Node
	t      testing.TB
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

// calmTTL is the ttl of tests that need none to run out: a machine that stands still for
// seconds must not cost them a lease.
const calmTTL = time.Minute

// start runs a node with one queue until the test ends.
func start(t testing.TB, cfg Config, rules QueueConfig, handle lowkiq.HandlerFunc) *running {
	t.Helper()
	return startHandler(t, cfg, rules, handle)
}

func startHandler(t testing.TB, cfg Config, rules QueueConfig, handle lowkiq.Handler) *running {
	t.Helper()
	if rules.Name == "" {
		rules.Name = "orders"
	}
	return startQueues(t, cfg, func(n *Node) error { return n.Handle(rules, handle) })
}

// startQueues runs a node until the test ends; queues gives it its handlers.
func startQueues(t testing.TB, cfg Config, queues func(*Node) error) *running {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "n1"
	}
	if cfg.Bind != "" || cfg.TTL > 0 {
		tier.Usual(t) // of clusters, and of leases that run out: seconds each
	}
	orTime(&cfg.TTL, calmTTL)
	if cfg.OnOverrun == nil {
		cfg.OnOverrun = func([]byte) { t.Log("a handler was not cancelled in time; with exit 75 here ended all tests") }
	}
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := queues(n); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{Node: n, t: t, cancel: cancel, ended: make(chan struct{})}
	go func() { defer close(run.ended); run.err = n.Run(ctx) }()
	t.Cleanup(run.stop)
	return run
}

// renew has the lease renewed now: with what it brings, the registry, nothing waits for it.
func (r *running) renew() {
	r.t.Helper()
	in := r.instance()
	good := in.keeper.SafeEnd()
	in.keeper.Poke()
	await(r.t, "a renewal", func() bool { return in.keeper.SafeEnd() > good || in.keeper.Ended() })
}

// serving waits until the node has claimed all shards.
func (r *running) serving() *running {
	r.t.Helper()
	await(r.t, "all shards claimed", func() bool { return r.settled.Load() && r.instance() != nil })
	return r
}

func (r *running) instance() *instance { return r.Node.current.Load() }

// stop drains the node.
func (r *running) stop() {
	r.cancel()
	receive(r.t, "the node's end", r.ended)
	if r.err != nil {
		r.t.Errorf("Run: %v", r.err)
	}
}

// producer pushes for a test.
type producer struct {
	t testing.TB
	*queue.Queue
	client *queue.Client
}

func open(t testing.TB, url string, shards int) *producer {
	t.Helper()
	return openCluster(t, url, "default", shards)
}

func (p *producer) push(jobs ...lowkiq.Push) {
	p.t.Helper()
	results, err := p.Push(p.t.Context(), jobs...)
	if err != nil {
		p.t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil {
			p.t.Fatalf("push of %q: %v", jobs[i].ID, r.Err)
		}
	}
}

func (p *producer) stats() queue.Stats {
	p.t.Helper()
	s, err := p.Stats(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// drained waits until Redis holds no job.
func (p *producer) drained() {
	p.t.Helper()
	await(p.t, "no job left", func() bool { return p.stats().Jobs.Total() == 0 })
}

// numbered are payloads 0..n-1 of an id.
func numbered(id string, from, to int) (jobs []lowkiq.Push) {
	for i := from; i < to; i++ {
		jobs = append(jobs, lowkiq.Push{ID: id, Payload: []byte(strconv.Itoa(i))})
	}
	return jobs
}

var errBoom = errors.New("boom")

// openCluster is open for a cluster of another name.
func openCluster(t testing.TB, url, cluster string, shards int) *producer {
	t.Helper()
	client, err := queue.Open(queue.Config{Redis: url, Cluster: cluster})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	q, err := client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	return &producer{t, q, client}
}

// raw sends one command to a Redis and returns its answer.
func raw(t testing.TB, addr string, words ...string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience)) //nolint:errcheck // then a read would tell
	if _, err := fmt.Fprintf(conn, "%s\r\n", strings.Join(words, " ")); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	line, err := reader.ReadString('\n')
	if err != nil || line[0] == '-' {
		t.Fatalf("%v: %s %v", words, line, err)
	}
	if line[0] != '$' {
		return strings.TrimSpace(line[1:])
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	text := make([]byte, n)
	if _, err := io.ReadFull(reader, text); err != nil {
		t.Fatal(err)
	}
	return string(text)
}
