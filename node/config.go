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
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/hosts"
	"github.com/lowkiq/lowkiq/internal/logbuf"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/node/internal/lease"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Config describes a node. The zero value of a field is its default.
type Config struct {
	// Name is the node's stable name. Default: the host's; if a live node has it, <host>-2, -3, …
	Name    string
	Redis   string // see queue.Config.Redis
	Cluster string // nodes of one cluster share it. Default "default"

	// Concurrency bounds the handler calls of the node. Default GOMAXPROCS x 4.
	Concurrency int
	// TTL of the lease, 3 s to 120 s. Default 6 s. Renewal every TTL/6; handlers are cancelled 0.7
	// TTL after the last good renewal, or when a shard is found to be another node's; one that
	// still runs 0.2 TTL later leads to OnOverrun. After a crash without witnesses, shards stand
	// still for a TTL.
	TTL time.Duration
	// PollInterval is how often a busy shard, or one without a confirmed subscription,
	// is looked at. Default 1 s; idle shards are polled less and less, down to every 60 s.
	PollInterval time.Duration
	// ShutdownTimeout is the patience with handlers at shutdown. Default [DefaultShutdownTimeout].
	ShutdownTimeout time.Duration
	// RedisTLS overrides the TLS settings of a rediss:// URL. Default: the system's
	// authorities, no client certificate.
	RedisTLS *tls.Config
	// AllowEviction accepts a Redis that may evict keys.
	AllowEviction bool

	// Bind is the host:port of gossip (TCP and UDP); Raft listens one port above. Empty:
	// the node takes no part in a cluster and works on every shard of its queues; a
	// second such node stands by.
	Bind string
	// Advertise is the host at which other nodes reach this one. Default: Bind's; of a node
	// that listens at all addresses, the first private one of the host.
	Advertise string
	// Join names any nodes of the cluster. Without, peers are found by their leases.
	Join []string
	// Weight is the node's share of shards relative to the others. Default 1.
	Weight int
	// GossipKeys encrypt the gossip (AES, 16, 24 or 32 bytes); the first one encrypts, all
	// decrypt. Required to gossip beyond loopback, unless Insecure.
	GossipKeys [][]byte

	// TLS is Raft's. Required to bind beyond loopback, unless Insecure.
	TLS      TLS
	Insecure bool // accept to be reachable from other hosts without GossipKeys or TLS

	// Recurring is what recurs by this node's file, by name: the cluster's leader pushes it, a node without
	// one itself. Of nodes that have different entries of a name those of the one that began last hold.
	Recurring map[string]recurring.Spec

	overtime  time.Duration // how long Run may take beyond ShutdownTimeout. Default 4 s
	trimEvery time.Duration // how often morgues are kept within their bounds. Default 15 s
	fewNodes  int           // with no more, each looks at all leases. Default 16; negative = none

	now func() time.Duration // lease.SinceBoot, but for tests
	// hung ends the process; exitToRestart, but for tests.
	hung func(why string)

	Version  string               // shown in the lease and by status
	Registry *prometheus.Registry // default: a new one, with the collectors of Go and the process

	// Log is where the node logs; default: slog.Default(). Nothing waits for it: lines go through a bounded buffer, and
	// what does not fit while the handler blocks is dropped and counted.
	Log *slog.Logger

	// FormatError makes the text kept with a failed job. Default: err.Error(); that of a panic has
	// its stack.
	FormatError func(error) string
	// OnStart is called before the first claim; an error ends Run.
	OnStart func() error
	// OnOverrun is called when a handler ignores its cancelled context for so long that
	// another node may get, or has, its shard, and when Run has not returned 4 s after ShutdownTimeout,
	// whatever hangs. Default: log all stacks, exit with status 75. It must not return with the
	// handler still running.
	OnOverrun func(stacks []byte)
}

