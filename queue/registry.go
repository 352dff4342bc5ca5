package queue

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
	"github.com/lowkiq/lowkiq/internal/extra"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Entry is a queue's entry in the registry: what all producers and nodes must agree on.
// A client that rewrites one keeps the fields of a later release.
type Entry struct {
	Shards int  `json:"shards"`
	Layout int  `json:"layout"` // counts changes of the shard count; part of every key
	Paused bool `json:"paused,omitempty"`
	// Codec names the codec in which payloads are stored, "" = they are stored as they are pushed.
	// Who lacks it neither pushes nor handles.
	Codec string `json:"codec,omitempty"`
	// Limits hold for every client that pushes.
	Limits
	// Removing is the token of a deletion that is under way, or was broken off; Removed says that
	// one is complete. Such an entry stays, for its layout: the next registration has a higher one.
	// See remove.go.
	Removing string `json:"removing,omitempty"`
	Removed  bool   `json:"removed,omitempty"`
	// Needs are features that a process must read to touch the queue's jobs. A later release
	// writes them before it writes what this one cannot read.
	Needs []string `json:"needs,omitempty"`
}

// gone reports whether the queue is deleted, or being deleted.
func (e Entry) gone() bool { return e.Removed || e.Removing != "" }

// Features are what this release reads beyond the forms of 0.1. Leases list them, so that
// no process writes what a live one cannot read; a lease without the list is of 0.1.
func Features() []string { return nil }

// Readable says what this release does not read of a queue.
func (e Entry) Readable(name string) error {
	lacks := slices.DeleteFunc(slices.Clone(e.Needs), func(f string) bool { return slices.Contains(Features(), f) })
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("queue %q is stored in a form of a later release: it needs %s, which this release does not read; run the release of the other nodes", name, strings.Join(lacks, ", "))
}

// Registry is what producers and nodes agree on about queues: an entry for each, in one hash.
// It keeps one Queue per name, so that the pushes of one process share their commits. It is safe
// for concurrent use.
type Registry struct {
	db  *redisdb.DB
	cfg Config // of the client

	sharing *sharing // of pops and acks
	pushes  *pushes  // for the figures of days

	mu     sync.Mutex
	queues map[string]*Queue    // by name, as registered; guarded by mu
	rules  map[string]PushRules // by queue; guarded by mu
	live   map[string]Limits    // by queue, as they are set at run time; guarded by mu
}

// Queue is a registered queue. It is safe for concurrent use.
type Queue struct {
	lowkiq.Queue
	registry *Registry
	layout   int
	shards   []*Shard
	commit   *committer
	entry    Entry // as last read; guarded by g.mu
	damage   error // why the entry could not be read last time, nil if it could; guarded by g.mu
	made     time.Time
	looked   atomic.Int64 // when a push has last asked for the entry, ns since it was made: no wall clock that is set back puts that off
	rules    atomic.Pointer[PushRules]
	push     atomic.Pointer[Pusher] // by the rules
	deliver  atomic.Pointer[Pusher] // by the same, for Deliver
	pushed   *atomic.Uint64         // payloads stored by this client
}

// Shard is one part of a queue in Redis. It is safe for concurrent use.
type Shard struct {
	lowkiq.Shard
	registry *Registry
	keys     redisdb.ShardKeys
	push     []string // those of push, made once
}

func (g *Registry) newQueue(name string, entry Entry) *Queue {
	q := &Queue{Queue: lowkiq.Queue{Name: name, Shards: entry.Shards}, registry: g, layout: entry.Layout, made: time.Now()}
	q.shards = make([]*Shard, entry.Shards)
	all := make([]Shard, entry.Shards)
	for i := range all {
		keys := g.db.Keys.Shard(name, entry.Layout, i)
		all[i] = Shard{Shard: lowkiq.Shard{Queue: name, Index: i}, registry: g, keys: keys, push: keys.For(g.db.Scripts.Push)}
		q.shards[i] = &all[i]
	}
	q.commit, q.entry, q.pushed = newCommitter(q), entry, g.pushes.queue(name)
	return q
}

// Shard returns the shard with this index. It panics if the queue has none.
func (q *Queue) Shard(index int) *Shard { return q.shards[index] }

// DB and Keys are the shard's connection and keys, for the packages below this one.
func (s *Shard) DB() *redisdb.DB { return s.registry.db }

// Keys: see DB.
func (s *Shard) Keys() *redisdb.ShardKeys { return &s.keys }

// Run calls a script that names keys of a shard. That the shard refuses the caller is a
// [FencedError], that its queue is deleted a lowkiq.ErrUnknownQueue.
func (s *Shard) Run(ctx context.Context, script *redisdb.Script, args ...any) (any, error) {
	return run(ctx, s.registry.db, script, s.keys.For(script), args...)
}

// Refused reads why a script that stores something has failed, for callers of the scripts themselves. nil: the mark of a
// deletion that was given up was in the way, and is gone; the script is to be called again.
func (s *Shard) Refused(ctx context.Context, err error) error { return s.removed(ctx, refusal(err)) }

