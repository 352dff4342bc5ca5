//go:build linux

package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// patience is for a machine that does other things as well; no test that passes waits for it.
const patience = 90 * time.Second

// world is a cluster of three nodes, and jobs in every state.
type world struct {
	t        testing.TB
	redis    *redistest.Server
	client   *protocol.Client
	endpoint *endpoint
	config   string
	nodes    map[string]*process
}

// queueRules are the queues that every node handles. Names that begin with "b-" are for the
// tests of buttons, one each.
const queueRules = `
  orders: {shards: 8, retry_in: [1h], journal: all, handler: {http: %[1]q}}
  mail: {shards: 4, max_retry_count: 0, exhausted: bury, handler: {http: %[1]q}}
  ledger: {shards: 4, max_retry_count: 0, exhausted: block, handler: {http: %[1]q}}
  idle: {shards: 4, handler: {http: %[1]q}}
  %[2]s: {shards: 2, retry_in: [1h], journal: all, limit: {concurrency: 1}, groups: {by: "W", concurrency: 1}, handler: {http: %[1]q}}
  b-retry: {shards: 2, retry_in: [1h], handler: {http: %[1]q}}
  b-morgue: {shards: 2, max_retry_count: 0, exhausted: bury, handler: {http: %[1]q}}
  b-blocked: {shards: 2, max_retry_count: 0, exhausted: block, handler: {http: %[1]q}}
  b-group: {shards: 2, max_retry_count: 0, exhausted: bury, handler: {http: %[1]q}}
  b-fails: {shards: 2, retry_in: [1h], handler: {http: %[1]q}}
  b-later: {shards: 2, handler: {http: %[1]q}}
`

// longest is a queue's name without a place to break it.
var longest = strings.Repeat("W", lowkiq.MaxQueueName)

// newWorld starts Redis and as many nodes as names are given.
func newWorld(t testing.TB, names ...string) *world {
	t.Helper()
	w := &world{t: t, redis: redistest.Start(t), endpoint: newEndpoint(t), nodes: map[string]*process{}}
	var err error
	if w.client, err = protocol.Open(protocol.Config{Redis: w.redis.URL(), Timeout: patience}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.client.Close() })
	w.config = filepath.Join(t.TempDir(), "node.yaml")
	text := fmt.Sprintf("redis: %s\nnode: {concurrency: 8}\nqueues:", w.redis.URL()) + fmt.Sprintf(queueRules, w.endpoint.server.URL, longest)
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		w.nodes[name] = launch(t, name, binary(t), "run", "--config", w.config, "--name", name, "--http", "127.0.0.1:0", "--bind", "127.0.0.1:0")
	}
	for _, name := range names {
		await(t, "node "+name+" is ready", patience, func() bool {
			if w.nodes[name].over() {
				t.Fatalf("node %s has ended", name)
			}
			return ready(w.url(name))
		})
	}
	return w
}

func ready(url string) bool {
	if url == "" {
		return false
	}
	answer, err := client.Get(url + "/readyz")
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// client keeps no connections, which a leak test would find.
var client = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}

// url is where a node serves its pages, by its lease; "" = not yet.
func (w *world) url(name string) string {
	instances, err := w.client.Leases().All(context.Background())
	if err != nil {
		return ""
	}
	for _, i := range instances {
		var lease struct{ HTTP, Node string }
		if json.Unmarshal(i.Lease, &lease) == nil && lease.Node == name {
			return lease.HTTP
		}
	}
	return ""
}

// queue finds a registered queue.
func (w *world) queue(name string) *protocol.Queue {
	w.t.Helper()
	q, err := w.client.Queue(context.Background(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return q
}

// counts are the jobs of a queue by state, and the payloads in its morgue.
func (w *world) counts(name string) (protocol.Counts, int) {
	stats, err := w.queue(name).Stats(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return stats.Jobs, stats.Morgue
}

// process is a node. It dies with the test.
type process struct {
	cmd   *exec.Cmd
	log   string // its file
	ended chan struct{}
}

// launch starts argv; what it says is left among the artifacts.
func launch(t testing.TB, name string, argv ...string) *process {
	t.Helper()
	if err := os.MkdirAll("artifacts", 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join("artifacts", strings.ReplaceAll(t.Name(), "/", "-")+"-"+name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), log: log.Name(), ended: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = nodebin.Env(), log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // it is the parent that Pdeathsig speaks of
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // it was killed
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

// said is the log until now.
func (p *process) said() string {
	text, _ := os.ReadFile(p.log) // nothing, if it is gone
	return string(text)
}

func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be dead
	<-p.ended
}
