package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/network/certs"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/rebalance"
)

// Node handles the jobs of its queues. Build it with New, give it handlers with Handle, and then call Run once.
type Node struct {
	cfg            Config
	unnamed        bool // the name is not configured, and Run finds it
	log            *slog.Logger
	boot           string
	process        identity.Process
	producer       *queue.Client    // as Client returns it
	client         *protocol.Client // of producer
	leases         *protocol.Client // for the lease, so that no other request delays a renewal
	certs          *certs.Store     // nil without TLS
	metrics        *metrics.Metrics
	events         *events.Publisher
	listenerChecks int // number of checks for listeners; used by the goroutine that renews the lease
	queues         queues
	load           *load
	naming         naming
	server         server // the attached server, if any

	started  atomic.Bool                     // Run or Close was called
	stopped  chan struct{}                   // closed when the last instance has ended
	returned chan struct{}                   // closed when Run returns
	current  atomic.Pointer[instance]        // nil between two instances
	cluster  atomic.Pointer[cluster.Cluster] // nil without a cluster; set by Run before its actors
	dialRaft rebalance.DialFunc              // replaces the network in tests without TLS; otherwise nil

	// State that outlives an instance.
	settled atomic.Bool // every desired shard has a runner, here or at a live owner
	drained atomic.Bool // an operator asked the node to give its shards away
	absent  *claims.AbsentInstances
	orphans orphans // found while this node leads
	outages outages // of Redis
	redis   redisTrouble
	ready   readiness // of its handlers

	mu sync.Mutex // guards cfg.Name and log until Run has chosen the name
}

// New validates cfg and builds a node. It does not connect. A node whose Run is not called must be closed.
func New(cfg Config) (*Node, error) {
	unnamed := cfg.Name == ""
	cfg, err := cfg.withDefaults()
	if err == nil {
		cfg, err = cfg.withAdvertise()
	}
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	certificates, err := cfg.openCertificates()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	producer, err := queue.Open(queue.Config{Redis: cfg.Redis, Cluster: cfg.Cluster, TLS: cfg.RedisTLS, Middlewares: []queue.Middleware{metrics.Pushed(cfg.Registry)}})
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	leases, err := protocol.Open(protocol.Config{Redis: cfg.Redis, Cluster: cfg.Cluster, TLS: cfg.RedisTLS, Timeout: cfg.TTL / 6, PoolSize: 2})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node: %w", err), producer.Close())
	}
	client, m := producer.Protocol(), metrics.New(cfg.Registry)
	n := &Node{
		cfg: cfg, unnamed: unnamed, boot: identity.NewBoot(), process: identity.ThisProcess(),
		producer: producer, client: client, leases: leases, certs: certificates, metrics: m,
		events: events.NewPublisher(events.Into(client.DB())),
		queues: queues{
			handled: map[string]*handled{}, client: client, leases: leases, reading: make(chan struct{}, 1), metrics: m,
			inForce: inForce{book: rules.In(leases.DB()), ends: map[string]time.Time{}, values: map[string]map[string]string{}, logged: map[[2]string]error{}},
		},
		load: newLoad(), stopped: make(chan struct{}), returned: make(chan struct{}), absent: claims.NewAbsentInstances(cfg.now),
	}
	if cfg.Bind == "" {
		n.metrics.NoRaft()
	}
	n.ready = readiness{handled: n.queues.handled, ttl: cfg.TTL}
	if err := n.handleWorkflows(); err != nil {
		return nil, errors.Join(err, producer.Close(), leases.Close())
	}
	n.setName(cfg.Name)
	n.naming = naming{index: client.Leases(), boot: n.boot, process: n.process, log: n.log}
	cfg.Registry.MustRegister(metrics.Build(cfg.lowkiqVersion()), &metrics.Working{Slots: n.slotsInUse, Children: n.queues.childUse, Calls: n.client.Waiting, Unlogged: n.droppedLines}, &metrics.Shards{
		Read: n.readFigures, Timeout: cfg.TTL, // a scrape must not hang longer than a lease
		Failed: func(err error) {
			if !n.outages.reportFailure("read figures for a scrape", err) {
				n.log.Warn("figures not read for a scrape", "err", err)
			}
		},
	})
	return n, nil
}

// Name returns the node's name. A name that was not configured is final once URL returns an address.
func (n *Node) Name() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cfg.Name
}

// setName sets the node's name, also in its log.
func (n *Node) setName(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cfg.Name, n.log = name, n.cfg.Log.With("node", name)
	n.queues.log, n.outages.log = n.log, n.log
}

// Client returns the client of the node's Redis and cluster. It pushes by the rules of the queues that the node handles;
// see queue.Client.SetRules for other queues. It is closed with the node.
func (n *Node) Client() *queue.Client { return n.producer }

// Metrics returns the node's metrics, with all other metrics of Config.Registry.
func (n *Node) Metrics() prometheus.Gatherer { return n.cfg.Registry }

// Gossip returns the host:port where other nodes may join this node, or "" before there is an address.
func (n *Node) Gossip() string { return n.cluster.Load().GossipAddress() }