// QueueConfig are the rules for the jobs of a queue on this node.
type QueueConfig struct {
	Name   string
	Shards int // default: as registered, 16 for a new queue; fixed once the queue is registered

	BatchSize int // ids per handler call. Default 1
	// Concurrency bounds the handler calls of the queue on this node at once. Default:
	// Config.Concurrency, or the processes of its handler.
	Concurrency int
	// Limit bounds what the whole cluster does for the queue: calls at once, and ids handed to handlers in a time.
	Limit rules.Limit
	// Groups bound the same for ids that begin alike, and let handlers hold these back ([lowkiq.Limit]).
	Groups           rules.Groups
	ShardConcurrency int           // batches of different ids of a shard at once. Default 1
	Prefetch         int           // most ids popped at once. Default 100
	HandlerTimeout   time.Duration // default 30 m; negative = none
	MaxRetryCount    int           // default 25; negative = none
	// MaxCrashes is after how many crashes of its own a job is buried. Default 3, at least 2;
	// negative = never. One crash proves nothing: jobs of several shards may have been at work.
	MaxCrashes int
	Exhausted  queue.Policy // default queue.Skip
	// State lets handlers keep a state per id (lowkiq.Answer.State), for so long after it was last
	// written. 0: none; negative: for ever.
	State time.Duration
	// Journal says of which runs a line is kept. Default: of the last that failed.
	Journal Journal
	// Morgue says how much of what was buried is kept, and for how long. Default: all of it, until a person acts.
	Morgue Morgue
	// Expire says for how long after it is due a payload is of use, and what becomes of it then. Default: for ever. The
	// header expires of a payload wins.
	Expire rules.Expire
	// StuckAfter ends a handler call about which nothing was noted for so long (lowkiq.Batch.Note), with
	// lowkiq.ErrStuck: a failure. 0 or less: never.
	StuckAfter time.Duration
	// RetryIn is the delay before the next attempt; count is how often the id has failed in a row, less one: 0 after its first
	// failure. Default: Lowkiq's count^4 + 15 + rand(30) * (count+1) seconds.
	RetryIn func(count int) time.Duration
	// Scheduler says which shard's batch goes next when the node is at its concurrency:
	// Lag (oldest due job first, default) or Seq (in turn).
	Scheduler Scheduler
	// Priority, 0 to rules.MaxPriority, has the jobs of the queue count as due rules.HeadStart earlier per level, where
	// queues wait for the node's slots. It needs Lag.
	Priority int
	// Middlewares wrap the handler, the first one outermost.
	Middlewares []Middleware
	// Sources says where the values of keys come from, as in "orders.yaml, line 3", for people who look at the rules;
	// by key of the configuration file. RetryInShown is what they see of RetryIn.
	Sources      map[string]string
	RetryInShown any
	// Push holds for the queue's payloads, whoever pushes them: what the node takes by its
	// API and by Client obeys it, and the handler gets what its codec decodes.
	Push queue.PushRules
	// OnExhausted is told of jobs that are out of retries, OnBuried of what went to the morgue, OnRecovered of what was in
	// flight when a shard's last owner died. What people do by the API or the command line is no concern of theirs.
	OnExhausted, OnBuried, OnRecovered lowkiq.Hook

	held    *rules.Held // at run time: ids that no handler gets
	tracked []string    // at run time: ids whose runs the journal keeps, whatever Journal says
}

// Middleware wraps a handler.
type Middleware func(lowkiq.Handler) lowkiq.Handler

// Scheduler orders the shards that wait for one of the node's handler slots.
type Scheduler string

// The schedulers.
const (
	Lag Scheduler = "lag" // the shard with the oldest due job first
	Seq Scheduler = "seq" // the shard that waits longest first
)

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return cfg, fmt.Errorf("node name: %w; configure one", err)
		}
		cfg.Name = host
	}
	cfg.Cluster = cmp.Or(cfg.Cluster, "default")
	cfg.fewNodes = cmp.Or(cfg.fewNodes, cluster.DefaultFewNodes)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, runtime.GOMAXPROCS(0)*4)
	cfg.TTL = cmp.Or(cfg.TTL, 6*time.Second)
	cfg.trimEvery = cmp.Or(cfg.trimEvery, 15*time.Second)
	cfg.PollInterval = cmp.Or(cfg.PollInterval, time.Second)
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, DefaultShutdownTimeout)
	if cfg.now == nil {
		cfg.now = lease.SinceBoot
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
	if cfg.OnOverrun == nil {
		cfg.OnOverrun = func(stacks []byte) { exitToRestart(cfg.Log, "a handler or the stop hangs", stacks) }
	}
	if cfg.hung == nil {
		cfg.hung = func(why string) { exitToRestart(cfg.Log, why, runner.Stacks()) }
	}
	return cfg, cfg.Validate()
}

