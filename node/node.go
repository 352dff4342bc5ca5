package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/certs"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/internal/logbuf"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/status"
)

// Node handles the jobs of its queues. Build it with New, give it handlers with
// Handle, then call Run once.
type Node struct {
	cfg     Config
	unnamed bool // Run chooses the name
	log     *slog.Logger
	boot    string
	process identity.Process
	client  *queue.Client
	leases  *queue.Client // for the lease keeper alone
	certs   *certs.Store  // nil: no TLS
	metrics *metrics.Metrics
	events  *events.Publisher
	looks   int // for listeners, so far; of the goroutine that renews the lease
	queues  queues
	naming  naming
	server  server // attached, if any

	started  atomic.Bool                     // by Run, or closed
	stopped  chan struct{}                   // closed when the last instance has ended
	over     chan struct{}                   // closed when Run returns
	current  atomic.Pointer[instance]        // nil between two instances
	cluster  atomic.Pointer[cluster.Cluster] // nil without one; set by Run before its actors
	dialRaft rebalance.DialFunc              // for tests without TLS: a network with walls; or nil

	// What outlives an instance.
	settled atomic.Bool // every desired shard has a runner, here or with a live owner
	drained atomic.Bool // an operator asked the node to give its shards away
	absent  *claims.AbsentInstances
	orphans orphans   // found while this node leads
	outages outages   // of Redis
	ready   readiness // of its handlers

	mu sync.Mutex // guards cfg.Name and log until Run has chosen the name
}

// New validates cfg and builds a node. It does not connect. A node that is not Run is to be closed.
func New(cfg Config) (*Node, error) {
	unnamed := cfg.Name == ""
	cfg, err := cfg.withDefaults()
	if err == nil {
		cfg, err = cfg.reachable()
	}
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	certificates, err := cfg.openCertificates()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	client, err := queue.Open(queue.Config{Redis: cfg.Redis, Cluster: cfg.Cluster, TLS: cfg.RedisTLS, Middlewares: []queue.Middleware{metrics.Pushed(cfg.Registry)}})
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	leases, err := queue.Open(queue.Config{Redis: cfg.Redis, Cluster: cfg.Cluster, TLS: cfg.RedisTLS, Timeout: cfg.TTL / 6, PoolSize: 2})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node: %w", err), client.Close())
	}
	n := &Node{
		cfg: cfg, unnamed: unnamed, boot: identity.NewBoot(), process: identity.This(),
		client: client, leases: leases, certs: certificates, metrics: metrics.New(cfg.Registry),
		events: events.NewPublisher(events.Into(client.DB())),
		queues: queues{
			handled: map[string]*handled{}, client: client, leases: leases,
			inForce: inForce{book: rules.In(leases.DB()), values: map[string]rules.Values{}, said: map[[2]string]error{}},
		},
		stopped: make(chan struct{}), over: make(chan struct{}), absent: claims.NewAbsentInstances(cfg.now),
	}
	n.ready = readiness{handled: n.queues.handled, ttl: cfg.TTL}
	n.rename(cfg.Name)
	n.naming = naming{index: client.Leases(), boot: n.boot, process: n.process, log: n.log}
	cfg.Registry.MustRegister(metrics.Build(cfg.release()), &metrics.Working{Slots: n.slotsInUse, Children: n.queues.children, Calls: n.client.Waiting, Unlogged: n.unlogged}, &metrics.Shards{
		Read: n.figures, Timeout: cfg.TTL, // a scrape must not hang longer than a lease
		Failed: func(err error) {
			if !n.outages.note("read figures for a scrape", err) {
				n.log.Warn("figures not read for a scrape", "err", err)
			}
		},
	})
	return n, nil
}

// Name is the node's name. One that was not configured is settled once URL is known.
func (n *Node) Name() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cfg.Name
}

// rename gives the node its name, for the log too.
func (n *Node) rename(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cfg.Name, n.log = name, n.cfg.Log.With("node", name)
	n.queues.log, n.outages.log = n.log, n.log
}

// Client pushes to the node's Redis and cluster, by the rules of the queues that the node
// handles; see queue.Client.SetRules for other queues. It is closed with the node.
func (n *Node) Client() *queue.Client { return n.client }

// groupsOf are the groups of a queue that this node handles.
func (n *Node) groupsOf(queue string) rules.Groups {
	if on := n.queues.handled[queue]; on != nil {
		return on.rulesNow().Groups
	}
	return rules.Groups{}
}

// Cluster answers questions about the cluster, whose node this is, as a whole. A node without Bind
// is in none, and answers from what Redis says of nodes.
func (n *Node) Cluster() status.Cluster {
	return &inspector{client: n.client, cluster: &n.cluster, groups: n.groupsOf, here: func(owner string, s lowkiq.Shard, id string, cancel *queue.Cancellation) (queue.Whereabouts, bool) {
		if in := n.current.Load(); in != nil && in.name == owner {
			return in.wakeups.whereabouts(s, id, cancel), true
		}
		return queue.Whereabouts{}, false
	}}
}

// Metrics are what the node exports, and what else is in Config.Registry.
func (n *Node) Metrics() prometheus.Gatherer { return n.cfg.Registry }

