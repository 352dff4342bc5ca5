package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/clock"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/text/suggest"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// RegistryEntry is a queue's entry in the registry. All producers and nodes must agree on it. A client that
// rewrites an entry keeps the fields of a later release.
type RegistryEntry struct {
	Shards int  `json:"shards"`
	Layout int  `json:"layout"` // grows when the queue is resharded, or deleted and registered anew; part of every key
	Paused bool `json:"paused,omitempty"`
	// Codec is the name of the codec of stored payloads, "" if they are stored as they are pushed. A process
	// without the codec neither pushes nor handles.
	Codec string `json:"codec,omitempty"`
	// Push has the limits and rules of pushes that hold for every client.
	rules.Push
	// Removing is the token of a deletion that is under way or was broken off. Removed means that a
	// deletion is complete. The entry of a deleted queue stays, so that the next registration gets a
	// higher layout. See package remove.
	Removing string `json:"removing,omitempty"`
	Removed  bool   `json:"removed,omitempty"`
	// Reshard is a reshard before its flip, nil if there is none. Was has the former layouts, newest first and at
	// most MaxFormer. Tried is the highest number of a layout whose attempt was cancelled, and TriedShards is the
	// number of its shards. See layouts.go.
	Reshard     *Reshard `json:"reshard,omitempty"`
	Was         []Former `json:"was,omitempty"`
	Tried       int      `json:"tried,omitempty"`
	TriedShards int      `json:"tried_shards,omitempty"`
	// Needs has the features that a process must read to touch the queue's jobs. A later release adds a
	// feature before it writes anything that this release cannot read.
	Needs []string `json:"needs,omitempty"`
}

// isDeleted reports whether the queue is deleted, or being deleted.
func (e RegistryEntry) isDeleted() bool { return e.Removed || e.Removing != "" }

// Features returns the features that this release reads beyond the forms of 0.1. Leases list them, so that no
// process writes anything that a live process cannot read. A lease without the list is from release 0.1.
func Features() []string { return []string{FeatureReshard, FeatureWorkflows} }

// Readable returns an error if this release cannot read the queue's jobs.
func (e RegistryEntry) Readable(name string) error {
	lacks := slices.DeleteFunc(slices.Clone(e.Needs), func(f string) bool { return slices.Contains(Features(), f) })
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("queue %q is stored in a form of a later release: it needs %s, which this release does not read; run the release of the other nodes", name, strings.Join(lacks, ", "))
}

// Registry holds what producers and nodes must agree on about queues: an entry for each, in a hash in Redis.
// It keeps one Queue per name, so that the pushes of a process share their commits. It is safe for concurrent
// use.
type Registry struct {
	db  *redisdb.DB
	cfg Config // of the client

	shared     *sharedRequests // for pops and acks
	pushCounts *pushCounts     // for the figures of days
	clock      clock.Remote    // Redis's clock

	mu         sync.Mutex
	queues     map[string]*Queue     // open queues by name; guarded by mu
	rules      map[string]PushRules  // this client's rules by queue; guarded by mu
	liveLimits map[string]rules.Push // limits set at run time, by queue; guarded by mu
	deadTo     map[string]string     // see SetDeadTo; guarded by mu
}

// SetDeadTo sets the queue that gets the dead payloads of a queue by the rule then, "" for none. Later claims of this
// client store it in their shards. Claims of a client without a call of SetDeadTo do not change it.
func (c *Client) SetDeadTo(queue, to string) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.registry.deadTo[queue] = to
}

func (g *Registry) deadToOf(queue string) (to string, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	to, known = g.deadTo[queue]
	return to, known
}

