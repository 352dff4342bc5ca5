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
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/claims"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
)

// handled is a queue that this node handles: its rules, its handler, its metrics.
type handled struct {
	rules      QueueConfig
	configured QueueConfig                 // the same, as it was given
	live       atomic.Pointer[QueueConfig] // what is in force instead, see rules.go; holds nil: rules is
	change     atomic.Pointer[func()]      // has the runners of the last instance go by what is in force; holds nil before the first
	// asRegistered: the rules name no shard count, and that of the registry holds.
	asRegistered bool
	metrics      *metrics.Queue
	paused       atomic.Bool
	// resumes: it goes on once the lease does not say any more that it is paused. Only renewals read and write it.
	resumes bool
	queue   *queue.Queue // set by Run; nil while its entry is damaged or refused
	refused *refusal     // of its registration between two instances; or nil

	handler lowkiq.Handler // with middlewares
	// What else the handler can do; each may be nil.
	service  interface{ Run(context.Context) error } // its own loop
	reserve  runner.Reserve                          // sets aside what it needs for a call
	grant    func(time.Duration)                     // takes for how long it may run on without news
	children func() (running, busy int)              // its processes, and those that have a batch
	ready    func() error                            // why it cannot work
	asking   *question                               // of ready, without an answer

	processes   int                // most that the handler runs; 0: it needs none
	processWait *metrics.Histogram // how long batches wait for reserve; nil without it
}

// newHandled joins rules with a handler, and finds out what else the handler can do.
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
	if rules.Push.Codec.Decode != nil {
		// Middlewares see what the handler sees.
		handler = runner.Decoded(rules.Push.Codec.Decode, handler)
	}
	on.handler = handler
	return on
}

// shards is how many the queue has, 0 while that is not known.
func (on *handled) shards() int {
	if on.queue == nil {
		return 0
	}
	return on.queue.Shards
}

// concurrency bounds the calls of the queue on this node, 0 = only the node's own bound does: what
// the rules say, and no more than the handler has processes.
func (on *handled) concurrency(rules *QueueConfig) int {
	n := rules.Concurrency
	if on.processes > 0 && (n == 0 || on.processes < n) {
		n = on.processes
	}
	return n
}

// forRunners is what the runners of an instance share of the queue.
func (on *handled) forRunners(format func(error) string, rate runner.Rate, groups runner.AskGroups) *runner.Queue {
	rules := on.rulesNow()
	return runner.NewQueue(runner.Queue{
		Rules: rules.forRunner(format), Handler: on.handler, Reserve: on.reserve, Concurrency: on.concurrency(rules), Paused: &on.paused,
		Metrics: on.metrics, ProcessWait: on.processWait, Rate: rate, AskGroups: groups,
	})
}

// fits says why this node cannot handle the queue as the registry has it, whatever layout its
// shards have; nil if it can, or can once it has registered the queue: by that a queue without a
// codec gets one.
func (on *handled) fits(entry queue.Entry, redis string) error {
	name, codec := on.rules.Name, on.rules.Push.Codec.Name
	if !on.asRegistered && entry.Shards != on.rules.Shards {
		return fmt.Errorf("queue %q has %d shards in redis %s, not %d: %w; configure %d",
			name, entry.Shards, redis, on.rules.Shards, lowkiq.ErrShardCount, entry.Shards)
	}
	if entry.Codec == "" {
		codec = ""
	}
	return cmp.Or(entry.Readable(name), entry.Stores(name, codec))
}

// refusal is why a queue could not be registered, what its entry was then, and when that was.
type refusal struct {
	err   error
	entry queue.Entry
	at    time.Duration // sinceBoot
}

// refusedTTLs is how long a refusal is believed while the entry stays as it was: another try costs
// an instance, and with that the handler calls of all queues.
const refusedTTLs = 10

// holds returns the refusal's error, nil if a registration is worth another try.
func (r *refusal) holds(entry queue.Entry, ttl time.Duration) error {
	if r == nil || sinceBoot()-r.at > refusedTTLs*ttl || !reflect.DeepEqual(r.entry, entry) {
		return nil
	}
	return r.err
}

// queues are those that the node handles, and the registry of all.
type queues struct {
	handled  map[string]*handled      // by name; not written after Run began
	registry atomic.Pointer[registry] // as last read; holds nil before
	inForce  inForce
	client   *queue.Client
	leases   *queue.Client // reads the registry: it has the patience of a lease's renewal
	log      *slog.Logger
}

// registry are the queues as last read from Redis. One whose entry is damaged stays what it was, so
// that the plan need not change for it and again once it is mended; no node handles it meanwhile.
type registry struct {
	all     map[string]queue.Entry
	damaged map[string]error // why a queue's entry cannot be read
	at      time.Duration    // sinceBoot before it was read
}