// Handle makes the node handle a queue. [Node.Run] registers the queue, so until then a push fails with
// lowkiq.ErrUnknownQueue if nobody has registered it. If the handler has a method Run(context.Context) error, the node calls it once, for as
// long as the node runs. If it has a method Ready() error, the node asks it whether the handler can work. See lowkiq.Handler.
func (n *Node) Handle(rules QueueConfig, handler lowkiq.Handler) error {
	if err := protocol.CheckNotReserved(rules.Name); err != nil {
		return fmt.Errorf("node: %w", err)
	}
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
	if codec := rules.Codec; codec.Encode != nil && codec.Decode == nil {
		return fmt.Errorf("node: queue %q: the codec encodes and does not decode, so the handler would get encoded payloads", rules.Name)
	}
	return n.addHandled(newHandled(rules, handler, n.metrics))
}

// addHandled adds a queue to the handled queues, and sets its rules for pushes and claims.
func (n *Node) addHandled(on *handled) error {
	rules := on.configured
	// The client of the leases registers queues again that Redis has lost.
	for _, client := range []*protocol.Client{n.client, n.leases} {
		if err := client.SetRules(rules.Name, rules.pushRules()); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	n.client.SetDeadTo(rules.Name, rules.Then.Dead)
	n.queues.handled[rules.Name] = on
	return nil
}

// Run works until ctx ends, and then drains. It finishes the running handler calls, gives the shards back and returns nil.
// It must be called once. It closes the node.
func (n *Node) Run(ctx context.Context) (err error) {
	if n.started.Swap(true) {
		return errors.New("node: Run was called twice, or after Close")
	}
	defer close(n.returned)
	defer logbuf.Flush(n.cfg.Log, time.Second)
	defer func() { err = errors.Join(err, n.leases.Close(), n.client.Close()) }()
	defer func() { n.naming.endReservation(ctx) }()
	if err := n.prepareRun(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // ctx ended before the work began
		}
		return fmt.Errorf("node: %w", err)
	}
	return n.runGroup(ctx)
}

// Close closes the connections to Redis of a node whose Run was not called, for example because Handle failed. Client may
// have opened some. Close must not be called while Run begins. Run closes the node itself, and Close does
// nothing then. So a program may always defer Close.
func (n *Node) Close() error {
	if n.started.Swap(true) {
		return nil
	}
	return errors.Join(n.leases.Close(), n.client.Close())
}

// prepareRun connects, finds the name and registers the queues.
func (n *Node) prepareRun(ctx context.Context) error {
	if faults := n.cfg.findExposures(); len(faults) > 0 {
		n.log.Warn("reachable from other hosts", "detail", "insecure: "+errors.Join(faults...).Error())
	}
	server, err := n.client.Check(ctx, n.cfg.AllowEviction)
	if err != nil {
		return err
	}
	if aof, known := server.Fields["aof_enabled"]; known && aof != "1" {
		n.log.Warn("redis has no append-only file, so jobs since its last snapshot are lost if it restarts", "redis", n.client.Redis())
	}
	if n.unnamed {
		name, err := n.naming.findName(ctx, n.cfg.Name)
		if err != nil {
			return err
		}
		n.setName(name)
	}
	if err := n.queues.registerAll(ctx); err != nil {
		return err
	}
	entries, damaged, err := n.client.Registry().Read(ctx)
	if err != nil {
		return err
	}
	registered := slices.AppendSeq(slices.Collect(maps.Keys(entries)), maps.Keys(damaged))
	for _, text := range append(recurring.UnknownQueues(n.cfg.Recurring, registered), rules.UnknownQueues(n.Then(), registered)...) {
		n.log.Warn(text)
	}
	if n.cfg.OnStart != nil {
		return n.cfg.OnStart()
	}
	return nil
}