// Queue is a registered queue. It is safe for concurrent use.
type Queue struct {
	lowkiq.Queue
	registry    *Registry
	layout      int
	shards      []*Shard
	next        atomic.Pointer[Queue]    // the queue in its next layout, nil while it has none; see Latest
	was         atomic.Pointer[[]Former] // its former layouts, nil if there are none
	commit      *committer
	entry       RegistryEntry // as last read; guarded by registry.mu
	damage      error         // why the entry could not be read last time, nil if it could; guarded by registry.mu
	opened      time.Time
	refreshed   atomic.Int64              // when a push last read the entry, in ns since opened, which no change of the wall clock affects
	rules       atomic.Pointer[PushRules] // the rules that hold for pushes
	push        atomic.Pointer[Pusher]    // middlewares, codec and storeJobs, by these rules
	deliver     atomic.Pointer[Pusher]    // the same with storeDelivery
	storedCount *atomic.Uint64            // payloads that this client has stored
}

// Shard is a part of a queue in Redis. It is safe for concurrent use.
type Shard struct {
	lowkiq.Shard
	registry *Registry
	layout   int
	keys     redisdb.ShardKeys
	push     []string // the keys of lua/push.lua
}

func (g *Registry) newQueue(name string, entry RegistryEntry) *Queue {
	q := &Queue{Queue: lowkiq.Queue{Name: name, Shards: entry.Shards}, registry: g, layout: entry.Layout, opened: time.Now()}
	q.shards = make([]*Shard, entry.Shards)
	all := make([]Shard, entry.Shards)
	for i := range all {
		all[i] = g.newShard(name, entry.Layout, i)
		q.shards[i] = &all[i]
	}
	q.commit, q.storedCount = newCommitter(q), g.pushCounts.counterOf(name)
	q.keepEntry(entry)
	return q
}

func (g *Registry) newShard(name string, layout, index int) Shard {
	keys := g.db.Keys.Shard(name, layout, index)
	return Shard{Shard: lowkiq.Shard{Queue: name, Index: index}, registry: g, layout: layout, keys: keys, push: keys.For(g.db.Scripts.Push)}
}

// Shard returns the shard with this index. It panics if the queue has none.
func (q *Queue) Shard(index int) *Shard { return q.shards[index] }

// DB returns the shard's connection, for the packages below this package.
func (s *Shard) DB() *redisdb.DB { return s.registry.db }

// Keys returns the names of the shard's keys, for the packages below this package.
func (s *Shard) Keys() *redisdb.ShardKeys { return &s.keys }

// Run runs a script on the shard's keys. The error is a [FencedError] if the shard refused an instance that does
// not hold its claim, and lowkiq.ErrUnknownQueue if the queue is deleted.
func (s *Shard) Run(ctx context.Context, script *redisdb.Script, args ...any) (any, error) {
	return runScript(ctx, s.registry.db, script, s.keys.For(script), args...)
}

// Refused reads the error of a script that stores jobs, for packages that run such scripts themselves. It returns
// nil if the script was refused because of the mark of a deletion or a reshard that was given up. The mark is gone
// then, and the caller runs the script again. If [HasLeft] is true of the error, the jobs go to the next layout.
func (s *Shard) Refused(ctx context.Context, err error) error {
	return s.settleMark(ctx, readRefusal(err), s.registry.cfg.Timeout)
}

// All returns the shards of the queue's layout, by index.
func (q *Queue) All() []*Shard { return slices.Clone(q.shards) }

// Of returns the shard of the queue's layout that holds id.
func (q *Queue) Of(id string) *Shard { return q.shards[lowkiq.ShardOf(id, q.Shards)] }

// CheckQueue returns an error if a queue's name or shard count is not allowed.
func CheckQueue(q lowkiq.Queue) error {
	if err := CheckName("queue", q.Name); err != nil {
		return err
	}
	if q.Shards < 1 || q.Shards > lowkiq.MaxShards {
		return fmt.Errorf("queue %q: %d shards; the number must be between 1 and %d", q.Name, q.Shards, lowkiq.MaxShards)
	}
	return nil
}

// Register returns a queue and registers it at its first use, with the codec and the limits of the client's rules
// for it (SetRules). If the registered queue has another shard count, the error is lowkiq.ErrShardCount, because
// the jobs are in the shards of that count. If it had this count before a reshard, Register returns it with its
// present count. Codec and limits of a registered queue stay as they are; see
// Registry.Publish. A deleted queue is registered anew. A queue that is being deleted is refused.
func (c *Client) Register(ctx context.Context, q lowkiq.Queue) (*Queue, error) {
	if err := CheckNotReserved(q.Name); err != nil {
		return nil, err
	}
	return c.RegisterAny(ctx, q)
}

