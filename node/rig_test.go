package node

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
)

// patience is for a machine that runs all packages' tests at once.
const patience = 2 * time.Minute

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
			t.Fatalf("not within %s: %s\n%s", patience, what, runner.AllStacks())
		}
	}
}

// receive waits for a value.
func receive[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("not within %s: %s\n%s", patience, what, runner.AllStacks())
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

// Cluster answers questions about the cluster, as the API of a node does.
func (r *running) Cluster() status.Cluster { return status.Of(r.Node) }

// calmTTL is the ttl of tests that need none to run out: a machine that stands still for
// seconds must not cost them a lease.
const calmTTL = time.Minute

// shortTTL is the shortest one there is, of tests that wait for a lease to run out.
const shortTTL = 3 * time.Second

// start runs a node with one queue until the test ends.
func start(t testing.TB, cfg Config, rules QueueConfig, handle lowkiq.HandlerFunc) *running {
	t.Helper()
	return startHandler(t, cfg, rules, handle)
}

func startHandler(t testing.TB, cfg Config, rules QueueConfig, handle lowkiq.Handler) *running {
	t.Helper()
	rules.Name, cfg.Name = cmp.Or(rules.Name, "orders"), cmp.Or(cfg.Name, "n1")
	return startQueues(t, cfg, func(n *Node) error { return n.Handle(rules, handle) })
}

// startQueues runs a node until the test ends; queues give it its handlers, and what it is to have
// besides.
func startQueues(t testing.TB, cfg Config, queues ...func(*Node) error) *running {
	t.Helper()
	if cfg.Bind != "" || cfg.TTL > 0 {
		tier.Usual(t) // of clusters, and of leases that run out: seconds each
	}
	cfg.TTL = cmp.Or(cfg.TTL, calmTTL)
	if cfg.OnOverrun == nil {
		cfg.OnOverrun = func([]byte) { t.Log("a handler was not cancelled in time; with exit 75 here ended all tests") }
	}
	if cfg.hung == nil {
		cfg.hung = func(why string) { t.Errorf("%s\n%s", why, runner.AllStacks()) }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, add := range queues {
		if err := add(n); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{Node: n, t: t, cancel: cancel, ended: make(chan struct{})}
	go func() { defer close(run.ended); run.err = n.Run(ctx) }()
	t.Cleanup(run.stop)
	return run
}

// renew has the lease renewed now, and what it brings, the registry, is in force. The first renewal may have begun before; the third
// begins when all of the second is done.
func (r *running) renew() {
	r.t.Helper()
	in := r.working()
	for range 3 {
		good := in.keeper.SafeEnd()
		in.keeper.RenewNow()
		await(r.t, "a renewal", func() bool { return in.keeper.SafeEnd() > good || in.keeper.Ended() })
	}
}

// serving waits until the node has claimed all shards.
func (r *running) serving() *running {
	r.t.Helper()
	r.await("all shards claimed", func() bool { return r.settled.Load() && r.instance() != nil })
	return r
}

// await waits until the condition holds. The test fails at once if the node ends before.
func (r *running) await(what string, condition func() bool) {
	r.t.Helper()
	await(r.t, what, func() bool {
		select {
		case <-r.ended:
			r.t.Fatalf("the node has ended before %s: %v", what, r.err)
		default:
		}
		return condition()
	})
}

// instance returns the node's instance, nil between two.
func (r *running) instance() *instance { return r.Node.current.Load() }

// working waits until the node has an instance.
func (r *running) working() (in *instance) {
	r.t.Helper()
	r.await("an instance", func() bool { in = r.instance(); return in != nil })
	return in
}

// refusals is what the lease of the only node tells of what it is refused.
func (p *producer) refusals() (told []string) {
	p.t.Helper()
	live, err := identity.Live(p.t.Context(), p.client.Leases())
	if err != nil || len(live) != 1 {
		p.t.Fatalf("got %d leases, %v, want one", len(live), err)
	}
	for _, info := range live {
		told = info.Refused
	}
	return told
}

// owns counts the shards that a node runs, -1 while it is between two instances.
func (r *running) owns() int {
	if in := r.instance(); in != nil {
		return len(in.claims.All())
	}
	return -1
}

// next waits until the node works as an instance after this one.
func (r *running) next(after *instance) (in *instance) {
	r.t.Helper()
	await(r.t, "an instance after "+after.name, func() bool {
		in = r.instance()
		return in != nil && in.number > after.number && r.settled.Load() && len(in.claims.All()) > 0
	})
	return in
}

func nothing(context.Context, *lowkiq.Batch) error { return nil }

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
	*protocol.Queue
	client *protocol.Client
	judged *judged // what is told of each push; or nil
}

// judged is a run whose handlers write down what they do, so that the judge can say whether I1, I2
// and I3 held.
type judged struct {
	path   string
	writer *judge.Writer
	pushed []judge.Pushed
}

func newJudged(t *testing.T) *judged {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history")
	writer, err := judge.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { writer.Close() })
	return &judged{path: path, writer: writer}
}

// around has a handler write down its calls.
func (j *judged) around(handle lowkiq.HandlerFunc) lowkiq.HandlerFunc {
	return judge.Wrap(j.writer, handle).Handle
}

// check ends a run in which at most so many payloads were to be handled again, -1 = any number.
func (j *judged) check(t *testing.T, repeats, lanes int) {
	t.Helper()
	cfg := judge.Config{ShardConcurrency: lanes, MaxDuplicates: repeats, MaxUncaused: repeats}
	verdict, err := judge.Check(cfg, slices.Values(j.pushed), j.path)
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("%d payloads in %d calls, %d handled again", verdict.Distinct, verdict.Calls, verdict.Duplicates); !verdict.OK() {
		t.Errorf("%+v", verdict)
	}
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
		if p.judged != nil {
			p.judged.pushed = append(p.judged.pushed, judge.PushedOf(p.Name, jobs[i], 0))
		}
	}
}

func (p *producer) stats() protocol.Stats {
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

// numbered are payloads of an id, their numbers and scores from..to-1.
func numbered(id string, from, to int) (jobs []lowkiq.Push) {
	for i := from; i < to; i++ {
		score := float64(i)
		jobs = append(jobs, lowkiq.Push{ID: id, Payload: []byte(strconv.Itoa(i)), Score: &score})
	}
	return jobs
}

// ids pushes n jobs of different ids.
func (p *producer) ids(prefix string, n int) {
	var jobs []lowkiq.Push
	for i := range n {
		jobs = append(jobs, lowkiq.Push{ID: fmt.Sprint(prefix, i)})
	}
	p.push(jobs...)
}

var errBoom = errors.New("boom")

func open(t testing.TB, url string, shards int) *producer {
	t.Helper()
	client, err := protocol.Open(protocol.Config{Redis: url, Timeout: patience / 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	q, err := client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	return &producer{t: t, Queue: q, client: client}
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
