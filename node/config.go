package node

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/network/hosts"
	"github.com/lowkiq/lowkiq/internal/process/clock"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/node/internal/lease"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Config describes a node. The zero value of a field is its default.
type Config struct {
	// Name is the node's stable name. Default: the host's; if a live node has it, <host>-2, -3, …
	Name    string
	Redis   string // see queue.Config.Redis
	Cluster string // shared by the nodes of a cluster. Default "default"

	// Concurrency is the maximum number of handler calls of the node at once. Default GOMAXPROCS x 4.
	Concurrency int
	// TTL is the time to live of the lease, 3 s to 120 s. Default 6 s. The node renews the lease every TTL/6.
	// It cancels handlers 0.7 TTL after the last good renewal, or when it finds that another node has their
	// shard. A handler that still runs 0.2 TTL later leads to OnOverrun. After a crash that no other process
	// of the host can prove, other nodes wait for a TTL before they claim the node's shards.
	TTL time.Duration
	// PollInterval is the time between two polls of a busy shard, or of a shard without a confirmed
	// subscription. Default 1 s. The time between polls of idle shards grows up to 60 s.
	PollInterval time.Duration
	// ShutdownTimeout is the time that handlers have at shutdown. Default [DefaultShutdownTimeout].
	ShutdownTimeout time.Duration
	// RedisTLS overrides the TLS settings of a rediss:// URL. Default: the authorities of the system, no client certificate.
	RedisTLS *tls.Config
	// AllowEviction accepts a Redis that may evict keys.
	AllowEviction bool

	// Bind is the host:port of gossip (TCP and UDP). Raft listens one port above. If it is empty, the node
	// takes no part in a cluster and works on every shard of its queues, unless it is static; see Of. A second such node stands by.
	Bind string
	// Advertise is the host where other nodes reach this node. Default: the host of Bind, or the first
	// private address of the host if the node listens at all addresses.
	Advertise string
	// Join names any nodes of the cluster. If it is empty, the node finds its peers by their leases.
	Join []string
	// Weight is the node's share of shards relative to the others. Default 1.
	Weight int
	// GossipKeys encrypt the gossip (AES, 16, 24 or 32 bytes). The first key encrypts, and all keys decrypt.
	// Required to gossip beyond loopback, unless Insecure.
	GossipKeys [][]byte

	// Of and Number make the node static. It takes part in no cluster. It owns the shards of its queues whose index modulo Of
	// is Number, and no other node takes them. Of nodes must have the Numbers 0 to Of-1. A shard in the share of two nodes has
	// one owner, and a shard in no share has none.
	Of, Number int
	// Splitter makes the node static as well. It gets the shards of the node's queues, ordered by queue and index, and returns
	// the shards that the node owns. It is called before the node takes a lease, and again when a queue has
	// other shards. It must depend on its argument alone. If it panics, Run returns an error.
	Splitter func(shards []lowkiq.Shard) []lowkiq.Shard

	// TLS secures Raft. Required to bind beyond loopback, unless Insecure.
	TLS      TLS
	Insecure bool // allows connections from other hosts without GossipKeys or TLS

	// Recurring has the recurring entries of this node's file by name. The leader of the cluster pushes their
	// jobs, or the node itself if it is in no cluster. If nodes have different entries of a name, the entry
	// of the node that started last is in force.
	Recurring map[string]recurring.Spec

	overtime  time.Duration // time that Run may take beyond ShutdownTimeout. Default 4 s
	trimEvery time.Duration // time between two trims of morgues. Default 15 s
	fewNodes  int           // maximum number of nodes in a cluster whose nodes all read all leases. Default 16; negative = none

	now func() time.Duration // clock.SinceBoot, except in tests
	// hung ends the process. It is exitToRestart, except in tests.
	hung func(why string)

	Version  string               // shown in the lease and by status
	Registry *prometheus.Registry // default: a new registry, with the collectors of Go and the process

	// Log is the node's logger. Default: slog.Default(). Nothing waits for it. Lines go through a bounded
	// buffer, and lines that do not fit while the logger blocks are dropped and counted.
	Log *slog.Logger

	// FormatError returns the text that is kept with a failed job. Default: err.Error(). The text of a panic has its stack.
	FormatError func(error) string
	// OnStart is called before the first claim. An error ends Run.
	OnStart func() error
	// OnOverrun is called when a handler ignores its cancelled context for so long that another node may get its shard, or has
	// it. It is also called when Run has not returned 4 s after ShutdownTimeout, for any reason. Default: log all stacks and
	// exit with status 75. OnOverrun must not return while the handler runs.
	OnOverrun func(stacks []byte)
}

