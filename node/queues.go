package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/handling"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/limits"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// handled is a queue that this node handles, with its rules, handler and metrics.
type handled struct {
	rules      QueueConfig
	configured QueueConfig                 // the same rules as they were given, without defaults
	live       atomic.Pointer[QueueConfig] // rules in force, see rules.go
	change     atomic.Pointer[func()]      // applies the rules in force to the runners of the last instance; nil before the first
	// asRegistered means that the rules name no number of shards, so that the registry decides.
	asRegistered bool
	builtIn      bool // other processes register the queue, and this node waits for its entry
	metrics      *metrics.Queue
	paused       atomic.Bool
	// resumes means that the queue is resumed once the lease no longer says that it is paused. Only renewals use it.
	resumes bool
	shards  int                            // number of shards for which the rules in force are computed; only renewals use it
	queue   atomic.Pointer[protocol.Queue] // as last found in the registry; nil before. See queues.present

	handler lowkiq.Handler // with middlewares
	// The optional abilities of the handler. Each may be nil.
	service  interface{ Run(context.Context) error } // runs its own loop
	reserve  runner.Reserve                          // reserves a scarce resource for a call
	grant    func(time.Duration)                     // gets how long it may run without further news
	children func() (running, busy int)              // returns its processes, and the processes with a batch
	ready    func() error                            // returns why it cannot work

	readyCall *readyCall // call of ready that has not returned

	processes   int                // maximum number of processes that the handler runs; 0 if it needs none
	processWait *metrics.Histogram // time that batches wait in reserve; nil without reserve
}

// newHandled joins rules with a handler, and finds the optional abilities of the handler.
func newHandled(rules QueueConfig, handler lowkiq.Handler, m *metrics.Metrics) *handled {
	asRegistered, configured := rules.Shards == 0, rules
	rules = rules.WithDefaults()
	on := &handled{rules: rules, configured: configured, asRegistered: asRegistered, metrics: m.Queue(rules.Name)}
	on.shards = rules.Shards
	on.metrics.Shards.Set(float64(rules.Shards))
	on.live.Store(&on.rules)
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
	if rules.Codec.Decode != nil {
		// Middlewares get decoded payloads, like the handler.
		handler = verdict.Decoded(rules.Codec.Decode, handler)
	}
	on.handler = handler
	return on
}

// maxCalls returns the maximum number of calls of the queue on this node. It is the rules' number, but at most the number
// of the handler's processes. 0 sets no maximum beside the node's own.
func (on *handled) maxCalls(rules *QueueConfig) int {
	n := rules.Concurrency
	if on.processes > 0 && (n == 0 || on.processes < n) {
		n = on.processes
	}
	return n
}

// forRunners returns the state of the queue that the runners of an instance share.
func (on *handled) forRunners(home handling.Home, format func(error) string, l *limits.Queue) *runner.Queue {
	rules := on.rulesNow()
	return runner.NewQueue(runner.Queue{
		Rules: rules.forRunner(format), Handler: on.handler, Home: home, Reserve: on.reserve, Concurrency: on.maxCalls(rules), Paused: &on.paused,
		Metrics: on.metrics, ProcessWait: on.processWait, Slots: l.NodeSlots(), Calls: l.CallSlots(), Limits: l,
	})
}

// checkEntry returns why this node cannot handle a queue with this entry in the registry, and nil if it can. An entry
// without a codec is no reason, because the registration adds the codec. checkEntry does not compare the layout of
// shards.
func (on *handled) checkEntry(entry protocol.RegistryEntry, redis string) error {
	name, codec := on.rules.Name, on.rules.Codec.Name
	if !on.asRegistered && entry.Shards != on.rules.Shards && !entry.HadShards(on.rules.Shards) {
		return fmt.Errorf("queue %q has %d shards in redis %s, not %d: %w; configure %d",
			name, entry.Shards, redis, on.rules.Shards, lowkiq.ErrShardCount, entry.Shards)
	}
	if entry.Codec == "" {
		codec = ""
	}
	return cmp.Or(entry.Readable(name), entry.Stores(name, codec))
}

// queues has the queues that the node handles, and the registry of all queues.
type queues struct {
	handled  map[string]*handled      // by name; not written after Run began
	registry atomic.Pointer[registry] // as last read; nil before
	reading  chan struct{}            // holds a value while the registry is read; see readRegistry
	inForce  inForce
	client   *protocol.Client
	leases   *protocol.Client // reads the registry, with the timeout of a lease's renewal
	log      *slog.Logger
	metrics  *metrics.Metrics
}

// registry has the queues as last read from Redis. A queue whose entry is damaged keeps its last entry. Otherwise the plan
// would change twice, when the entry is damaged and when it is mended. No node handles such a queue meanwhile.
type registry struct {
	entries map[string]protocol.RegistryEntry
	damaged map[string]error // why a queue's entry cannot be read
	at      time.Duration    // time before the reading, by sinceBoot
}

// registerAll registers the handled queues, and reads which of them are paused. A queue whose entry is damaged has no shards
// until the entry is mended. The other queues of the node go on.
func (q *queues) registerAll(ctx context.Context) error {
	for _, on := range q.handled {
		found, err := q.findQueue(ctx, on)
		if err != nil && !errors.Is(err, protocol.ErrEntryDamaged) { // the first renewal of the lease reports it
			return err
		}
		on.queue.Store(found)
	}
	entries, err := q.client.Registry().Entries(ctx)
	for name, on := range q.handled {
		on.paused.Store(isHalted(entries[name]))
	}
	if err != nil {
		return err
	}
	return q.readRules(ctx)
}

