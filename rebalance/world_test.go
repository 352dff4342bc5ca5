package rebalance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

const ttl = 6 * time.Second

var errCut = errors.New("cut off")

// world is a cluster in a bubble: a keeper of record, mark and leases, and processes
// joined by in-memory transports.
type world struct {
	t      *testing.T
	queues []lowkiq.Queue
	ended  chan struct{}
	flaps  sync.WaitGroup

	mu        sync.Mutex // guards all below
	raw, mark []byte
	marked    time.Time // when the mark was last renewed
	processes []*process
	seen      map[plan.Generation][]byte // what was agreed at each generation
}

// process is one node's process.
type process struct {
	world  *world
	node   plan.Node
	boot   string
	host   string // where its Raft server listens
	agent  *Agent
	older  atomic.Bool // it cannot read what the others write
	cancel context.CancelFunc
	done   chan struct{}

	// guarded by world.mu
	transports map[raft.ServerAddress]*raft.InmemTransport
	killed     bool
	renewed    time.Time               // the last time its lease was alive for sure
	noKeeper   bool                    // it cannot reach the keeper
	noPeers    bool                    // it cannot reach the other processes
	noGossip   bool                    // gossip shows it no process
	unleased   bool                    // it has lost its lease
	frozen     bool                    // it publishes an old RaftInfo
	stuck      bool                    // its heartbeats pass and its entries do not
	hangs      string                  // the Raft server of it that hangs at the next request, until the world ends
	dies       func(next *record) bool // it is killed right after it wrote such a record
	lostReply  bool                    // its next successful compare-and-set loses its answer
	info       RaftInfo
	claims     *plan.Assignment
}

func newWorld(t *testing.T, queues ...lowkiq.Queue) *world {
	if queues == nil {
		queues = []lowkiq.Queue{{Name: "a", Shards: 40}, {Name: "b", Shards: 40}}
	}
	w := &world{t: t, queues: queues, ended: make(chan struct{}), seen: map[plan.Generation][]byte{}}
	t.Cleanup(w.stop)
	return w
}

// inBubble runs a story with a world of n processes that have agreed.
func inBubble(t *testing.T, n int, story func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range n {
			w.start(fmt.Sprintf("n%d", i+1))
		}
		w.eventually(30*time.Second, "the cluster forms", w.agreed)
		story(t, w)
	})
}

// start starts a process; the options change it before it runs.
func (w *world) start(name string, options ...func(*process)) *process {
	p := &process{
		world: w, boot: fmt.Sprintf("B%d", len(w.processes)), host: "mem", done: make(chan struct{}),
		node:       plan.Node{Name: name, Weight: 1, Queues: []string{"a", "b"}},
		transports: map[raft.ServerAddress]*raft.InmemTransport{},
	}
	for _, option := range options {
		option(p)
	}
	if p.agent == nil {
		var err error
		if p.agent, err = New(Config{Boot: p.boot, TTL: ttl, Record: keeperRecord{p}, Mark: keeperMark{p}, Source: p, Transport: p.open, refuse: p.refuse}); err != nil {
			w.t.Fatal(err)
		}
	}
	w.with(func() { w.processes = append(w.processes, p) })
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(p.done)
		if err := p.agent.Run(ctx); err != nil {
			w.t.Errorf("%s: Run: %v", p.boot, err)
		}
	}()
	go p.watch(ctx)
	return p
}

func (p *process) refuse([]byte) error {
	if p.older.Load() {
		return errors.New("unknown command 99")
	}
	return nil
}

// watch checks that no two processes know different assignments of one generation.
func (p *process) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.agent.Changed():
		}
		a := p.agent.Assignment()
		if a.Generation.Record == 0 {
			continue // only the RaftInfo changed
		}
		if err := p.world.note(a); err != nil {
			p.world.t.Error(err)
		}
	}
}

// note takes an assignment that a process works by; it objects if another one of
// the same generation has been seen.
func (w *world) note(a *plan.Assignment) error {
	data := a.Append(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	if was, ok := w.seen[a.Generation]; ok && !bytes.Equal(was, data) {
		return fmt.Errorf("generation %s: two different assignments", a.Generation)
	}
	w.seen[a.Generation] = data
	return nil
}

// kill ends the process as a power cut would.
func (p *process) kill() {
	p.world.mu.Lock()
	p.killed, p.noKeeper, p.renewed = true, true, time.Now()
	p.world.mu.Unlock()
	p.isolate(true)
	p.cancel()
}

// isolate cuts the process off from the others, or heals that.
func (p *process) isolate(cut bool) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.noPeers = cut
	p.world.wire(p)
	if p.killed {
		clear(p.transports)
	}
}