// All returns the queue's shards, by index.
func (q *Queue) All() []*Shard { return slices.Clone(q.shards) }

// Of returns the shard that holds id.
func (q *Queue) Of(id string) *Shard { return q.shards[lowkiq.ShardOf(id, q.Shards)] }

// CheckQueue says what is wrong with a queue's name or shard count.
func CheckQueue(q lowkiq.Queue) error {
	if err := CheckName("queue", q.Name); err != nil {
		return err
	}
	if q.Shards < 1 || q.Shards > lowkiq.MaxShards {
		return fmt.Errorf("queue %q: %d shards, want 1 to %d", q.Name, q.Shards, lowkiq.MaxShards)
	}
	return nil
}

// Register writes the queue into the registry at its first use, with the codec and the limits of
// the client's rules for it (SetRules), and returns it. A registered queue with another shard count
// is lowkiq.ErrShardCount: its jobs are where the old count put them. Codec and limits of a
// registered queue stay what they are; see Registry.Publish. A queue that was deleted is registered
// anew; one that is being deleted is refused.
func (c *Client) Register(ctx context.Context, q lowkiq.Queue) (*Queue, error) {
	return c.registry.register(ctx, q, 1)
}

// Restore is [Client.Register] of a queue that Redis may have lost: its shards are where they were.
func (g *Registry) Restore(ctx context.Context, q *Queue) (*Queue, error) {
	return g.register(ctx, q.Queue, q.layout)
}

func (g *Registry) register(ctx context.Context, q lowkiq.Queue, layout int) (*Queue, error) {
	if err := CheckQueue(q); err != nil {
		return nil, err
	}
	rules := g.rulesOf(q.Name)
	first := Entry{Shards: q.Shards, Layout: layout, Codec: rules.Codec.Name, Limits: rules.limits()}
	fresh, err := json.Marshal(first)
	if err != nil {
		return nil, fmt.Errorf("queue %q: %w", q.Name, err)
	}
	reply, err := run(ctx, g.db, g.db.Scripts.Register, []string{g.db.Keys.Queues()}, q.Name, fresh)
	if err != nil {
		return nil, err
	}
	text, err := g.revive(ctx, q.Name, first, fmt.Sprint(reply))
	if err != nil {
		return nil, err
	}
	g.readLive(ctx, q.Name)
	registered, err := g.Adopt(q.Name, text)
	if err != nil {
		return nil, err
	}
	if registered.Shards != q.Shards {
		return nil, fmt.Errorf("queue %q has %d shards in redis %s, not %d: %w; configure %d", q.Name, registered.Shards, g.db.Address(), q.Shards, lowkiq.ErrShardCount, registered.Shards)
	}
	return registered, nil
}

// Queue returns a registered queue, lowkiq.ErrUnknownQueue with the known names if
// there is no such queue.
func (c *Client) Queue(ctx context.Context, name string) (*Queue, error) {
	return c.registry.queue(ctx, name)
}

func (g *Registry) queue(ctx context.Context, name string) (*Queue, error) {
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
		return nil, unknown(name, entries)
	}
	if err := entry.Readable(name); err != nil {
		return nil, err
	}
	g.readLive(ctx, name)
	return g.remember(name, entry), nil
}

func unknown(name string, entries map[string]Entry) error {
	return fmt.Errorf("%w %q (known: %s)", lowkiq.ErrUnknownQueue, name, strings.Join(slices.Sorted(maps.Keys(entries)), ", "))
}

// Entries reads the entries of all queues that this release can read: not those of deleted queues,
// which it forgets, those that are damaged, and those stored in a form of a later release.
// [Registry.Read] tells of these.
func (g *Registry) Entries(ctx context.Context) (map[string]Entry, error) {
	entries, _, err := g.Read(ctx)
	maps.DeleteFunc(entries, func(name string, e Entry) bool { return e.Readable(name) != nil })
	return entries, err
}

// Read is Entries with the entries that are not [Entry.Readable], as their queues have to be
// planned for, and it says, by queue, which are damaged, each an [ErrEntryDamaged]: one that is
// damaged concerns its own queue only. A client that opens, registers, changes or deletes that
// queue is refused with this error. also are other clients of the process, which learn of the
// entries, too.
func (g *Registry) Read(ctx context.Context, also ...*Registry) (entries map[string]Entry, damaged map[string]error, err error) {
	reply, err := g.db.Do(ctx, "read the queue registry", "HGETALL", g.db.Keys.Queues())
	if err != nil {
		return nil, nil, err
	}
	raw := redisdb.Map(reply)
	entries, damaged = make(map[string]Entry, len(raw)), map[string]error{}
	for name, text := range raw {
		entry, err := g.parse(name, text)
		if err != nil {
			damaged[name] = err
		} else if !entry.gone() {
			entries[name] = entry
		}
		for _, one := range append(also, g) {
			one.saw(name, entry, err)
			if err == nil {
				one.forget(name, entry)
			}
		}
	}
	return entries, damaged, nil
}

