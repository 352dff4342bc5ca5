//go:build linux

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
)

const fleetShards = 20 // of each queue

// fleetQueues are handled by every node of a fleet.
var fleetQueues = []string{queueName, "mail", "orders"}

// fleet is the processes of one cluster.
type fleet struct {
	booking sync.RWMutex // held by pushes; taken whole by who empties Redis

	*rig
	settings settings // of every node, but for what is the node's own
	queues   []*protocol.Queue
	nodes    map[string]*process // by name; the last started
	watch    *watch
	flow     *flow
	http     *http.Client
}

// newFleet prepares a cluster without nodes. Its watch and its flow of jobs begin at once.
func newFleet(t *testing.T, s settings, redisArgs ...string) *fleet {
	t.Helper()
	return fleetOf(newRig(t, fleetShards, redisArgs...), s)
}

// fleetOf is a fleet on the Redis of a rig.
func fleetOf(r *rig, s settings) *fleet {
	r.t.Helper()
	if s.Queues == nil {
		s.Queues = fleetQueues
	}
	s.Bind, s.HTTP = cmp.Or(s.Bind, "127.0.0.1:0"), cmp.Or(s.HTTP, "127.0.0.1:0")
	s.TTL, s.Work = cmp.Or(s.TTL, ttl), cmp.Or(s.Work, 25*time.Millisecond)
	f := &fleet{rig: r, settings: s, nodes: map[string]*process{}}
	f.http = &http.Client{Timeout: patience / 2, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, name := range s.Queues {
		q, err := r.client.Register(r.t.Context(), lowkiq.Queue{Name: name, Shards: r.shards})
		if err != nil {
			r.t.Fatal(err)
		}
		f.queues = append(f.queues, q)
	}
	allEvents()
	f.watch = f.watchClaims()
	f.flow = f.startFlow()
	return f
}

// up starts a node.
func (f *fleet) up(name string, change ...func(*settings)) *process {
	f.t.Helper()
	s := f.settings
	s.Name = name
	for _, c := range change {
		c(&s)
	}
	f.nodes[name] = f.start(s)
	return f.nodes[name]
}

// upAll starts nodes at once.
func (f *fleet) upAll(names ...string) {
	f.t.Helper()
	for _, name := range names {
		f.up(name)
	}
}

func names(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	return names
}

// crash ends nodes with SIGKILL, all before it looks at any. Each is known to have lived until
// before the first signal: one that gets its signal later may seize what one before it had.
func (f *fleet) crash(names ...string) (killed time.Duration) {
	f.t.Helper()
	killed = judge.Now()
	for _, name := range names {
		f.nodes[name].mortal.Store(true)
	}
	for _, name := range names {
		f.nodes[name].signal(syscall.SIGKILL)
	}
	for _, name := range names {
		<-f.nodes[name].ended
		f.died(f.nodes[name], killed)
		delete(f.nodes, name)
	}
	return killed
}

// leave ends a node with SIGTERM.
func (f *fleet) leave(name string) (asked time.Duration) {
	f.t.Helper()
	asked = judge.Now()
	f.nodes[name].terminate(patience)
	delete(f.nodes, name)
	return asked
}

// leases are those in Redis, by the pid of their process.
func (f *fleet) leases() (map[int]identity.Lease, error) {
	instances, err := f.client.Leases().All(f.t.Context())
	if err != nil {
		return nil, err
	}
	leases := map[int]identity.Lease{}
	for _, i := range instances {
		var info identity.Lease
		if i.Lease != nil && json.Unmarshal(i.Lease, &info) == nil {
			leases[info.Process.PID] = info
		}
	}
	return leases, nil
}

// lease is that of a node which has one.
func (f *fleet) lease(name string) identity.Lease {
	f.t.Helper()
	var info identity.Lease
	f.await(name+" has a lease", patience, func() bool {
		leases, err := f.leases()
		var ok bool
		info, ok = leases[f.nodes[name].pid()]
		return err == nil && ok && info.HTTP != "" && info.Gossip != ""
	})
	return info
}

// status asks a node.
func (f *fleet) status(name string) (status.Status, error) {
	f.t.Helper()
	var status status.Status
	err := f.ask(name, "status", &status)
	return status, err
}

// ask asks a node's API.
func (f *fleet) ask(name, what string, into any) error {
	f.t.Helper()
	reply, err := f.http.Get(f.lease(name).HTTP + "/api/v1/" + what)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s of %s: %s", what, name, reply.Status)
	}
	return json.NewDecoder(reply.Body).Decode(into)
}

// ready waits until a node says that it is.
func (f *fleet) ready(name string) {
	f.t.Helper()
	url := f.lease(name).HTTP + "/readyz"
	f.await(name+" is ready", patience, func() bool {
		reply, err := f.http.Get(url)
		if err != nil {
			return false
		}
		reply.Body.Close()
		return reply.StatusCode == http.StatusOK
	})
}