// exitToRestart ends the process with a status that asks for a restart. It is the default of [Config].OnOverrun.
func exitToRestart(log *slog.Logger, why string, stacks []byte) {
	const tempFail = 75                                     // EX_TEMPFAIL
	time.AfterFunc(lastWords, func() { os.Exit(tempFail) }) // the log may hang
	log.Error(why+": exiting with status 75", "stacks", string(stacks))
	logbuf.Flush(log, lastWords)
	os.Exit(tempFail)
}

// lastWords is how long a process that ends itself may take to write its log: another node may soon have what a
// handler still works on.
const lastWords = 100 * time.Millisecond

// DefaultShutdownTimeout is the default of [Config].ShutdownTimeout.
const DefaultShutdownTimeout = 25 * time.Second

// Validate says what is wrong with the configuration.
func (cfg Config) Validate() error {
	var errs []error
	check := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if cfg.Name != "" {
		errs = append(errs, queue.CheckName("node", cfg.Name))
	}
	check(cfg.Concurrency < 0, "concurrency is %d, want at least 1", cfg.Concurrency)
	check(cfg.TTL != 0 && (cfg.TTL < 3*time.Second || cfg.TTL > 2*time.Minute), "ttl is %s, want 3s to 2m", cfg.TTL)
	check(cfg.PollInterval < 0, "poll_interval is %s, want more than 0", cfg.PollInterval)
	check(cfg.ShutdownTimeout < 0, "shutdown_timeout is %s, want more than 0", cfg.ShutdownTimeout)
	errs = append(errs, checkAdvertise(cfg.Advertise), checkRecurring(cfg.Recurring))
	if err := cfg.TLS.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("tls: %w", err))
	}
	if !cfg.Insecure {
		errs = append(errs, cfg.exposed()...)
	}
	return errors.Join(append(errs, cfg.validateCluster()...)...)
}

// validateCluster looks at the fields that matter with Bind.
func (cfg Config) validateCluster() (errs []error) {
	if cfg.Weight < 0 || cfg.Weight > plan.MaxWeight {
		errs = append(errs, fmt.Errorf("weight is %d, want 1 to %d", cfg.Weight, plan.MaxWeight))
	}
	for i, key := range cfg.GossipKeys {
		if len(key) != 16 && len(key) != 24 && len(key) != 32 {
			errs = append(errs, fmt.Errorf("gossip key %d has %d bytes, want 16, 24 or 32", i+1, len(key)))
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
			errs = append(errs, fmt.Errorf("join %q: want host:port", seed))
		}
	}
	return errs
}

// reachable fills in Advertise where the node listens at all addresses, of which others
// can use only one.
func (cfg Config) reachable() (Config, error) {
	if cfg.Advertise != "" || !hosts.Everywhere(cfg.Bind) {
		return cfg, nil
	}
	var err error
	if cfg.Advertise, err = hosts.Outward(); err != nil {
		return cfg, fmt.Errorf("address for the other nodes: %w; configure advertise", err)
	}
	return cfg, nil
}

// checkAdvertise says what is wrong with the host that others are told.
func checkAdvertise(host string) error {
	if _, err := netip.ParseAddr(host); err == nil || host == "" || hosts.Name.MatchString(host) {
		return nil
	}
	return fmt.Errorf("advertise %.60q (%d bytes): want a host name of at most 253 bytes or an IP address, without port and brackets", host, len(host))
}