// open registers the handled queues, and finds out which of them are paused.
func (q *queues) open(ctx context.Context) error {
	for _, on := range q.handled {
		if err := q.register(ctx, on); err != nil {
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

// register finds a queue's shards. One whose entry is damaged has none until that is mended: the
// node's other queues go on.
func (q *queues) register(ctx context.Context, on *handled) error {
	err := q.find(ctx, on)
	if errors.Is(err, queue.ErrEntryDamaged) {
		on.queue, err = nil, nil // the log and the status tell with the first renewal of the lease
	}
	return err
}

// find finds a queue's shards: those of the registry where the rules name no count.
func (q *queues) find(ctx context.Context, on *handled) (err error) {
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
	on.rules.Journal = on.configured.Journal.withDefaults(on.rules.Shards)
	on.live.Store(nil) // the next look at what was set at run time finds it anew
	delete(q.inForce.values, on.rules.Name)
	q.inForce.version = ""
	on.metrics.Shards.Set(float64(on.queue.Shards))
	return q.client.Registry().Publish(ctx, on.rules.Name)
}

// read reads the registry.
func (q *queues) read(ctx context.Context) (*registry, error) {
	begun := sinceBoot()
	entries, damaged, err := q.leases.Registry().Read(ctx, q.client.Registry())
	if err != nil {
		return nil, err
	}
	was := cmp.Or(q.registry.Load(), &registry{})
	for name, err := range damaged {
		if entry, known := was.all[name]; known {
			entries[name] = entry
		}
		if q.handled[name] == nil && was.damaged[name] == nil { // the instance tells of its own
			q.log.Error("a queue's entry in the registry cannot be read", "queue", name, "err", err)
		}
	}
	r := &registry{entries, damaged, begun}
	q.registry.Store(r)
	return r, nil
}

// within returns the entries as they were read within this time, or reads them.
func (q *queues) within(ctx context.Context, age time.Duration) (map[string]queue.Entry, error) {
	r := q.registry.Load()
	if r == nil || sinceBoot()-r.at > age {
		var err error
		if r, err = q.read(ctx); err != nil {
			return nil, err
		}
	}
	return r.all, nil
}

// registerAgain writes a queue into a registry that has lost it, or from which it was deleted while
// this node started.
func (q *queues) registerAgain(ctx context.Context, on *handled) {
	if _, err := q.leases.Registry().Restore(ctx, on.queue); err != nil {
		q.log.Error("queue not registered again", "queue", on.rules.Name, "err", err)
	}
}

// registerAnew finds the shards of queues that were deleted and registered anew, and what was set of them at run time. It is
// called between two instances, before the parts of the next one are built: nothing else looks at the queues then.
func (q *queues) registerAnew(ctx context.Context, absent *claims.AbsentInstances) error {
	registry := q.registry.Load()
	if registry == nil {
		return nil // the first instance
	}
	found := false
	for name, on := range q.handled {
		if entry, there := registry.all[name]; on.queue != nil && (!there || registry.damaged[name] != nil || on.queue.Serves(entry)) {
			continue
		}
		found = true
		if err := q.register(ctx, on); err != nil {
			if queue.Transient(err) || ctx.Err() != nil {
				return err
			}
			// It has changed again, or Redis refuses it for another reason. The other queues go on.
			q.log.Error("a queue that was registered anew is not handled", "queue", name, "err", err)
			on.queue, on.refused = nil, &refusal{err, registry.all[name], sinceBoot()}
		}
		absent.NotLastOwnerOf(name)
	}
	if !found {
		return nil
	}
	return q.readRules(ctx)
}

// shards are those of all queues that are handled.
func (q *queues) shards() (shards []*queue.Shard) {
	for _, on := range q.handled {
		if on.queue != nil {
			shards = append(shards, on.queue.All()...)
		}
	}
	return shards
}

// shard is nil for a shard that is not handled.
func (q *queues) shard(s lowkiq.Shard) *queue.Shard {
	if on := q.handled[s.Queue]; on != nil && s.Index >= 0 && s.Index < on.shards() {
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

// grant tells handlers that are processes for how long they may run on without news.
func (q *queues) grant(remaining time.Duration) {
	for _, on := range q.handled {
		if on.grant != nil {
			on.grant(remaining)
		}
	}
}

// children are the processes that handlers run, by queue.
func (q *queues) children() map[string]metrics.Use {
	all := map[string]metrics.Use{}
	for name, on := range q.handled {
		if on.children != nil {
			running, busy := on.children()
			all[name] = metrics.Use{Total: running, Busy: busy}
		}
	}
	return all
}
