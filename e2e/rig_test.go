//go:build linux

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

const (
	// patience is how long anything may take that has no promised limit, on a machine that
	// runs other tests at the same time.
	patience = 2 * time.Minute
	// slack is what such a machine may add to a promised limit.
	slack = 20 * time.Second
)

// rig is what one test has.
type rig struct {
	t       *testing.T
	tag     string
	cluster string            // its own: an address that is used again leads to no other test's nodes
	redis   *redistest.Server // nil at a Redis of the test's own
	url     string            // of Redis
	client  *protocol.Client
	queue   *protocol.Queue
	shards  int
	history string        // file
	notes   *judge.Writer // the test's own, for deaths
	workers []*process
	// on, if set, is what comes before the command line of a node's process: it chooses its host.
	on func(node string) []string

	mu     sync.Mutex
	pushed []judge.Pushed // guarded by mu
}

func newRig(t *testing.T, shards int, redisArgs ...string) *rig {
	t.Helper()
	tier.Usual(t)
	server := redistest.Start(t, redisArgs...)
	r := rigAt(t, shards, server.URL())
	r.redis = server
	return r
}

// rigAt is a rig on a Redis that the test has started.
func rigAt(t *testing.T, shards int, url string) *rig {
	t.Helper()
	tag := ulid.Make().String()
	r := &rig{t: t, url: url, tag: tag, cluster: tag, shards: shards, history: filepath.Join(t.TempDir(), "history")}
	r.open(url)
	t.Cleanup(r.nothingLeft) // runs after the processes have been killed
	return r
}

// open connects the rig to its Redis and to its history.
func (r *rig) open(url string) {
	r.t.Helper()
	var err error
	if r.client, err = protocol.Open(protocol.Config{Redis: url, Cluster: r.cluster, Timeout: patience / 2}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.client.Close() })
	if r.queue, err = r.client.Register(r.t.Context(), lowkiq.Queue{Name: queueName, Shards: r.shards}); err != nil {
		r.t.Fatal(err)
	}
	if r.notes, err = judge.OpenAs(r.history, "test"); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.notes.Close() })
}

// nothingLeft fails the test if a process outlives it, and ends that process.
func (r *rig) nothingLeft() {
	left := tagged(r.tag)
	for until := time.Now().Add(2*time.Second + slack); len(left) > 0 && time.Now().Before(until); left = tagged(r.tag) {
		<-time.After(10 * time.Millisecond)
	}
	for _, pid := range left {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		r.t.Errorf("process %d is left behind: %q", pid, cmdline)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// start starts a worker; empty settings get those of the rig.
func (r *rig) start(s settings) *process {
	r.t.Helper()
	s.Name = cmp.Or(s.Name, "n1")
	s.Redis = cmp.Or(s.Redis, r.url)
	s.Cluster = r.cluster
	s.History = cmp.Or(s.History, r.history)
	s.Shards = r.shards
	s.Concurrency = cmp.Or(s.Concurrency, 8)
	s.Handler = cmp.Or(s.Handler, "work")
	text, err := json.Marshal(s)
	if err != nil {
		r.t.Fatal(err)
	}
	argv := []string{os.Args[0]}
	if r.on != nil {
		argv = append(r.on(s.Name), argv...)
	}
	return r.run("worker "+s.Name, []string{roleEnv + "=worker", settingsEnv + "=" + string(text)}, argv...)
}

// run starts any process of the test.
func (r *rig) run(name string, env []string, argv ...string) *process {
	r.t.Helper()
	p := launch(r.t, name, append(env, tagEnv+"="+r.tag, historyEnv+"="+r.history), argv...)
	r.workers = append(r.workers, p)
	return p
}

// kill ends a worker with SIGKILL and notes its death.
func (r *rig) kill(p *process) (killed time.Duration) {
	r.t.Helper()
	p.mortal.Store(true)
	killed = judge.Now()
	p.signal(syscall.SIGKILL)
	<-p.ended
	r.died(p, killed)
	return killed
}

// died notes a death; killed is 0 for a process that died by itself.
func (r *rig) died(p *process, killed time.Duration) {
	r.t.Helper()
	if err := r.notes.Death(strconv.Itoa(p.pid()), killed, judge.Now()); err != nil {
		r.t.Fatal(err)
	}
}

// await waits for a condition. It fails the test early if a worker ended unasked.
func (r *rig) await(what string, within time.Duration, condition func() bool) {
	r.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(within)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("not within %s: %s", within, what)
		}
		for _, p := range r.workers {
			if !p.running() && !p.mortal.Load() {
				r.t.Fatalf("%s ended (%s) while the test waited for: %s", p.name, p.cmd.ProcessState, what)
			}
		}
	}
}