// WithDefaults returns the rules with the default of each field that is zero.
func (cfg QueueConfig) WithDefaults() QueueConfig {
	cfg.Shards = cmp.Or(cfg.Shards, 16)
	cfg.BatchSize = cmp.Or(cfg.BatchSize, 1)
	cfg.ShardConcurrency = cmp.Or(cfg.ShardConcurrency, 1)
	cfg.Prefetch = cmp.Or(cfg.Prefetch, 100)
	cfg.HandlerTimeout = cmp.Or(cfg.HandlerTimeout, 30*time.Minute)
	cfg.MaxRetryCount = cmp.Or(cfg.MaxRetryCount, 25)
	cfg.MaxCrashes = cmp.Or(cfg.MaxCrashes, 3)
	cfg.Limit, cfg.Groups = cfg.Limit.WithDefaults(), cfg.Groups.WithDefaults()
	cfg.Exhausted = cmp.Or(cfg.Exhausted, queue.Skip)
	cfg.Scheduler = cmp.Or(cfg.Scheduler, Lag)
	cfg.Journal = cfg.Journal.withDefaults(cfg.Shards)
	if cfg.RetryIn == nil {
		cfg.RetryIn = runner.DefaultRetryIn
	}
	return cfg
}

// Validate says what is wrong with the rules of a queue.
func (cfg QueueConfig) Validate() error {
	cfg = cfg.WithDefaults()
	errs := []error{queue.CheckQueue(lowkiq.Queue{Name: cfg.Name, Shards: cfg.Shards})}
	between := func(field string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("queue %q: %s is %d, want %d to %d", cfg.Name, field, v, low, high))
		}
	}
	between("batch_size", cfg.BatchSize, 1, 1000)
	between("shard_concurrency", cfg.ShardConcurrency, 1, 1000)
	between("concurrency", cfg.Concurrency, 0, 100_000)
	between("prefetch", cfg.Prefetch, 1, 1000)
	between("priority", cfg.Priority, 0, rules.MaxPriority)
	if cfg.Priority > 0 && cfg.Scheduler == Seq {
		errs = append(errs, fmt.Errorf("queue %q: priority is %d: it needs scheduler lag, by which the oldest job is first; seq goes in turn", cfg.Name, cfg.Priority))
	}
	if cfg.MaxCrashes == 1 {
		errs = append(errs, fmt.Errorf("queue %q: max_crashes is 1, want 2 or more, or none: one crash does not tell which of the jobs at work has caused it", cfg.Name))
	}
	oneOf := func(field, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			errs = append(errs, fmt.Errorf("queue %q: %s is %q, want %s", cfg.Name, field, value, strings.Join(allowed, " or ")))
		}
	}
	oneOf("exhausted", string(cfg.Exhausted), string(queue.Skip), string(queue.Bury), string(queue.Block))
	oneOf("scheduler", string(cfg.Scheduler), string(Lag), string(Seq))
	oneOf("journal", string(cfg.Journal.Runs), string(JournalFailures), string(JournalAll), string(JournalNone))
	between("journal.keep", cfg.Journal.Keep, 1, 1_000_000_000)
	if cfg.Journal.For < 0 {
		errs = append(errs, fmt.Errorf("queue %q: journal.for is %s, want 0 or more", cfg.Name, cfg.Journal.For))
	}
	between("morgue.keep", cfg.Morgue.Keep, 0, 1_000_000_000)
	if cfg.Morgue.For < 0 {
		errs = append(errs, fmt.Errorf("queue %q: morgue.for is %s, want 0 or more", cfg.Name, cfg.Morgue.For))
	}
	if err := cmp.Or(cfg.Limit.Check(), cfg.Groups.Check()); err != nil {
		errs = append(errs, fmt.Errorf("queue %q: %w", cfg.Name, err))
	}
	if cfg.Expire.After < 0 {
		errs = append(errs, fmt.Errorf("queue %q: expire.after is %s, want 0 or more", cfg.Name, cfg.Expire.After))
	}
	oneOf("expire.to", string(cmp.Or(cfg.Expire.To, rules.ExpireMorgue)), string(rules.ExpireMorgue), string(rules.ExpireDrop))
	return errors.Join(errs...)
}