// ErrReserved means that a queue has the name of a built-in queue.
var ErrReserved = errors.New(`names that begin with "lowkiq." belong to lowkiq; use another queue`)

// CheckNotReserved returns an ErrReserved if a queue's name is reserved for built-in queues. Whatever takes jobs, handlers
// or rules of users for a queue calls it.
func CheckNotReserved(queue string) error {
	if strings.HasPrefix(queue, "lowkiq.") {
		return fmt.Errorf("queue %q: %w", queue, ErrReserved)
	}
	return nil
}

// RegisterAny is [Client.Register] for every queue, also for a built-in queue.
func (c *Client) RegisterAny(ctx context.Context, q lowkiq.Queue) (*Queue, error) {
	return c.registry.registerQueue(ctx, q, RegistryEntry{Layout: 1})
}

// Restore is [Client.Register] for an open queue whose entry Redis may have lost. The queue keeps its layouts, as this
// process last read them, so its keys stay the same, and a reshard goes on.
func (g *Registry) Restore(ctx context.Context, q *Queue) (*Queue, error) {
	q = q.Latest()
	g.mu.Lock()
	last := q.entry
	g.mu.Unlock()
	return g.registerQueue(ctx, q.Queue, RegistryEntry{Layout: q.layout, Paused: last.Paused, Reshard: last.Reshard, Was: last.Was, Tried: last.Tried, TriedShards: last.TriedShards, Needs: last.Needs})
}

// registerQueue returns the queue, and writes its entry if there is none. first is that entry, without what q and the
// rules of this client say. The entry of a deleted queue gets a higher layout.
func (g *Registry) registerQueue(ctx context.Context, q lowkiq.Queue, first RegistryEntry) (*Queue, error) {
	if err := CheckQueue(q); err != nil {
		return nil, err
	}
	rules := g.rulesOf(q.Name)
	first.Shards, first.Codec, first.Push = q.Shards, rules.Codec.Name, rules.Push
	fresh, err := json.Marshal(first)
	if err != nil {
		return nil, fmt.Errorf("queue %q: %w", q.Name, err)
	}
	reply, err := runScript(ctx, g.db, g.db.Scripts.Register, []string{g.db.Keys.Queues()}, q.Name, fresh)
	if err != nil {
		return nil, err
	}
	text, err := g.reviveEntry(ctx, q.Name, first, fmt.Sprint(reply))
	if err != nil {
		return nil, err
	}
	g.readLiveLimits(ctx, q.Name)
	registered, err := g.Adopt(q.Name, text)
	if err != nil {
		return nil, err
	}
	if registered.Shards != q.Shards && !registered.hadShards(q.Shards) {
		return nil, fmt.Errorf("queue %q has %d shards in redis %s, not %d: %w; configure %d", q.Name, registered.Shards, g.db.Address(), q.Shards, lowkiq.ErrShardCount, registered.Shards)
	}
	return registered, nil
}

// Queue returns a registered queue. If there is no such queue, the error is lowkiq.ErrUnknownQueue and lists the
// known names.
func (c *Client) Queue(ctx context.Context, name string) (*Queue, error) {
	return c.registry.openQueue(ctx, name)
}

// openQueue returns the open queue of this name. It reads the registry if the queue is not open, or if its entry
// could not be read last time.
func (g *Registry) openQueue(ctx context.Context, name string) (*Queue, error) {
	g.mu.Lock()
	q := g.queues[name]
	known := q != nil && q.damage == nil
	g.mu.Unlock()
	if known {
		return q, nil
	}
	if err := CheckName("queue", name); err != nil {
		return nil, err
	}
	entries, damaged, err := g.Read(ctx)
	if err == nil {
		err = damaged[name]
	}
	if err != nil {
		return nil, err
	}
	entry, ok := entries[name]
	if !ok { // or deleted
		return nil, g.unknownQueue(name, entries)
	}
	if err := entry.Readable(name); err != nil {
		return nil, err
	}
	g.readLiveLimits(ctx, name)
	return g.rememberQueue(name, entry), nil
}