// findQueue finds a queue in the registry. It registers the queue if the rules name a number of shards, or if the
// registry does not have the queue. A queue without a number in its rules takes the registered number, so that nodes with
// different files cannot disagree about the shard of an id. findQueue returns nil for a built-in queue that is not registered.
// The next readRules applies the settings to the rules of the queue again.
func (q *queues) findQueue(ctx context.Context, on *handled) (found *protocol.Queue, err error) {
	name := on.rules.Name
	if on.asRegistered {
		found, err = q.client.Queue(ctx, name)
	}
	switch unknown := errors.Is(err, lowkiq.ErrUnknownQueue); {
	case unknown && on.builtIn:
		return nil, nil
	case unknown || !on.asRegistered:
		found, err = q.client.RegisterAny(ctx, lowkiq.Queue{Name: name, Shards: on.rules.Shards})
	}
	if err == nil {
		err = q.client.Registry().Publish(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	if !on.asRegistered && found.Shards != on.rules.Shards {
		q.log.Warn("the configuration has a former number of shards of the queue, which was resharded; configure the present number",
			"queue", name, "configured", on.rules.Shards, "shards", found.Shards)
	}
	if on.builtIn && on.queue.Load() == nil { // no runner has them yet
		*on.metrics = *q.metrics.Queue(name)
	}
	on.shards = found.Shards
	on.metrics.Shards.Set(float64(found.Shards))
	delete(q.inForce.values, name)
	q.inForce.version = ""
	on.apply(on.rulesOf(found.Shards), 0)
	return found, nil
}

// present returns a queue as it is registered now. It returns nil before an entry was read, and from a change of the queue's
// shards until this node has followed it.
func (q *queues) present(on *handled) *protocol.Queue {
	found := on.queue.Load()
	if r := q.registry.Load(); r != nil && found != nil {
		if entry, there := r.entries[on.rules.Name]; there && !found.Serves(entry) {
			return nil
		}
	}
	return found
}

// readRegistry reads the registry. Readings of several goroutines follow each other. Otherwise an old answer could replace a
// later answer, and a queue would lose its present shards for a moment, with their calls.
func (q *queues) readRegistry(ctx context.Context) (*registry, error) {
	select {
	case q.reading <- struct{}{}:
		defer func() { <-q.reading }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	begun := sinceBoot()
	entries, damaged, err := q.leases.Registry().Read(ctx, q.client.Registry())
	if err != nil {
		return nil, err
	}
	was := cmp.Or(q.registry.Load(), &registry{})
	for name, err := range damaged {
		if entry, known := was.entries[name]; known {
			entries[name] = entry
		}
		if q.handled[name] == nil && was.damaged[name] == nil { // the instance reports handled queues
			q.log.Error("a queue's entry in the registry cannot be read", "queue", name, "err", err)
		}
	}
	r := &registry{entries, damaged, begun}
	q.registry.Store(r)
	return r, nil
}

// entriesWithin returns the entries of the registry, which it reads if the last reading is older than age.
func (q *queues) entriesWithin(ctx context.Context, age time.Duration) (map[string]protocol.RegistryEntry, error) {
	r := q.registry.Load()
	if r == nil || sinceBoot()-r.at > age {
		var err error
		if r, err = q.readRegistry(ctx); err != nil {
			return nil, err
		}
	}
	return r.entries, nil
}

// registerAgain writes a queue that the registry has lost, or that was deleted while this node started.
func (q *queues) registerAgain(ctx context.Context, on *handled) {
	if _, err := q.leases.Registry().Restore(ctx, on.queue.Load()); err != nil {
		q.log.Error("queue could not be registered again", "queue", on.rules.Name, "err", err)
	}
}

// allShards returns the present shards of all handled queues.
func (q *queues) allShards() (shards []*protocol.Shard) {
	for _, on := range q.handled {
		if found := q.present(on); found != nil {
			shards = append(shards, found.All()...)
		}
	}
	return shards
}

// findShard returns a present shard of a handled queue, or nil.
func (q *queues) findShard(s lowkiq.Shard) *protocol.Shard {
	on := q.handled[s.Queue]
	if on == nil {
		return nil
	}
	if found := q.present(on); found != nil && s.Index >= 0 && s.Index < found.Shards {
		return found.Shard(s.Index)
	}
	return nil
}

// haveChildren reports whether a handler works in child processes.
func (q *queues) haveChildren() bool {
	for _, on := range q.handled {
		if on.grant != nil {
			return true
		}
	}
	return false
}

// grantChildren tells handlers with child processes for how long these may run without further news.
func (q *queues) grantChildren(remaining time.Duration) {
	for _, on := range q.handled {
		if on.grant != nil {
			on.grant(remaining)
		}
	}
}

// childUse returns the child processes of handlers, by queue.
func (q *queues) childUse() map[string]metrics.Use {
	all := map[string]metrics.Use{}
	for name, on := range q.handled {
		if on.children != nil {
			running, busy := on.children()
			all[name] = metrics.Use{Total: running, Busy: busy}
		}
	}
	return all
}
