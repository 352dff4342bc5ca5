package node

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

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
		n.absent.NotLastOwnerOf(name)
	}
	return nil
}