// unknownQueue returns the error of a queue that the cluster does not have.
func (g *Registry) unknownQueue(name string, entries map[string]RegistryEntry) error {
	if len(entries) == 0 {
		return fmt.Errorf("%w %q (cluster %q has no queue)", lowkiq.ErrUnknownQueue, name, g.cfg.Cluster)
	}
	known := slices.DeleteFunc(slices.Sorted(maps.Keys(entries)), func(name string) bool { return CheckNotReserved(name) != nil })
	return fmt.Errorf("%w %q%s", lowkiq.ErrUnknownQueue, name, suggest.Among(name, known))
}

// Entries reads the entries of all queues that this release can read. It leaves out deleted queues, damaged
// entries, and queues that are stored in a form of a later release; see [Registry.Read].
func (g *Registry) Entries(ctx context.Context) (map[string]RegistryEntry, error) {
	entries, _, err := g.Read(ctx)
	maps.DeleteFunc(entries, func(name string, e RegistryEntry) bool { return e.Readable(name) != nil })
	return entries, err
}

// Read reads the entries of all queues that are not deleted. It includes entries that are not
// [RegistryEntry.Readable], because the plan needs their queues. For each damaged entry, damaged has an
// [ErrEntryDamaged]. A damaged entry concerns its own queue only. A client that opens, registers, changes or
// deletes that queue gets this error. also are registries of other clients of the process. Read applies the
// entries to them as well.
func (g *Registry) Read(ctx context.Context, also ...*Registry) (entries map[string]RegistryEntry, damaged map[string]error, err error) {
	reply, err := g.db.Do(ctx, "read the queue registry", "HGETALL", g.db.Keys.Queues())
	if err != nil {
		return nil, nil, err
	}
	raw := redisdb.Map(reply)
	entries, damaged = make(map[string]RegistryEntry, len(raw)), map[string]error{}
	for name, text := range raw {
		entry, err := g.parseEntry(name, text)
		if err != nil {
			damaged[name] = err
		} else if !entry.isDeleted() {
			entries[name] = entry
		}
		for _, registry := range append(also, g) {
			registry.updateEntry(name, entry, err)
			if err == nil {
				registry.forgetDeleted(name, entry)
			}
		}
	}
	return entries, damaged, nil
}

// forgetDeleted forgets an open queue if its entry says that it was deleted, or deleted and registered anew. If the queue
// was resharded, forgetDeleted makes its open queue lead to the next layout.
func (g *Registry) forgetDeleted(name string, entry RegistryEntry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch q := g.queues[name]; {
	case q == nil:
	case entry.succeeds(q):
		q.leaveFor(entry)
	case entry.isDeleted() || q.layout != entry.Layout || q.Shards != entry.Shards:
		delete(g.queues, name)
	}
}

// Pause stops every node from popping the queue's jobs until [Registry.Resume]. Pushes are stored meanwhile. Nodes
// notice at their next lease renewal.
func (g *Registry) Pause(ctx context.Context, name string) error { return g.setPaused(ctx, name, true) }

// Resume ends a [Registry.Pause].
func (g *Registry) Resume(ctx context.Context, name string) error {
	return g.setPaused(ctx, name, false)
}

func (g *Registry) setPaused(ctx context.Context, name string, paused bool) error {
	if _, err := g.openQueue(ctx, name); err != nil {
		return err
	}
	return g.rewriteEntry(ctx, name, func(entry *RegistryEntry) error { entry.Paused = paused; return nil })
}

