package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/run"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/certs"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
)

// Node handles the jobs of its queues. Build it with New, give it handlers with
// Handle, then call Run once.
type Node struct {
	cfg     Config
	unnamed bool // Run chooses the name
	log     *slog.Logger
	boot    string
	process process
	client  *queue.Client
	leases  *queue.Client // for the lease keeper alone
	certs   *certs.Store  // nil: no TLS
	metrics *metrics.Metrics
	queues  map[string]*handled // by name; not written after Run began

	current  atomic.Pointer[instance] // nil between two instances
	settled  atomic.Bool              // every desired shard has a runner, here or with a live owner
	listener atomic.Pointer[net.Listener]
	registry atomic.Pointer[registry] // as last read
	stopped  chan struct{}            // closed when the last instance has ended
	started  atomic.Bool
	reserved atomic.Bool             // the name, until the lease shows it
	drained  atomic.Bool             // an operator asked the node to give its shards away
	cluster  *cluster                // nil: no cluster; set by Run before its actors
	joined   atomic.Pointer[cluster] // the same, for callers of the node

	mu          sync.Mutex
	last        map[lowkiq.Shard]bool    // shards that this process was the last to own; guarded by mu
	absent      map[string]time.Duration // since when instances lack their lease; guarded by mu
	ends        map[string]time.Duration // since when instances with children are seen dead; guarded by mu
	absentUntil time.Duration            // until when absent claims count as held; guarded by mu
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
	client, err := queue.Open(queue.Config{Redis: cfg.Redis, Cluster: cfg.Cluster, TLS: cfg.RedisTLS})
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	leases, err := queue.Open(queue.Config{Redis: cfg.Redis, Cluster: cfg.Cluster, TLS: cfg.RedisTLS, Timeout: cfg.TTL / 6, PoolSize: 2})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node: %w", err), client.Close())
	}
	return &Node{
		cfg: cfg, unnamed: unnamed, log: cfg.Log.With("node", cfg.Name), boot: newBoot(), process: thisProcess(),
		client: client, leases: leases, certs: certificates, metrics: metrics.New(cfg.Registry),
		queues: map[string]*handled{}, stopped: make(chan struct{}),
		last: map[lowkiq.Shard]bool{}, absent: map[string]time.Duration{}, ends: map[string]time.Duration{},
	}, nil
}

// Name is the node's name. One that was not configured is settled once URL is known.
func (n *Node) Name() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cfg.Name
}

// Client pushes to the node's Redis and cluster.
func (n *Node) Client() *queue.Client { return n.client }

// Handle makes the node handle a queue. A handler that also has a method
// Run(context.Context) error gets it called for as long as the node runs.
func (n *Node) Handle(rules QueueConfig, handler lowkiq.Handler) error {
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
	on := &handled{rules: rules, metrics: n.metrics.Queue(rules.Name)}
	on.metrics.Shards.Set(float64(rules.Shards))
	on.service, _ = handler.(interface{ Run(context.Context) error })
	if granted, ok := handler.(interface{ Grant(time.Duration) }); ok {
		on.grant = granted.Grant
	}
	for i := len(rules.Middlewares) - 1; i >= 0; i-- {
		handler = rules.Middlewares[i](handler)
	}
	if rules.Decode != nil {
		handler = decoded(rules.Decode, handler) // middlewares see what the handler sees
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
	for _, line := range n.cfg.warnings() {
		n.log.Warn("reachable from other hosts", "detail", line)
	}
	server, err := n.client.Check(ctx, n.cfg.AllowEviction)
	if err != nil {
		return err
	}
	if server.AOFKnown && !server.AOF {
		n.log.Warn("redis has no append-only file: jobs survive its restart only as far as its snapshots do", "redis", n.client.Redis())
	}
	if err := n.settleName(ctx); err != nil {
		return err
	}
	for _, on := range n.queues {
		if on.queue, err = n.client.Register(ctx, lowkiq.Queue{Name: on.rules.Name, Shards: on.rules.Shards}); err != nil {
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
	if err := n.addHTTP(&group); err != nil {
		return err
	}
	if n.cfg.Bind != "" {
		var err error
		if n.cluster, err = newCluster(n); err != nil {
			return errors.Join(fmt.Errorf("node: %w", err), n.closeListener())
		}
		n.cluster.add(&group)
		n.joined.Store(n.cluster)
	}
	left, leave := context.WithCancel(ctx)
	group.Add(func() error { <-left.Done(); return nil }, func(error) { leave() })
	return group.Run()
}

// instances lives one instance after the other. An attempt to take a lease whose answer
// was lost may have succeeded, so that the next one needs a new name as well.
func (n *Node) instances(stop context.Context) error {
	wait := newBackoff()
	for number := 1; ; number++ {
		err := newInstance(stop, n, number).live()
		switch {
		case stop.Err() != nil:
			return nil
		case err == nil:
			wait = newBackoff() // it lived
			continue
		case !queue.Transient(err):
			return fmt.Errorf("node: %w", err)
		}
		n.log.Warn("no lease yet", "err", err)
		if wait.sleep(stop) != nil {
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
		return c.gossip.Address()
	}
	return ""
}