// QueueConfig has the rules for the jobs of a queue on this node.
type QueueConfig struct {
	Name   string
	Shards int // default: as registered, 16 for a new queue; for a registered queue its present or a former number

	// Rules are the rules that a configuration file can also set. docs/configuration.md lists them with their bounds, which
	// hold here, too, so that people can see and change the rules of programs. A zero field is the default of its rule. For
	// the value 0 set -1: MaxRetryCount (no retry), HandlerTimeout and MaxCrashes (never), State (for ever).
	rules.Rules
	// RetryFunc returns the delay before the next attempt. It takes the place of the rule retry_in. count is
	// the number of failures of the id in a row minus 1, so it is 0 after the first failure.
	RetryFunc func(count int) time.Duration
	// Middlewares wrap the handler. The first middleware is the outermost.
	Middlewares []Middleware
	// Sources has the origin of rules by key, such as "orders.yaml, line 3". It is shown to people.
	Sources map[string]string
	// Codec and PushMiddlewares apply to payloads that are pushed through the node's API or its Client. The
	// handler gets decoded payloads. See [queue.PushRules].
	Codec           queue.Codec
	PushMiddlewares []queue.Middleware
	// OnExhausted gets jobs that are out of retries, or that their handler buried. OnBuried gets jobs that went to the morgue.
	// OnRecovered gets the number of jobs that were in flight when a shard's last owner died. Of what people do, by the API or
	// by commands, only a cancelled run that is buried calls a hook, OnBuried.
	OnExhausted, OnBuried, OnRecovered lowkiq.Hook

	held *rules.Held // the ids of the rule holds
}

// Middleware wraps a handler.
type Middleware func(lowkiq.Handler) lowkiq.Handler

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return cfg, fmt.Errorf("node name: %w; configure a name", err)
		}
		cfg.Name = host
	}
	cfg.Cluster = cmp.Or(cfg.Cluster, "default")
	cfg.fewNodes = cmp.Or(cfg.fewNodes, cluster.DefaultMaxNodesReadingAll)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, runtime.GOMAXPROCS(0)*4)
	cfg.TTL = cmp.Or(cfg.TTL, 6*time.Second)
	cfg.trimEvery = cmp.Or(cfg.trimEvery, 15*time.Second)
	cfg.PollInterval = cmp.Or(cfg.PollInterval, time.Second)
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, DefaultShutdownTimeout)
	if cfg.now == nil {
		cfg.now = clock.SinceBoot
	}
	cfg.Log = logbuf.Logger(cmp.Or(cfg.Log, slog.Default()))
	cfg.overtime = cmp.Or(cfg.overtime, lease.ShutdownGrace+2*time.Second)
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
		cfg.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	if cfg.FormatError == nil {
		cfg.FormatError = error.Error
	}
	var once sync.Once // a handler and the shutdown may both overrun
	if overrun := cfg.OnOverrun; overrun != nil {
		cfg.OnOverrun = func(stacks []byte) {
			once.Do(func() {
				logbuf.Flush(cfg.Log, logFlushTime) // the log has the reason
				overrun(stacks)
			})
		}
	} else {
		cfg.OnOverrun = func(stacks []byte) {
			once.Do(func() { exitToRestart(cfg.Log, "a handler or the shutdown did not end in time", stacks) })
		}
	}
	if cfg.hung == nil {
		cfg.hung = func(why string) { exitToRestart(cfg.Log, why, runner.AllStacks()) }
	}
	return cfg, cfg.Validate()
}

// exitToRestart ends the process with a status that asks for a restart. It is the default of [Config].OnOverrun.
func exitToRestart(log *slog.Logger, why string, stacks []byte) {
	const tempFail = 75                                        // EX_TEMPFAIL
	time.AfterFunc(logFlushTime, func() { os.Exit(tempFail) }) // the log may hang
	log.Error(why+": exiting with status 75", "stacks", string(stacks))
	logbuf.Flush(log, logFlushTime)
	os.Exit(tempFail)
}

// logFlushTime is the time that a process has to write its log before it ends itself. The time is short, because another
// node may soon have the shards of handlers that still run.
const logFlushTime = 100 * time.Millisecond