// parts says who leads, who else votes, and who is neither.
func (f *fleet) parts() (leader string, voters, workers []string) {
	f.t.Helper()
	want := map[bool]int{true: 3, false: 1}[len(f.nodes) >= 3]
	f.await(fmt.Sprintf("%s agree on a leader and %d voters", f.list(), want), patience, func() bool {
		leader, voters, workers = "", nil, nil
		for name := range f.nodes {
			known, err := f.status(name)
			if err != nil || leader != "" && leader != known.Leader {
				return false
			}
			leader, voters, workers = known.Leader, nil, nil
			for _, n := range known.Nodes {
				switch {
				case n.State != status.Live:
				case n.Name == leader:
				case n.Voter:
					voters = append(voters, n.Name)
				default:
					workers = append(workers, n.Name)
				}
			}
		}
		return f.nodes[leader] != nil && len(voters) == want-1 && len(workers) == len(f.nodes)-want
	})
	return leader, voters, workers
}

func (f *fleet) list() []string { return slices.Sorted(maps.Keys(f.nodes)) }

// balanced waits until the shards of each queue are spread evenly over the nodes that
// run, and no other process has any. It returns when the last claim of a shard was made.
func (f *fleet) balanced(within time.Duration) (at time.Duration) {
	f.t.Helper()
	return f.balancedOver(within, f.list()...)
}

func (f *fleet) balancedOver(within time.Duration, names ...string) (at time.Duration) {
	f.t.Helper()
	state := ""
	defer func() {
		if f.t.Failed() {
			f.t.Logf("the shards of the queues: %s", state)
		}
	}()
	f.await(fmt.Sprintf("the shards are spread over %v", names), within, func() bool {
		leases, err := f.leases()
		if err != nil {
			return false
		}
		owners := map[string]bool{}
		for _, name := range names {
			owners[leases[f.nodes[name].pid()].Instance] = true
		}
		var spread []map[string]int
		spread, at = f.watch.spread()
		state = fmt.Sprint(spread)
		return !slices.ContainsFunc(spread, func(counts map[string]int) bool { return !even(counts, owners) })
	})
	return at
}

// even reports whether the owners, and no one else, have their quota of a queue.
func even(counts map[string]int, owners map[string]bool) bool {
	shards := 0
	for instance, n := range counts {
		shards += n
		if !owners[instance] {
			return false
		}
	}
	for instance := range owners {
		if n := counts[instance]; instance == "" || n < shards/len(owners) || n > (shards+len(owners)-1)/len(owners) {
			return false
		}
	}
	return true
}

// tryPushTo pushes to a queue and keeps the books.
func (f *fleet) tryPushTo(q *protocol.Queue, jobs ...lowkiq.Push) error {
	f.booking.RLock() // a push and its entry are one: nothing is forgotten in between
	defer f.booking.RUnlock()
	return f.pushTo(q, jobs...)
}

// done ends the flow and waits until no job is left.
func (f *fleet) done() {
	f.t.Helper()
	f.leftIs("all jobs are done", protocol.Counts.Total)
}

// leftIs ends the flow and waits until nothing of a kind is left in any queue.
func (f *fleet) leftIs(what string, kind func(protocol.Counts) int) {
	f.t.Helper()
	f.flow.stop()
	f.await(what, patience, func() bool {
		left := 0
		for _, q := range f.queues {
			stats, err := f.statsOf(q)
			if err != nil {
				return false
			}
			left += kind(stats.Jobs)
		}
		return left == 0
	})
}

// finish ends flow and nodes, and judges.
func (f *fleet) finish(cfg judge.Config, histories ...string) judge.Verdict {
	f.t.Helper()
	f.done()
	var ends []func()
	for _, name := range f.list() { // all at once
		p := f.nodes[name]
		p.mortal.Store(true)
		p.signal(syscall.SIGTERM)
		ends = append(ends, func() { p.terminate(patience) })
	}
	for _, end := range ends {
		end()
	}
	f.watch.end()
	if n := f.flow.failed.Load(); n > 0 {
		f.t.Errorf("got %d failed pushes, want none: a push needs Redis only (I7)", n)
	}
	f.noRetries()
	f.sound()
	cfg.ShardConcurrency = 1
	v := f.judge(cfg, append(histories, f.history)...)
	if !v.OK() {
		f.t.Error(v.Words())
	} else {
		f.t.Log(v.Words())
	}
	return v
}

// sound audits what Redis holds in the end.
func (f *fleet) sound() {
	f.t.Helper()
	report, err := audit.Run(f.t.Context(), f.client, audit.Config{Orphans: true})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, fault := range report.Faults {
		f.t.Errorf("check: %s", fault)
	}
}

// noRetries checks that no retry was spent and nothing was buried, in any queue.
func (f *fleet) noRetries() {
	f.t.Helper()
	f.noneFailed()
	for _, q := range f.queues {
		stats, err := f.statsOf(q)
		if err != nil {
			f.t.Fatal(err)
		}
		if stats.Failed != 0 || stats.Morgue != 0 && q.Name != expiringQueue {
			f.t.Errorf("queue %s: got %d failures and %d payloads in the morgue, want none", q.Name, stats.Failed, stats.Morgue)
		}
	}
}

// nodeOf is the node's name in an instance's.
func nodeOf(instance string) string {
	name, _, _ := strings.Cut(instance, "/")
	return name
}