// Gossip is the host:port at which other nodes may join this one, "" while there is none.
func (n *Node) Gossip() string { return n.cluster.Load().Address() }

// Handle makes the node handle a queue. A handler that also has a method
// Run(context.Context) error gets it called for as long as the node runs; one that has a method
// Ready() error is asked whether it can work. See lowkiq.Handler.
func (n *Node) Handle(rules QueueConfig, handler lowkiq.Handler) error {
	if err := rules.Validate(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	switch {
	case handler == nil:
		return fmt.Errorf("node: queue %q has no handler", rules.Name)
	case n.queues.handled[rules.Name] != nil:
		return fmt.Errorf("node: queue %q has a handler already", rules.Name)
	case n.started.Load():
		return fmt.Errorf("node: queue %q: Handle was called after Run", rules.Name)
	}
	if codec := rules.Push.Codec; codec.Encode != nil && codec.Decode == nil {
		return fmt.Errorf("node: queue %q: the codec encodes and does not decode: the handler would get what is stored", rules.Name)
	}
	// The leases' client registers a queue again that Redis has lost.
	for _, client := range []*queue.Client{n.client, n.leases} {
		if err := client.SetRules(rules.Name, rules.Push); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	n.queues.handled[rules.Name] = newHandled(rules, handler, n.metrics)
	return nil
}

// Run works until ctx ends, then drains: it finishes the batches in flight, gives its
// shards back and returns nil. It must be called once; it closes the node.
func (n *Node) Run(ctx context.Context) (err error) {
	if n.started.Swap(true) {
		return errors.New("node: Run was called twice, or after Close")
	}
	defer close(n.over)
	defer logbuf.Flush(n.cfg.Log, time.Second)
	defer func() { err = errors.Join(err, n.leases.Close(), n.client.Close()) }()
	defer func() { n.naming.free(ctx) }()
	if err := n.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before it began
		}
		return fmt.Errorf("node: %w", err)
	}
	return n.runGroup(ctx)
}

// Close ends the connections to Redis of a node that is not Run, as when Handle has failed; Client
// may have opened some. It must not be called while Run begins. A node that runs, or has run, is
// closed by Run: then Close does nothing, so a program may always defer it.
func (n *Node) Close() error {
	if n.started.Swap(true) {
		return nil
	}
	return errors.Join(n.leases.Close(), n.client.Close())
}

// prepare connects, settles the name and registers the queues.
func (n *Node) prepare(ctx context.Context) error {
	if faults := n.cfg.exposed(); len(faults) > 0 {
		n.log.Warn("reachable from other hosts", "detail", "insecure: "+errors.Join(faults...).Error())
	}
	server, err := n.client.Check(ctx, n.cfg.AllowEviction)
	if err != nil {
		return err
	}
	if aof, known := server.Fields["aof_enabled"]; known && aof != "1" {
		n.log.Warn("redis has no append-only file: jobs survive its restart only as far as its snapshots do", "redis", n.client.Redis())
	}
	if n.unnamed {
		name, err := n.naming.find(ctx, n.cfg.Name)
		if err != nil {
			return err
		}
		n.rename(name)
	}
	if err := n.queues.open(ctx); err != nil {
		return err
	}
	if n.cfg.OnStart != nil {
		return n.cfg.OnStart()
	}
	return nil
}

// runGroup runs the process's actors. The instances end first: the others interrupt
// only after them, because a drain needs the handlers, the API and the metrics.
func (n *Node) runGroup(ctx context.Context) error {
	var group run.Group
	stop, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	group.Add(func() error {
		defer close(n.stopped)
		return n.instances(stop)
	}, func(error) {
		go n.endInTime()
		cancel(lowkiq.ErrShutdown)
	})
	for name, on := range n.queues.handled {
		if on.service != nil {
			n.addActor(&group, fmt.Sprintf("handler of queue %q: ", name), on.service.Run)
		}
	}
	if n.server.serve != nil {
		if err := n.server.open(); err != nil {
			return fmt.Errorf("node: %w", err)
		}
		n.addActor(&group, "", n.server.serve)
	}
	n.addActor(&group, "", n.recur)
	n.addActor(&group, "", n.events.Run)
	n.addActor(&group, "", n.countDays)
	n.addActor(&group, "", func(ctx context.Context) error { n.joinDays(ctx, joinEvery); return nil })
	if n.cfg.Bind != "" {
		joined, err := cluster.New(n.clusterConfig())
		if err != nil {
			return errors.Join(fmt.Errorf("node: %w", err), n.server.close())
		}
		joined.Add(&group, n.stopped)
		n.cluster.Store(joined)
	}
	left, leave := context.WithCancel(ctx)
	group.Add(func() error { <-left.Done(); return nil }, func(error) { leave() })
	return group.Run()
}

// endInTime ends the process if Run does not return in time, whatever hangs.
func (n *Node) endInTime() {
	limit := n.cfg.ShutdownTimeout + n.cfg.overtime
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-n.over:
	case <-timer.C:
		n.log.Error("the shutdown has not ended in time", "limit", limit)
		n.cfg.OnOverrun(runner.Stacks())
	}
}