// DefaultShutdownTimeout is the default of [Config].ShutdownTimeout.
const DefaultShutdownTimeout = 25 * time.Second

// Validate returns all faults of the configuration, joined, or nil.
func (cfg Config) Validate() error {
	var errs []error
	check := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if cfg.Name != "" {
		errs = append(errs, protocol.CheckName("node", cfg.Name))
	}
	check(cfg.Concurrency < 0, "concurrency is %d, must be at least 1", cfg.Concurrency)
	check(cfg.TTL != 0 && (cfg.TTL < 3*time.Second || cfg.TTL > 2*time.Minute), "ttl is %s, must be 3s to 2m", cfg.TTL)
	check(cfg.PollInterval < 0, "poll_interval is %s, must be more than 0", cfg.PollInterval)
	check(cfg.ShutdownTimeout < 0, "shutdown_timeout is %s, must be more than 0", cfg.ShutdownTimeout)
	errs = append(errs, checkAdvertise(cfg.Advertise), checkRecurring(cfg.Recurring))
	if err := cfg.TLS.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("tls: %w", err))
	}
	if !cfg.Insecure {
		errs = append(errs, cfg.findExposures()...)
	}
	return errors.Join(slices.Concat(errs, cfg.checkStatic(), cfg.validateCluster())...)
}

// validateCluster returns the faults of the fields for clusters.
func (cfg Config) validateCluster() (errs []error) {
	if cfg.Weight < 0 || cfg.Weight > plan.MaxWeight {
		errs = append(errs, fmt.Errorf("weight is %d, must be 1 to %d", cfg.Weight, plan.MaxWeight))
	}
	for i, key := range cfg.GossipKeys {
		if len(key) != 16 && len(key) != 24 && len(key) != 32 {
			errs = append(errs, fmt.Errorf("gossip key %d has %d bytes, must be 16, 24 or 32", i+1, len(key)))
		}
	}
	if cfg.Bind == "" {
		return errs
	}
	if _, _, err := cluster.BindAddress(cfg.Bind); err != nil {
		errs = append(errs, err)
	}
	for _, seed := range cfg.Join {
		if _, _, err := net.SplitHostPort(seed); err != nil {
			errs = append(errs, fmt.Errorf("join %q: must be host:port", seed))
		}
	}
	return errs
}

// withAdvertise sets Advertise if it is empty and the node listens at all addresses, because other nodes need a single address.
func (cfg Config) withAdvertise() (Config, error) {
	if cfg.Advertise != "" || !hosts.IsEverywhere(cfg.Bind) {
		return cfg, nil
	}
	var err error
	if cfg.Advertise, err = hosts.OutwardAddress(); err != nil {
		return cfg, fmt.Errorf("find an address for other nodes: %w; configure advertise", err)
	}
	return cfg, nil
}

// checkAdvertise returns an error if host is not a valid value of Advertise.
func checkAdvertise(host string) error {
	if _, err := netip.ParseAddr(host); err == nil || host == "" || hosts.IsName(host) {
		return nil
	}
	return fmt.Errorf("advertise %.60q (%d bytes): must be a host name of at most 253 bytes or an IP address, without port and brackets", host, len(host))
}

// WithDefaults returns the rules with the default of each field that is zero.
func (cfg QueueConfig) WithDefaults() QueueConfig {
	cfg.Shards = cmp.Or(cfg.Shards, 16)
	cfg.Rules = cfg.Rules.WithDefaults(cfg.Shards)
	return cfg
}

// Validate returns all faults of the rules of a queue, joined, or nil.
func (cfg QueueConfig) Validate() error {
	err := protocol.CheckQueue(lowkiq.Queue{Name: cfg.Name, Shards: cmp.Or(cfg.Shards, 16)})
	if wrong := cfg.Rules.Check(); wrong != nil {
		err = errors.Join(err, fmt.Errorf("queue %q: %w", cfg.Name, wrong))
	}
	if len(cfg.Holds)+len(cfg.Tracked) > 0 {
		err = errors.Join(err, fmt.Errorf("queue %q: Holds and Tracked must be empty; they are set at run time only", cfg.Name))
	}
	return err
}

// pushRules returns the rules for pushes to the queue.
func (cfg *QueueConfig) pushRules() protocol.PushRules {
	return protocol.PushRules{Codec: protocol.Codec(cfg.Codec), Middlewares: cfg.PushMiddlewares, Push: cfg.Rules.Push}
}