// works waits for a worker's first job and returns when that was.
func (r *rig) works(p *process) time.Duration {
	r.t.Helper()
	r.await(p.name+" handles a job", patience, func() bool { return p.first() > 0 })
	return p.first()
}

// leased waits until a worker has its n-th lease, or a later one on a machine that stood still: it is up, perhaps without a
// shard.
func (r *rig) leased(p *process, n int) {
	r.t.Helper()
	r.await(fmt.Sprintf("%s has lease %d", p.name, n), patience, func() bool {
		instances, err := r.client.Leases().All(r.t.Context())
		return err == nil && slices.ContainsFunc(instances, func(i lease.Instance) bool {
			name, err := membership.ParseInstance(i.Name)
			return err == nil && name.N >= n && pidOf(i.Lease) == p.pid()
		})
	})
}

// pidOf is whose a lease is; 0 if there is none.
func pidOf(lease []byte) int {
	var info identity.Lease
	if json.Unmarshal(lease, &info) != nil {
		return 0
	}
	return info.Process.PID
}

// push pushes jobs, which must succeed, and keeps the books for the verdict.
func (r *rig) push(jobs ...lowkiq.Push) {
	r.t.Helper()
	if err := r.tryPush(jobs...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tryPush(jobs ...lowkiq.Push) error { return r.pushTo(r.queue, jobs...) }

func (r *rig) pushTo(q *protocol.Queue, jobs ...lowkiq.Push) error {
	at := judge.Now()
	_, err := q.Push(r.t.Context(), jobs...)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, job := range jobs {
		p := judge.PushedOf(q.Name, job, at)
		p.Optional = err != nil // it may be stored or not
		r.pushed = append(r.pushed, p)
	}
	return err
}

// excuse makes all that was pushed so far optional: Redis forgot it, or it is in the morgue.
func (r *rig) excuse(which func(judge.Pushed) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.pushed {
		r.pushed[i].Optional = r.pushed[i].Optional || which(r.pushed[i])
	}
}

// latest returns a queue with its present shards.
func (r *rig) latest(q *protocol.Queue) (*protocol.Queue, error) {
	if _, err := r.client.Registry().Entries(r.t.Context()); err != nil { // the client then knows the present layouts
		return nil, err
	}
	return r.client.Queue(r.t.Context(), q.Name)
}

// statsOf adds up the figures of a queue's present shards.
func (r *rig) statsOf(q *protocol.Queue) (protocol.Stats, error) {
	now, err := r.latest(q)
	if err != nil {
		return protocol.Stats{}, err
	}
	return now.Stats(r.t.Context())
}

func (r *rig) stats() protocol.Stats {
	r.t.Helper()
	stats, err := r.statsOf(r.queue)
	if err != nil {
		r.t.Fatal(err)
	}
	return stats
}

// drained waits until no job waits or is in flight.
func (r *rig) drained() {
	r.t.Helper()
	r.await("all jobs are done", patience, func() bool {
		stats, err := r.statsOf(r.queue)
		return err == nil && stats.Jobs.Total() == 0
	})
}

// verdict judges the history, which must be good.
func (r *rig) verdict(cfg judge.Config) judge.Verdict {
	r.t.Helper()
	v := r.judge(cfg, r.history)
	if !v.OK() {
		r.t.Error(v.Words())
	} else {
		r.t.Log(v.Words())
	}
	return v
}

func (r *rig) judge(cfg judge.Config, paths ...string) judge.Verdict {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := judge.Check(cfg, slices.Values(r.pushed), paths...)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// noneFailed checks that no retry was spent and nothing was buried.
func (r *rig) noneFailed() {
	r.t.Helper()
	stats := r.stats()
	if stats.Failed != 0 || stats.Morgue != 0 {
		r.t.Errorf("got %d failures and %d payloads in the morgue, want none", stats.Failed, stats.Morgue)
	}
	for _, p := range r.workers {
		if retried := p.lines("retried "); len(retried) > 0 {
			r.t.Errorf("%s: got %q, want no retry spent", p.name, retried)
		}
	}
}