// unlogged is how many lines of the log were dropped.
func (n *Node) unlogged() int64 {
	lines, _ := logbuf.Dropped(n.cfg.Log)
	return lines
}

// addActor runs what instances need until the last one has ended. Its error ends the node, its
// return does not.
func (n *Node) addActor(group *run.Group, what string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	group.Add(func() error {
		if err := run(ctx); err != nil {
			return fmt.Errorf("node: %s%w", what, err)
		}
		<-ctx.Done()
		return nil
	}, func(error) { <-n.stopped; cancel() })
}

// clusterConfig is what the cluster needs to know of this process.
func (n *Node) clusterConfig() cluster.Config {
	return cluster.Config{
		Cluster: n.cfg.Cluster, Node: n.cfg.Name, Boot: n.boot, Process: n.process, TTL: n.cfg.TTL,
		Bind: n.cfg.Bind, Advertise: n.cfg.Advertise, Join: n.cfg.Join, GossipKeys: n.cfg.GossipKeys, Insecure: n.cfg.Insecure,
		FewNodes: n.cfg.fewNodes, Redis: n.leases, Leases: n.leases.Leases(), Log: n.log, Now: n.cfg.now, Network: n.raftNetwork,
		Registry: n.queues.within,
		Instance: func() (name string, leased bool) {
			if in := n.current.Load(); in != nil {
				return in.name, in.keeper.Holds()
			}
			return "", false
		},
		Changed: func(lease bool) {
			in := n.current.Load()
			if in == nil {
				return
			}
			in.claims.Kick()
			if lease {
				in.keeper.Poke()
			}
		},
		WriteDown: changes.In(n.leases.DB()).Add,
		Applied: func(leads bool, generation uint64) {
			n.metrics.RaftLeader.Set(map[bool]float64{true: 1}[leads])
			n.metrics.Generation.Set(float64(generation))
		},
		OutOfReach: n.outages.note,
		Hung:       n.cfg.hung,
	}
}

// instances lives one instance after the other. An attempt to take a lease whose answer
// was lost may have succeeded, so that the next one needs a new name as well.
func (n *Node) instances(stop context.Context) error {
	wait := runner.NewBackoff()
	for number := 1; ; number++ {
		err := n.queues.registerAnew(stop, n.absent)
		if err == nil {
			err = newInstance(stop, n, number).live()
		}
		switch {
		case stop.Err() != nil:
			return nil
		case err == nil:
			wait = runner.NewBackoff() // it lived
			continue
		case !queue.Transient(err):
			return fmt.Errorf("node: %w", err)
		}
		if !n.outages.note("take a lease", err) {
			n.log.Warn("no lease yet", "err", err)
		}
		if wait.Sleep(stop) != nil {
			return nil
		}
	}
}

// drain gives all shards away, or takes some again, until the process ends.
func (n *Node) drain(on bool) {
	if n.drained.Swap(on) == on {
		return
	}
	n.log.Info("drain", "on", on)
	if in := n.current.Load(); in != nil {
		in.announce()
		in.claims.Kick()
	}
}

// Ready says why the node does not serve all its shards yet, or any more: nil if it
// does. A rolling update waits for it.
func (n *Node) Ready() error {
	in := n.current.Load()
	switch {
	case in == nil:
		return errors.New("no lease yet")
	case in.ownership.leaves():
		return errors.New("draining")
	case in.ownership.cluster.Superseded():
		return fmt.Errorf("name %s is taken by a newer process", n.cfg.Name)
	case !in.mayWork():
		return errors.New("lease lost, taking a new one")
	case in.ownership.cluster.Hung() != "":
		return errors.New(in.ownership.cluster.Hung())
	case n.ready.text() != "":
		return errors.New(n.ready.text())
	case !n.settled.Load():
		return errors.New("shards are not claimed yet")
	}
	return nil
}

// Attach makes Run run a server, such as the API: see web.Serve. listen is called once the node has
// its name, and before the first lease, which tells the URL that it returns. Then serve is called,
// once, until the node has handed back all its shards; it ends, and closes what listen has opened,
// when its context does. An error of either ends Run.
func (n *Node) Attach(listen func() (url string, err error), serve func(context.Context) error) error {
	switch {
	case n.started.Load():
		return errors.New("node: Attach was called after Run")
	case n.server.serve != nil:
		return errors.New("node: a server is attached already")
	}
	n.server.listen, n.server.serve = listen, serve
	return nil
}

// URL is where the attached server is reached, "" while there is none.
func (n *Node) URL() string {
	if url := n.server.url.Load(); url != nil {
		return *url
	}
	return ""
}

// server is what Attach was given.
type server struct {
	listen func() (url string, err error)
	serve  func(context.Context) error
	url    atomic.Pointer[string]
}

func (s *server) open() error {
	url, err := s.listen()
	if err == nil {
		s.url.Store(&url)
	}
	return err
}

// close frees the port of a node that does not get to serve.
func (s *server) close() error {
	if s.serve == nil {
		return nil
	}
	ended, end := context.WithCancel(context.Background())
	end()
	return s.serve(ended)
}