// rewriteEntry changes a queue's entry in Redis, and tries again if another client has changed it meanwhile. It
// writes nothing if change leaves the entry as it is.
func (g *Registry) rewriteEntry(ctx context.Context, name string, change func(*RegistryEntry) error) error {
	for {
		reply, err := g.db.Do(ctx, "read the queue registry", "HGET", g.db.Keys.Queues(), name)
		if err != nil {
			return err
		}
		if reply == nil { // Redis has lost its data
			return fmt.Errorf("%w %q", lowkiq.ErrUnknownQueue, name)
		}
		old := redisdb.Text(reply)
		entry, err := g.parseEntry(name, old)
		if err != nil {
			return err
		}
		if entry.isDeleted() {
			g.forgetDeleted(name, entry)
			return fmt.Errorf("%w %q: it was deleted", lowkiq.ErrUnknownQueue, name)
		}
		was := entry
		if err := change(&entry); err != nil || reflect.DeepEqual(entry, was) {
			return err
		}
		_, swapped, err := g.Swap(ctx, name, old, entry)
		if err != nil {
			return err
		}
		if swapped {
			g.updateEntry(name, entry, nil)
			return nil
		}
	}
}

// ErrEntryDamaged means that a queue's entry in the registry cannot be read. A person must write it anew, because
// nothing else says for sure how many shards the queue has.
var ErrEntryDamaged = errors.New("the queue's entry in the registry is damaged")

// parseEntry reads the text of an entry. Its error says what is wrong with the entry, where it is stored, and
// what to write there.
func (g *Registry) parseEntry(name, text string) (RegistryEntry, error) {
	entry, err := decodeEntry(text)
	if err == nil {
		return entry, nil
	}
	return RegistryEntry{}, fmt.Errorf(`queue %q: %w: %w: field %q of the hash %s in redis %s is %.100q; write {"shards":N,"layout":L} there, N as the nodes have it configured, `+
		`L as in the names of the queue's keys, %s`, name, ErrEntryDamaged, err, name, g.db.Keys.Queues(), g.db.Address(), text, g.db.Keys.Pattern(name))
}

func decodeEntry(text string) (entry RegistryEntry, err error) {
	if err = json.Unmarshal([]byte(text), &entry); err == nil {
		err = entry.checkLayouts()
	}
	return entry, err
}

// Adopt opens the queue of an entry that was read elsewhere. It does not ask Redis.
func (g *Registry) Adopt(name, text string) (*Queue, error) {
	entry, err := g.parseEntry(name, text)
	if err == nil {
		err = entry.Readable(name)
	}
	if err != nil {
		return nil, err
	}
	return g.rememberQueue(name, entry), nil
}

// Serves reports whether an entry of the registry is the entry of this queue. An entry with another layout belongs
// to a queue that was resharded, or deleted and registered anew.
func (q *Queue) Serves(entry RegistryEntry) bool {
	return q.layout == entry.Layout && q.Shards == entry.Shards
}

// rememberQueue returns the open queue of this name with its entry updated, or opens it. There is one Queue per
// name, so that concurrent pushes of a process share their scripts.
func (g *Registry) rememberQueue(name string, entry RegistryEntry) *Queue {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[name]
	switch {
	case q == nil:
	case q.Shards == entry.Shards && q.layout == entry.Layout:
		q.setEntry(entry)
		return q
	case entry.succeeds(q):
		q.leaveFor(entry)
		return g.queues[name]
	case q.entry.hasLeft(entry.Layout): // the entry is from before the reshard, or Redis has lost data. The next push reads it again
		q.expireEntry()
		return q
	}
	q = g.newQueue(name, entry)
	q.applyRules(g.rules[name])
	g.queues[name] = q
	return q
}

// nameRule excludes the delimiters of keys.
var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// CheckName returns an error if the name of a cluster, a queue or a node is not allowed. what is the kind of
// name, for the error.
func CheckName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s name is empty", what)
	case len(name) > lowkiq.MaxQueueName:
		return fmt.Errorf("%s name is %d bytes long, at most %d are allowed", what, len(name), lowkiq.MaxQueueName)
	case !nameRule.MatchString(name):
		return fmt.Errorf("%s name %q: use letters, digits, '.', '_' and '-', beginning with a letter or digit", what, name)
	}
	return nil
}