// runGroup runs the actors of the process. The instances end first. The other actors end only after them, because a drain
// needs the handlers, the API and the metrics.
func (n *Node) runGroup(ctx context.Context) error {
	var group run.Group
	stop, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	group.Add(func() error {
		defer close(n.stopped)
		return n.runInstances(stop)
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
	n.addActor(&group, "", n.runRecurring)
	n.addActor(&group, "", n.runReshards)
	n.addActor(&group, "", n.events.Run)
	n.addActor(&group, "", n.countDays)
	if n.cfg.Bind != "" {
		joined, err := cluster.New(n.clusterConfig())
		if err != nil {
			return errors.Join(fmt.Errorf("node: %w", err), n.server.close())
		}
		joined.AddActors(&group, n.stopped)
		n.cluster.Store(joined)
	}
	left, leave := context.WithCancel(ctx)
	group.Add(func() error { <-left.Done(); return nil }, func(error) { leave() })
	return group.Run()
}

// endInTime ends the process if Run does not return in time, for any reason.
func (n *Node) endInTime() {
	limit := n.cfg.ShutdownTimeout + n.cfg.overtime
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-n.returned:
	case <-timer.C:
		n.log.Error("the shutdown has not ended in time", "limit", limit)
		n.cfg.OnOverrun(runner.AllStacks())
	}
}

// droppedLines returns the number of lines of the log that were dropped.
func (n *Node) droppedLines() int64 {
	lines, _ := logbuf.Dropped(n.cfg.Log)
	return lines
}

// addActor adds an actor that instances need. It runs until the last instance has ended. An error of run ends the node, and
// an early return without an error does not.
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

// clusterConfig returns the dependencies of the cluster on this process.
func (n *Node) clusterConfig() cluster.Config {
	return cluster.Config{
		Cluster: n.cfg.Cluster, Node: n.cfg.Name, Boot: n.boot, Process: n.process, TTL: n.cfg.TTL,
		Bind: n.cfg.Bind, Advertise: n.cfg.Advertise, Join: n.cfg.Join, GossipKeys: n.cfg.GossipKeys, Insecure: n.cfg.Insecure,
		MaxNodesReadingAll: n.cfg.fewNodes, Redis: n.leases, Leases: n.leases.Leases(), Log: n.log, Now: n.cfg.now, Network: n.raftNetwork,
		Registry: n.queues.entriesWithin,
		Instance: func() (name string, leased bool) {
			if in := n.current.Load(); in != nil {
				return in.name, in.keeper.Holds()
			}
			return "", false
		},
		OnChange: func(lease bool) {
			in := n.current.Load()
			if in == nil {
				return
			}
			in.claims.Kick()
			if lease {
				in.keeper.RenewNow()
			}
		},
		WriteChange: changes.In(n.leases.DB()).Add,
		OnPlan: func(leads bool, generation uint64) {
			n.metrics.RaftLeader.Set(map[bool]float64{true: 1}[leads])
			n.metrics.Generation.Set(float64(generation))
		},
		OutOfReach: n.outages.reportFailure,
		OnHung:     n.cfg.hung,
	}
}

// runInstances runs one instance after the other. Each instance has a name of its own, even if the instance before it got no
// lease. Redis may have that lease nevertheless, because the answer to the request may have been lost.
func (n *Node) runInstances(stop context.Context) error {
	wait, lines := runner.NewBackoff(), failureLog{}
	for number := 1; ; number++ {
		err := newInstance(stop, n, number).run()
		switch {
		case stop.Err() != nil:
			return nil
		case err == nil:
			wait = runner.NewBackoff() // the instance had a lease
			continue
		case !protocol.Transient(err) && !protocol.Denied(err):
			return fmt.Errorf("node: %w", err)
		}
		n.redis.setFailed(err)
		if !n.outages.reportFailure("take a lease", err) {
			if left, ok := lines.mayLog(err.Error()); ok {
				n.log.Warn("no lease yet, trying again", "err", err, "left_out", left)
			}
		}
		if wait.Sleep(stop) != nil {
			return nil
		}
	}
}

// setDrained makes the node give all its shards away, or take shards again.
func (n *Node) setDrained(on bool) {
	if n.drained.Swap(on) == on {
		return
	}
	n.log.Info("drain", "on", on)
	if in := n.current.Load(); in != nil {
		in.announceChange()
		in.claims.Kick()
	}
}

// Ready returns nil if the node serves all its shards, and the reason otherwise. A reason that lies in Redis includes its
// error. A rolling update waits for nil.
func (n *Node) Ready() error {
	in, unready := n.current.Load(), n.ready.describeUnready()
	switch {
	case in == nil:
		return n.redis.explain("no lease yet")
	case in.ownership.isLeaving():
		return errors.New("draining")
	case in.ownership.cluster.Superseded():
		return fmt.Errorf("name %s is taken by a newer process", n.cfg.Name)
	case !in.mayWork():
		return n.redis.explain("lease lost, taking a new one")
	case in.ownership.cluster.HungPart() != "":
		return errors.New(in.ownership.cluster.HungPart())
	case unready != "":
		return errors.New(unready)
	case !n.settled.Load():
		return errors.New("shards are not claimed yet")
	}
	return nil
}

// Attach makes Run run a server, such as the API; see web.Serve. Run calls listen once the node has its name, and before
// the first lease, because the lease shows the URL that listen returns. Then it calls serve, whose context ends
// when the node has handed back all its shards. serve must return then, and close all that listen has opened. An
// error of either function ends Run.
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

// URL returns the address of the attached server, or "" before it listens.
func (n *Node) URL() string {
	if url := n.server.url.Load(); url != nil {
		return *url
	}
	return ""
}

// server is the attached server; see Attach.
type server struct {
	listen func() (url string, err error)
	serve  func(context.Context) error
	url    atomic.Pointer[string]
}

// open makes the server listen.
func (s *server) open() error {
	url, err := s.listen()
	if err == nil {
		s.url.Store(&url)
	}
	return err
}

// close frees the port of a server that listens and will not serve.
func (s *server) close() error {
	if s.serve == nil {
		return nil
	}
	ended, end := context.WithCancel(context.Background())
	end()
	return s.serve(ended)
}
