package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
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
			t.Fatalf("not within %s: %s\n%s", patience, what, stacks())
		}
	}
}

// receive waits for a value.
func receive[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("not within %s: %s\n%s", patience, what, stacks())
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

// start runs a node with one queue until the test ends.
func start(t testing.TB, cfg Config, rules QueueConfig, handle lowkiq.HandlerFunc) *running {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "n1"
	}
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if rules.Name == "" {
		rules.Name = "orders"
	}
	if err := n.Handle(rules, handle); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{Node: n, t: t, cancel: cancel, ended: make(chan struct{})}
	go func() { defer close(run.ended); run.err = n.Run(ctx) }()
	t.Cleanup(run.stop)
	return run
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

// witness is a handler's middleware that looks for breaches of I1, I2 and I3: overlaps of
// an id or, with lanes 1, of a shard; payloads out of order; payloads handled twice.
type witness struct {
	lanes int // batches of one shard at once

	mu      sync.Mutex
	busy    map[string]bool
	shards  map[lowkiq.Shard]int
	last    map[string]int  // highest payload handled, by id
	seen    map[string]bool // id/payload
	repeats int
	handled int // distinct payloads
	most    int // most batches of one shard seen at once
	faults  []string
}

func newWitness(lanes int) *witness {
	return &witness{lanes: lanes, busy: map[string]bool{}, shards: map[lowkiq.Shard]int{}, last: map[string]int{}, seen: map[string]bool{}}
}

func (w *witness) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

func (w *witness) enter(b *lowkiq.Batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shards[b.Shard]++
	w.most = max(w.most, w.shards[b.Shard])
	if w.shards[b.Shard] > w.lanes {
		w.fault("%d batches of shard %s at once", w.shards[b.Shard], b.Shard)
	}
	for _, job := range b.Jobs {
		if w.busy[job.ID] {
			w.fault("two handlers of %q at once", job.ID)
		}
		w.busy[job.ID] = true
	}
}

// leave notes the end of a call; what succeeded counts as handled.
func (w *witness) leave(b *lowkiq.Batch, succeeded bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shards[b.Shard]--
	for _, job := range b.Jobs {
		delete(w.busy, job.ID)
		if succeeded {
			w.finished(job)
		}
	}
}

func (w *witness) finished(job lowkiq.Job) {
	before, known := w.last[job.ID]
	if !known {
		before = -1
	}
	for _, p := range job.Payloads {
		n, err := strconv.Atoi(string(p.Data))
		if err != nil {
			w.fault("%q: %v", job.ID, err)
		}
		key := job.ID + "/" + string(p.Data)
		switch {
		case w.seen[key]:
			w.repeats++
		case n != before+1:
			w.fault("%q: payload %d after %d", job.ID, n, before)
			fallthrough
		default:
			w.seen[key] = true
			w.handled++
		}
		before = max(before, n)
	}
	w.last[job.ID] = before
}

// around makes the witness watch a handler.
func (w *witness) around(handle lowkiq.HandlerFunc) lowkiq.HandlerFunc {
	return func(ctx context.Context, b *lowkiq.Batch) (err error) {
		jobs := slices.Clone(b.Jobs)
		w.enter(b)
		defer func() {
			copied := *b
			copied.Jobs = jobs
			w.leave(&copied, err == nil && context.Cause(ctx) == nil)
		}()
		return handle(ctx, b)
	}
}

func (w *witness) check(t testing.TB, payloads int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults[:min(5, len(w.faults))] {
		t.Error(f)
	}
	if w.handled != payloads {
		t.Errorf("%d distinct payloads handled, want %d", w.handled, payloads)
	}
	t.Logf("%d payloads handled, %d repeats, up to %d batches of a shard at once", w.handled, w.repeats, w.most)
}

// TestWitness shows that the witness objects.
func TestWitness(t *testing.T) {
	t.Parallel()
	batch := func(id string, payloads ...string) *lowkiq.Batch {
		job := lowkiq.Job{ID: id}
		for _, p := range payloads {
			job.Payloads = append(job.Payloads, lowkiq.Payload{Data: []byte(p)})
		}
		return &lowkiq.Batch{Shard: lowkiq.Shard{Queue: "orders"}, Jobs: []lowkiq.Job{job}}
	}
	for _, c := range []struct {
		name string
		do   func(*witness)
		want string
	}{
		{"two of an id", func(w *witness) { w.enter(batch("a", "0")); w.enter(batch("a", "1")) }, `two handlers of "a" at once`},
		{"too many of a shard", func(w *witness) { w.lanes = 1; w.enter(batch("a", "0")); w.enter(batch("b", "0")) }, "2 batches of shard orders/0 at once"},
		{"overtaking", func(w *witness) { w.finished(batch("a", "1").Jobs[0]); w.finished(batch("a", "0").Jobs[0]) }, `"a": payload 1 after -1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWitness(2)
			c.do(w)
			if !slices.Contains(w.faults, c.want) {
				t.Errorf("got %q, want %q", w.faults, c.want)
			}
		})
	}
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
