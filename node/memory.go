package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
)

// What a process remembers from one instance to the next.

// ran notes that this process owns a shard.
func (n *Node) ran(s lowkiq.Shard) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last[s] = true
}

// notLast notes that another instance has taken a shard, or may have.
func (n *Node) notLast(s lowkiq.Shard) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.last, s)
}

// ranLast reports whether no other instance can have owned the shard since, unless Redis has
// lost its claim.
func (n *Node) ranLast(s lowkiq.Shard) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last[s]
}

// lostLease notes the end of a lease. If it is missing, Redis may have lost claims too,
// and if Redis was away, nobody knows what it lost meanwhile: absent claims count as held
// for a ttl, the time their owners need to notice (I1).
func (n *Node) lostLease() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.absentUntil = sinceBoot() + n.cfg.TTL
}

func (n *Node) absentHeld() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return sinceBoot() < n.absentUntil
}

// missing says for how long this process has seen an instance without its lease.
func (n *Node) missing(instance string, leased bool) (time.Duration, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if leased {
		delete(n.absent, instance)
		return 0, false
	}
	since, noted := n.absent[instance]
	if !noted {
		since = sinceBoot()
		n.absent[instance] = since
	}
	return sinceBoot() - since, true
}

// forgetAbsent drops what was noted of instances long ago; who needs it notes it anew.
func (n *Node) forgetAbsent() {
	n.mu.Lock()
	defer n.mu.Unlock()
	long := func(_ string, since time.Duration) bool { return sinceBoot()-since > forgetMost }
	maps.DeleteFunc(n.absent, long)
	maps.DeleteFunc(n.ends, long)
}

// ended reports whether an instance's process and all of its child processes are proven to be gone. A proof is kept:
// looking for guards takes a while.
func (n *Node) ended(instance string, who identity.Identity) bool {
	n.mu.Lock()
	_, ended := n.ends[instance]
	n.mu.Unlock()
	if ended {
		return true
	}
	if !n.process.Ended(who) {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends[instance] = sinceBoot()
	return true
}

// missingSince says for how long an instance has been without its lease.
func (n *Node) missingSince(other queue.Instance) time.Duration {
	d, _ := n.missing(other.Name, other.Lease != nil)
	return d
}

// registry are the queues as last read from Redis. One whose entry is damaged stays what it was, so that the plan
// need not change for it and again once it is mended; nobody handles it meanwhile.
type registry struct {
	all     map[string]queue.Entry
	damaged map[string]error // why a queue's entry cannot be read
	at      time.Duration    // sinceBoot before it was read
}

func (n *Node) readRegistry(ctx context.Context) (*registry, error) {
	begun := sinceBoot()
	entries, damaged, err := n.leases.ReadRegistry(ctx, n.client)
	if err != nil {
		return nil, err
	}
	was := cmp.Or(n.registry.Load(), &registry{})
	for name, err := range damaged {
		if entry, known := was.all[name]; known {
			entries[name] = entry
		}
		if n.queues[name] == nil && was.damaged[name] == nil { // of those that it handles the instance tells
			n.log.Error("a queue's entry in the registry cannot be read", "queue", name, "err", err)
		}
	}
	r := &registry{entries, damaged, begun}
	n.registry.Store(r)
	return r, nil
}

// registerAgain writes a queue into a registry that has lost it, or from which it was deleted while this node started.
func (n *Node) registerAgain(ctx context.Context, on *handled) {
	if _, err := n.leases.RegisterAgain(ctx, on.queue); err != nil {
		n.log.Error("queue not registered again", "queue", on.rules.Name, "err", err)
	}
}

// unfit says why this node cannot handle a queue as the registry has it, whatever layout its shards have; nil if it can, or can
// once it has registered the queue: by that a queue without a codec gets one.
func (n *Node) unfit(on *handled, entry queue.Entry) error {
	name, codec := on.rules.Name, on.rules.Push.Codec.Name
	if !on.asRegistered && entry.Shards != on.rules.Shards {
		return fmt.Errorf("queue %q has %d shards in redis %s, not %d: %w; configure %d", name, entry.Shards, n.client.Redis(), on.rules.Shards, lowkiq.ErrShardCount, entry.Shards)
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

// refusedTTLs is how long a refusal is believed while the entry stays as it was: another try costs an instance, and with that
// the handler calls of all queues.
const refusedTTLs = 10

// holds returns the refusal's error, nil if a registration is worth another try.
func (r *refusal) holds(entry queue.Entry, ttl time.Duration) error {
	if r == nil || sinceBoot()-r.at > refusedTTLs*ttl || !reflect.DeepEqual(r.entry, entry) {
		return nil
	}
	return r.err
}

// registerAnew finds the shards of queues that were deleted and registered anew. It is called between two instances: nobody else
// looks at the queues then.
func (n *Node) registerAnew(ctx context.Context) error {
	registry := n.registry.Load()
	if registry == nil {
		return nil // the first instance
	}
	for name, on := range n.queues {
		if entry, there := registry.all[name]; on.queue != nil && (!there || registry.damaged[name] != nil || on.queue.Serves(entry)) {
			continue
		}
		if err := n.register(ctx, on); err != nil {
			if queue.Transient(err) || ctx.Err() != nil {
				return err
			}
			// It has changed again, or Redis refuses it for another reason. The other queues go on.
			n.log.Error("a queue that was registered anew is not handled", "queue", name, "err", err)
			on.queue, on.refused = nil, &refusal{err, registry.all[name], sinceBoot()}
		}
		n.mu.Lock()
		maps.DeleteFunc(n.last, func(s lowkiq.Shard, _ bool) bool { return s.Queue == name })
		n.mu.Unlock()
	}
	return nil
}
