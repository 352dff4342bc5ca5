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
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/rebalance"
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
	queues  map[string]*handled // by name; not written after Run began

	current  atomic.Pointer[instance] // nil between two instances
	settled  atomic.Bool              // every desired shard has a runner, here or with a live owner
	server   server                   // attached, if any
	url      atomic.Pointer[string]   // of the server
	registry atomic.Pointer[registry] // as last read
	unowned  unowned                  // while this node leads
	stopped  chan struct{}            // closed when the last instance has ended
	started  atomic.Bool
	reserved atomic.Bool                     // the name, until the lease shows it
	drained  atomic.Bool                     // an operator asked the node to give its shards away
	outages  failureLog                      // of Redis; all instances and the cluster share it
	unready  unready                         // handlers that cannot work
	cluster  *cluster.Cluster                // nil: no cluster; set by Run before its actors
	joined   atomic.Pointer[cluster.Cluster] // the same, for callers of the node
	dialRaft rebalance.DialFunc              // for tests: a network with walls

	absent *claims.AbsentInstances

	mu sync.Mutex // guards cfg.Name and log until Run has chosen the name
}

// New validates cfg and builds a node. It does not connect.
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
		cfg: cfg, unnamed: unnamed, log: cfg.Log.With("node", cfg.Name), boot: identity.NewBoot(), process: identity.This(),
		client: client, leases: leases, certs: certificates, metrics: metrics.New(cfg.Registry),
		queues: map[string]*handled{}, stopped: make(chan struct{}),
		absent: claims.NewAbsentInstances(cfg.now),
	}
	cfg.Registry.MustRegister(metrics.Build(n.release()), &metrics.Working{Slots: n.slotsInUse, Children: n.childrenInUse}, &metrics.Shards{
		Read: n.figures, Timeout: cfg.TTL, // a scrape must not hang longer than a lease
		Failed: func(err error) {
			if !n.outOfReach("read figures for a scrape", err) {
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

// Client pushes to the node's Redis and cluster, by the rules of the queues that the node
// handles; see queue.Client.SetRules for other queues.
func (n *Node) Client() *queue.Client { return n.client }

// Handle makes the node handle a queue. A handler that also has a method
// Run(context.Context) error gets it called for as long as the node runs; one that has a method
// Ready() error is asked whether it can work. See lowkiq.Handler.
func (n *Node) Handle(rules QueueConfig, handler lowkiq.Handler) error {
	registered := rules.Shards == 0 // or the default
	rules = rules.withDefaults()
	if err := rules.Validate(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	switch {
	case handler == nil:
		return fmt.Errorf("node: queue %q has no handler", rules.Name)
	case n.queues[rules.Name] != nil:
		return fmt.Errorf("node: queue %q has a handler already", rules.Name)
	case n.started.Load():
		return fmt.Errorf("node: queue %q: Handle was called after Run", rules.Name)
	}
	if codec := rules.Push.Codec; codec.Encode != nil && codec.Decode == nil {
		return fmt.Errorf("node: queue %q: the codec encodes and does not decode: the handler would get what is stored", rules.Name)
	}
	for _, client := range []*queue.Client{n.client, n.leases} { // that of the leases registers a queue again that Redis has lost
		if err := client.SetRules(rules.Name, rules.Push); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	on := &handled{rules: rules, asRegistered: registered, metrics: n.metrics.Queue(rules.Name)}
	on.metrics.Shards.Set(float64(rules.Shards))
	on.service, _ = handler.(interface{ Run(context.Context) error })
	if scarce, ok := handler.(interface {
		Reserve(context.Context) (func(context.Context) context.Context, func(), error)
		Processes() int
	}); ok {
		on.reserve, on.processes, on.processWait = scarce.Reserve, scarce.Processes(), on.metrics.ProcessWait()
	}
	if teller, ok := handler.(interface{ Ready() error }); ok {
		on.ready = teller.Ready
		on.metrics.Ready().Set(1)
	}
	if granted, ok := handler.(interface{ Grant(time.Duration) }); ok {
		on.grant = granted.Grant
	}
	if parent, ok := handler.(interface{ Children() (running, busy int) }); ok {
		on.children = parent.Children
	}
	for i := len(rules.Middlewares) - 1; i >= 0; i-- {
		handler = rules.Middlewares[i](handler)
	}
	if rules.Push.Codec.Decode != nil {
		handler = runner.Decoded(rules.Push.Codec.Decode, handler) // middlewares see what the handler sees
	}
	on.handler = handler
	n.queues[rules.Name] = on
	return nil
}

// Run works until ctx ends, then drains: it finishes the batches in flight, gives its
// shards back and returns nil. It must be called once.
func (n *Node) Run(ctx context.Context) (err error) {
	if n.started.Swap(true) {
		return errors.New("node: Run was called twice")
	}
	defer func() {
		err = errors.Join(err, n.leases.Close(), n.client.Close())
		if err != nil && n.cfg.LastWords != nil {
			n.cfg.LastWords(err)
		}
	}()
	defer func() { n.freeName(ctx, n.cfg.Name) }()
	if err := n.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before it began
		}
		return fmt.Errorf("node: %w", err)
	}
	return n.runGroup(ctx)
}

// prepare connects and registers the queues.
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
	if err := n.settleName(ctx); err != nil {
		return err
	}
	for _, on := range n.queues {
		if err := n.register(ctx, on); err != nil {
			return err
		}
	}
	if err := n.readPaused(ctx); err != nil {
		return err
	}
	if n.cfg.OnStart != nil {
		return n.cfg.OnStart()
	}
	return nil
}

// register finds a queue's shards. One whose entry is damaged has none until that is mended: the node's other queues go on.
func (n *Node) register(ctx context.Context, on *handled) error {
	err := n.find(ctx, on)
	if errors.Is(err, queue.ErrEntryDamaged) {
		on.queue, err = nil, nil // the log and the status tell with the first renewal of the lease
	}
	return err
}

// find finds a queue's shards: those of the registry where the rules name no count.
func (n *Node) find(ctx context.Context, on *handled) (err error) {
	if on.asRegistered {
		on.queue, err = n.client.Queue(ctx, on.rules.Name)
	}
	if !on.asRegistered || errors.Is(err, lowkiq.ErrUnknownQueue) {
		on.queue, err = n.client.Register(ctx, lowkiq.Queue{Name: on.rules.Name, Shards: on.rules.Shards})
	}
	if err != nil {
		return err
	}
	on.rules.Shards = on.queue.Shards
	on.metrics.Shards.Set(float64(on.queue.Shards))
	return n.client.PublishRules(ctx, on.rules.Name)
}

// readPaused lets a queue that was paused before the node started stay so.
func (n *Node) readPaused(ctx context.Context) error {
	entries, err := n.client.Registry(ctx)
	for name, on := range n.queues {
		on.paused.Store(entries[name].Paused)
	}
	return err
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
	}, func(error) { cancel(lowkiq.ErrShutdown) })
	n.addServices(&group)
	if err := n.addServer(&group); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if n.cfg.Bind != "" {
		var err error
		if n.cluster, err = cluster.New(n.clusterConfig()); err != nil {
			return errors.Join(fmt.Errorf("node: %w", err), n.closeServer())
		}
		n.cluster.Add(&group, n.stopped)
		n.joined.Store(n.cluster)
	}
	left, leave := context.WithCancel(ctx)
	group.Add(func() error { <-left.Done(); return nil }, func(error) { leave() })
	return group.Run()
}

// clusterConfig is what the cluster needs to know of this process.
func (n *Node) clusterConfig() cluster.Config {
	return cluster.Config{
		Cluster: n.cfg.Cluster, Node: n.cfg.Name, Boot: n.boot, Process: n.process, TTL: n.cfg.TTL,
		Bind: n.cfg.Bind, Advertise: n.cfg.Advertise, Join: n.cfg.Join, GossipKeys: n.cfg.GossipKeys, Insecure: n.cfg.Insecure,
		FewNodes: n.cfg.fewNodes, Redis: n.leases, Log: n.log, Now: n.cfg.now, Network: n.raftNetwork, Dial: n.dialRaft,
		Registry: func(ctx context.Context, within time.Duration) (map[string]queue.Entry, error) {
			registry := n.registry.Load()
			if registry == nil || sinceBoot()-registry.at > within {
				var err error
				if registry, err = n.readRegistry(ctx); err != nil {
					return nil, err
				}
			}
			return registry.all, nil
		},
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
		Applied: func(leads bool, generation uint64) {
			n.metrics.RaftLeader.Set(map[bool]float64{true: 1}[leads])
			n.metrics.Generation.Set(float64(generation))
		},
		OutOfReach: n.outOfReach,
	}
}

// instances lives one instance after the other. An attempt to take a lease whose answer
// was lost may have succeeded, so that the next one needs a new name as well.
func (n *Node) instances(stop context.Context) error {
	wait := runner.NewBackoff()
	for number := 1; ; number++ {
		err := newInstance(stop, n, number).live()
		switch {
		case stop.Err() != nil:
			return nil
		case err == nil:
			wait = runner.NewBackoff() // it lived
			continue
		case !queue.Transient(err):
			return fmt.Errorf("node: %w", err)
		}
		if !n.outOfReach("take a lease", err) {
			n.log.Warn("no lease yet", "err", err)
		}
		if wait.Sleep(stop) != nil {
			return nil
		}
	}
}

// addServices runs handlers that have a loop of their own.
func (n *Node) addServices(group *run.Group) {
	for name, on := range n.queues {
		if on.service == nil {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		group.Add(func() error {
			err := on.service.Run(ctx)
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("node: handler of queue %q: %w", name, err)
			}
			<-ctx.Done()
			return nil
		}, func(error) { <-n.stopped; cancel() })
	}
}

// Gossip is the host:port at which other nodes may join this one, "" while there is none.
func (n *Node) Gossip() string {
	if c := n.joined.Load(); c != nil {
		return c.Address()
	}
	return ""
}

// Metrics are what the node exports, and what else is in Config.Registry.
func (n *Node) Metrics() prometheus.Gatherer { return n.cfg.Registry }

// Ready says why the node does not serve all its shards yet, or any more: nil if it
// does. A rolling update waits for it.
func (n *Node) Ready() error {
	in := n.current.Load()
	switch {
	case in == nil:
		return errors.New("no lease yet")
	case in.leaves():
		return errors.New("draining")
	case n.cluster != nil && n.cluster.Superseded():
		return fmt.Errorf("name %s is taken by a newer process", n.cfg.Name)
	case !in.mayWork():
		return errors.New("lease lost, taking a new one")
	case n.unready.text() != "":
		return errors.New(n.unready.text())
	case !n.settled.Load():
		return errors.New("shards are not claimed yet")
	}
	return nil
}
