package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/handling"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/limits"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// handled is a queue that this node handles, with its rules, handler and metrics.
type handled struct {
	rules      QueueConfig
	configured QueueConfig                 // the same rules as they were given, without defaults
	live       atomic.Pointer[QueueConfig] // rules in force, see rules.go; nil if the field rules has them
	change     atomic.Pointer[func()]      // applies the rules in force to the runners of the last instance; nil before the first
	// asRegistered means that the rules name no number of shards, so that the registry decides.
	asRegistered bool
	metrics      *metrics.Queue
	paused       atomic.Bool
	// resumes means that the queue is resumed once the lease no longer says that it is paused. Only renewals use it.
	resumes bool
	queue   *protocol.Queue // set by Run; nil while its entry is damaged or refused
	refused *refusal        // of its registration between two instances; nil if it was not refused

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
	if rules.Codec.Decode != nil {
		// Middlewares get decoded payloads, like the handler.
		handler = verdict.Decoded(rules.Codec.Decode, handler)
	}
	on.handler = handler
	return on
}

// shardCount returns how many shards the queue has, or 0 while that is not known.
func (on *handled) shardCount() int {
	if on.queue == nil {
		return 0
	}
	return on.queue.Shards
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
	if !on.asRegistered && entry.Shards != on.rules.Shards {
		return fmt.Errorf("queue %q has %d shards in redis %s, not %d: %w; configure %d",
			name, entry.Shards, redis, on.rules.Shards, lowkiq.ErrShardCount, entry.Shards)
	}
	if entry.Codec == "" {
		codec = ""
	}
	return cmp.Or(entry.Readable(name), entry.Stores(name, codec))
}

// refusal is the failure of a queue's registration.
type refusal struct {
	err   error
	entry protocol.RegistryEntry // at that time
	at    time.Duration          // time of the refusal, by sinceBoot
}

// maxRefusalTTLs is how long, in ttls, a refusal counts while the entry does not change. Another attempt ends the instance,
// and with it the handler calls of all queues.
const maxRefusalTTLs = 10

// validError returns the refusal's error, or nil if a registration should be tried again.
func (r *refusal) validError(entry protocol.RegistryEntry, ttl time.Duration) error {
	if r == nil || sinceBoot()-r.at > maxRefusalTTLs*ttl || !reflect.DeepEqual(r.entry, entry) {
		return nil
	}
	return r.err
}

// queues has the queues that the node handles, and the registry of all queues.
type queues struct {
	handled  map[string]*handled      // by name; not written after Run began
	registry atomic.Pointer[registry] // as last read; nil before
	inForce  inForce
	client   *protocol.Client
	leases   *protocol.Client // reads the registry, with the timeout of a lease's renewal
	log      *slog.Logger
}

// registry has the queues as last read from Redis. A queue whose entry is damaged keeps its last entry. Otherwise the plan
// would change twice, when the entry is damaged and when it is mended. No node handles such a queue meanwhile.
type registry struct {
	entries map[string]protocol.RegistryEntry
	damaged map[string]error // why a queue's entry cannot be read
	at      time.Duration    // time before the reading, by sinceBoot
}

// registerAll registers the handled queues, and reads which of them are paused.
func (q *queues) registerAll(ctx context.Context) error {
	for _, on := range q.handled {
		if err := q.registerQueue(ctx, on); err != nil {
			return err
		}
	}
	entries, err := q.client.Registry().Entries(ctx)
	for name, on := range q.handled {
		on.paused.Store(entries[name].Paused)
	}
	if err != nil {
		return err
	}
	return q.readRules(ctx)
}

// registerQueue registers a queue and finds its shards. A queue whose entry is damaged has no shards until the entry is
// mended. The other queues of the node go on.
func (q *queues) registerQueue(ctx context.Context, on *handled) error {
	err := q.findShards(ctx, on)
	if errors.Is(err, protocol.ErrEntryDamaged) {
		on.queue, err = nil, nil // the first renewal of the lease reports it
	}
	return err
}

// findShards finds a queue's shards in the registry. It registers the queue if the rules name a number of shards, or if the
// registry does not have the queue. A queue without a number in its rules takes the registered number, so that nodes with
// different files cannot disagree about the shard of an id.
func (q *queues) findShards(ctx context.Context, on *handled) (err error) {
	if on.asRegistered {
		on.queue, err = q.client.Queue(ctx, on.rules.Name)
	}
	if !on.asRegistered || errors.Is(err, lowkiq.ErrUnknownQueue) {
		on.queue, err = q.client.Register(ctx, lowkiq.Queue{Name: on.rules.Name, Shards: on.rules.Shards})
	}
	if err != nil {
		return err
	}
	on.rules.Shards = on.queue.Shards
	on.rules.Journal = on.configured.Journal.WithDefaults(on.rules.Shards)
	on.live.Store(nil) // the next reading of the settings applies them again
	delete(q.inForce.values, on.rules.Name)
	q.inForce.version = ""
	on.metrics.Shards.Set(float64(on.queue.Shards))
	return q.client.Registry().Publish(ctx, on.rules.Name)
}

// readRegistry reads the registry.
func (q *queues) readRegistry(ctx context.Context) (*registry, error) {
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
	if _, err := q.leases.Registry().Restore(ctx, on.queue); err != nil {
		q.log.Error("queue could not be registered again", "queue", on.rules.Name, "err", err)
	}
}

// registerAnew finds the shards and settings of queues that were deleted and registered anew. It is called between two
// instances, before the parts of the next instance are built. Nothing else uses the queues then.
func (q *queues) registerAnew(ctx context.Context, absent *claims.AbsentInstances) error {
	registry := q.registry.Load()
	if registry == nil {
		return nil // the first instance
	}
	found := false
	for name, on := range q.handled {
		if entry, there := registry.entries[name]; on.queue != nil && (!there || registry.damaged[name] != nil || on.queue.Serves(entry)) {
			continue
		}
		found = true
		if err := q.registerQueue(ctx, on); err != nil {
			if protocol.Transient(err) || ctx.Err() != nil {
				return err
			}
			// The entry has changed again, or Redis refuses the queue for another reason. The other queues go on.
			q.log.Error("a queue was registered anew and cannot be handled", "queue", name, "err", err)
			on.queue, on.refused = nil, &refusal{err, registry.entries[name], sinceBoot()}
		}
		absent.ClearLastOwners(name)
	}
	if !found {
		return nil
	}
	return q.readRules(ctx)
}

// allShards returns the shards of all handled queues.
func (q *queues) allShards() (shards []*protocol.Shard) {
	for _, on := range q.handled {
		if on.queue != nil {
			shards = append(shards, on.queue.All()...)
		}
	}
	return shards
}

// findShard returns a shard of a handled queue, or nil.
func (q *queues) findShard(s lowkiq.Shard) *protocol.Shard {
	if on := q.handled[s.Queue]; on != nil && s.Index >= 0 && s.Index < on.shardCount() {
		return on.queue.Shard(s.Index)
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