// forget drops what is remembered of a queue that was deleted since, or deleted and registered
// anew.
func (g *Registry) forget(name string, entry Entry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[name]; q != nil && (entry.gone() || q.layout != entry.Layout || q.Shards != entry.Shards) {
		delete(g.queues, name)
	}
}

// Pause stops every node from popping the queue's jobs, Resume lets them go on. Pushes
// are taken all the while. Nodes see it with their next lease renewal.
func (g *Registry) Pause(ctx context.Context, name string) error { return g.setPaused(ctx, name, true) }

// Resume ends a [Registry.Pause].
func (g *Registry) Resume(ctx context.Context, name string) error {
	return g.setPaused(ctx, name, false)
}

func (g *Registry) setPaused(ctx context.Context, name string, paused bool) error {
	if _, err := g.queue(ctx, name); err != nil {
		return err
	}
	return g.rewrite(ctx, name, func(entry *Entry) error { entry.Paused = paused; return nil })
}

// rewrite changes a queue's entry, unless change leaves it as it is.
func (g *Registry) rewrite(ctx context.Context, name string, change func(*Entry) error) error {
	for {
		reply, err := g.db.Do(ctx, "read the queue registry", "HGET", g.db.Keys.Queues(), name)
		if err != nil {
			return err
		}
		if reply == nil { // known from before Redis lost its data
			return fmt.Errorf("%w %q", lowkiq.ErrUnknownQueue, name)
		}
		old := redisdb.Text(reply)
		entry, err := g.parse(name, old)
		if err != nil {
			return err
		}
		if entry.gone() {
			g.forget(name, entry)
			return fmt.Errorf("%w %q: it was deleted", lowkiq.ErrUnknownQueue, name)
		}
		was := entry
		if err := change(&entry); err != nil || reflect.DeepEqual(entry, was) {
			return err
		}
		if err := g.mayNeed(ctx, name, was.Needs, entry.Needs); err != nil {
			return err
		}
		fresh, err := extra.Keep(entry, []byte(old))
		if err != nil {
			return fmt.Errorf("queue %q: %w", name, err)
		}
		reply, err = run(ctx, g.db, g.db.Scripts.Swap, []string{g.db.Keys.Queues()}, name, old, fresh)
		if err != nil {
			return err
		}
		if reply == int64(1) {
			g.saw(name, entry, nil)
			return nil
		}
	}
}

// ErrEntryDamaged: what the registry says of a queue cannot be read. A person must write it anew:
// nothing else says for sure how many shards the queue has.
var ErrEntryDamaged = errors.New("the queue's entry in the registry is damaged")

// parse reads an entry as it stands in the registry. Its errors say what is wrong with it, where it
// is, and what would be right.
func (g *Registry) parse(name, text string) (Entry, error) {
	entry, err := parseEntry(text)
	if err == nil {
		return entry, nil
	}
	return Entry{}, fmt.Errorf(`queue %q: %w: %w: field %q of the hash %s in redis %s is %.100q; write {"shards":N,"layout":L} there, N as the nodes have it configured, `+
		`L as in the names of the queue's keys, %s`, name, ErrEntryDamaged, err, name, g.db.Keys.Queues(), g.db.Address(), text, g.db.Keys.Pattern(name))
}

func parseEntry(text string) (entry Entry, err error) {
	switch err = json.Unmarshal([]byte(text), &entry); {
	case err != nil:
		return entry, err
	case entry.Shards < 1 || entry.Shards > lowkiq.MaxShards: // as CheckQueue has it: each shard costs memory
		return entry, fmt.Errorf("%d shards, want 1 to %d", entry.Shards, lowkiq.MaxShards)
	case entry.Layout < 1:
		return entry, fmt.Errorf("layout %d, want 1 or more", entry.Layout)
	}
	return entry, nil
}

// Adopt is the queue of an entry that was read elsewhere. It asks nothing of Redis.
func (g *Registry) Adopt(name, text string) (*Queue, error) {
	entry, err := g.parse(name, text)
	if err == nil {
		err = entry.Readable(name)
	}
	if err != nil {
		return nil, err
	}
	return g.remember(name, entry), nil
}

// Serves reports whether an entry of the registry is this queue's: another layout is of one that
// was deleted and registered anew.
func (q *Queue) Serves(entry Entry) bool { return q.layout == entry.Layout && q.Shards == entry.Shards }

// remember keeps one Queue per name, so that concurrent pushes of one process share
// their scripts.
func (g *Registry) remember(name string, entry Entry) *Queue {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[name]; q != nil && q.Shards == entry.Shards && q.layout == entry.Layout {
		q.learn(entry)
		return q
	}
	q := g.newQueue(name, entry)
	q.obey(g.rules[name])
	g.queues[name] = q
	return q
}

// nameRule keeps the delimiters of keys out of names.
var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// CheckName says what is wrong with the name of a cluster, a queue or a node.
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