// isolateFromKeeper cuts the process off from record, mark and leases.
func (p *process) isolateFromKeeper() {
	p.world.with(func() { p.noKeeper, p.renewed = true, time.Now() })
}

// flap has the process reach the keeper for up, and then not for down, until the world ends.
func (p *process) flap(down, up time.Duration) {
	p.world.flaps.Go(func() {
		for {
			p.isolateFromKeeper()
			if !p.world.sleep(down) {
				return
			}
			p.world.with(func() { p.noKeeper = p.killed })
			if !p.world.sleep(up) {
				return
			}
		}
	})
}

// sleep waits in the bubble's time; false says that the world has ended.
func (w *world) sleep(d time.Duration) bool {
	select {
	case <-w.ended:
		return false
	case <-time.After(d):
		return true
	}
}

// wire connects the process's transports with those of all processes that it reaches, and no
// others. Under mu.
func (w *world) wire(p *process) {
	for _, q := range w.processes {
		if q == p {
			continue
		}
		for at, mine := range p.transports {
			for there, theirs := range q.transports {
				if p.noPeers || q.noPeers {
					mine.Disconnect(there)
					theirs.Disconnect(at)
				} else {
					mine.Connect(there, theirs)
					theirs.Connect(at, mine)
				}
			}
		}
	}
}

func (p *process) open(server string) (raft.Transport, error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	address, transport := raft.NewInmemTransport(Address(server, "mem"))
	p.transports[address] = transport
	p.world.wire(p)
	return halfOpen{transport, p, server}, nil
}

// halfOpen is a transport whose heartbeats may pass while entries do not.
type halfOpen struct {
	*raft.InmemTransport
	process *process
	server  string
}

// DecodePeer is called in Raft's own goroutine, for each request.
func (h halfOpen) DecodePeer(data []byte) raft.ServerAddress {
	h.process.world.mu.Lock()
	hangs := h.process.hangs == h.server
	h.process.world.mu.Unlock()
	if hangs {
		<-h.process.world.ended
	}
	return h.InmemTransport.DecodePeer(data)
}

// AppendEntries sends heartbeats and entries.
func (h halfOpen) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	h.process.world.mu.Lock()
	stuck := h.process.stuck && len(args.Entries) > 0
	h.process.world.mu.Unlock()
	if stuck {
		return errCut
	}
	return h.InmemTransport.AppendEntries(id, to, args, resp)
}

// AppendEntriesPipeline would send entries past AppendEntries.
func (h halfOpen) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// leased reports whether the process's lease is live. Under mu.
func (p *process) leased() bool {
	if p.unleased {
		return false
	}
	return !p.noKeeper || time.Since(p.renewed) < ttl
}

// View is what the process sees: everyone with a live lease.
func (p *process) View(context.Context) (View, error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if p.noKeeper {
		return View{}, errCut
	}
	v := View{Leased: p.leased(), Queues: p.world.queues}
	for _, q := range p.world.processes {
		if q.gone() || !q.leased() && q.killed {
			continue
		}
		if !q.frozen && !q.killed {
			q.info = q.agent.RaftInfo()
		}
		v.Peers = append(v.Peers, Peer{Node: q.node, Boot: q.boot, Address: q.host, RaftInfo: q.info, Leased: q.leased()})
	}
	return v, nil
}

// Gossiped is what gossip shows: who lives and is not cut off from the process.
func (p *process) Gossiped() (peers []Peer) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	for _, q := range p.world.processes {
		if !p.noGossip && !q.gone() && !q.killed && (p == q || !p.noPeers && !q.noPeers) {
			peers = append(peers, Peer{Node: q.node, Boot: q.boot, RaftInfo: q.agent.RaftInfo()})
		}
	}
	return peers
}

func (p *process) Claims(context.Context) (*plan.Assignment, error) { return p.claims, nil }

// gone reports whether the process has left in order. Under mu.
func (p *process) gone() bool {
	select {
	case <-p.done:
		return !p.killed
	default:
		return false
	}
}

// with changes the world under its lock.
func (w *world) with(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) alive() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.processes), func(p *process) bool { return p.killed || p.gone() })
}

func (w *world) leader() *process {
	for _, p := range w.alive() {
		if p.agent.Status().Leading {
			return p
		}
	}
	return nil
}

// agreed reports whether all living processes work by one assignment that gives
// every shard to one of the living.
func (w *world) agreed() bool {
	alive := w.alive()
	var names []string
	for _, p := range alive {
		names = append(names, p.node.Name)
		if p.agent.Assignment().Generation != alive[0].agent.Assignment().Generation {
			return false
		}
	}
	a := alive[0].agent.Assignment()
	slices.Sort(names)
	covered := len(a.Queues) == len(w.queues)
	for _, q := range a.Queues {
		covered = covered && !slices.Contains(q.Owners, plan.None)
	}
	return covered && slices.Equal(a.Nodes, names)
}

// eventually waits for a condition in the bubble's time and returns how long it took.
func (w *world) eventually(limit time.Duration, what string, condition func() bool) time.Duration {
	w.t.Helper()
	start := time.Now()
	for !condition() {
		if time.Since(start) > limit {
			for _, p := range w.alive() {
				w.t.Logf("%s %s: %+v, applied %s", p.boot, p.node.Name, p.agent.Status(), p.agent.Assignment().Generation)
			}
			w.t.Fatalf("%s: not within %s; record %s", what, limit, w.raw)
		}
		time.Sleep(50 * time.Millisecond) // the bubble's time
	}
	return time.Since(start)
}

func (w *world) record() *record {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec, err := decodeRecord(w.raw)
	if err != nil {
		w.t.Fatal(err)
	}
	return rec
}

func (w *world) stop() {
	close(w.ended)
	w.flaps.Wait()
	for _, p := range w.processes {
		p.kill()
	}
	for _, p := range w.processes {
		<-p.done
	}
}

// The keeper of record and mark, as each process reaches it.

type keeperRecord struct{ *process }

func (k keeperRecord) Load(context.Context) ([]byte, error) {
	k.world.mu.Lock()
	defer k.world.mu.Unlock()
	if k.noKeeper {
		return nil, errCut
	}
	return k.world.raw, nil
}

func (k keeperRecord) CompareAndSet(_ context.Context, old, new []byte) (bool, error) {
	done, err := k.compareAndSet(old, new)
	if next, _ := decodeRecord(new); done && k.dies != nil && k.dies(next) {
		k.kill()
		return false, errCut
	}
	return done, err
}

func (k keeperRecord) compareAndSet(old, new []byte) (bool, error) {
	k.world.mu.Lock()
	defer k.world.mu.Unlock()
	if k.noKeeper {
		return false, errCut
	}
	if !bytes.Equal(k.world.raw, old) {
		return false, nil
	}
	k.world.raw = new
	if k.lostReply {
		k.lostReply = false
		return false, errCut
	}
	return true, nil
}

func (k keeperRecord) Now(context.Context) (time.Time, error) { return time.Now(), nil }

type keeperMark struct{ *process }

func (k keeperMark) Load(context.Context) ([]byte, error) {
	k.world.mu.Lock()
	defer k.world.mu.Unlock()
	if k.noKeeper {
		return nil, errCut
	}
	if time.Since(k.world.marked) >= ttl {
		return nil, nil
	}
	return k.world.mark, nil
}

func (k keeperMark) Renew(_ context.Context, record, mark []byte) (bool, error) {
	k.world.mu.Lock()
	defer k.world.mu.Unlock()
	if k.noKeeper {
		return false, errCut
	}
	if !bytes.Equal(record, k.world.raw) {
		return false, nil
	}
	k.world.mark, k.world.marked = mark, time.Now()
	return true, nil
}

// count returns how many shards of a queue a node is given.
func count(a *plan.Assignment, queue, node string) (n int) {
	for _, shard := range a.Owned(node) {
		if shard.Queue == queue {
			n++
		}
	}
	return n
}

func gen(record, index uint64) plan.Generation {
	return plan.Generation{Record: record, Index: index}
}
