package protocol

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// The registry keeps the rules of a queue's pushes: the name of the codec of stored payloads, and the limits. They hold
// for every client that pushes. So a program with other rules of its own stores no payload in another form or beyond the
// limits.

// ErrCodec means that the queue's payloads are stored in a codec that this client does not have, or that
// this client has a codec and the queue has none.
var ErrCodec = errors.New("payloads of the queue are stored in another form")

// PushRules are queue.PushRules. Register of a new queue and Registry.Publish write the limits into the registry.
type PushRules struct {
	Codec       Codec
	Middlewares []Middleware
	rules.Push
}

// SetRules sets the rules of a queue for this client's pushes from now on.
func (c *Client) SetRules(queue string, push PushRules) error {
	if err := CheckName("queue", queue); err != nil {
		return err
	}
	if err := push.Push.Check(); err != nil {
		return fmt.Errorf("queue %q: %w", queue, err)
	}
	if push.Codec.Decode != nil && push.Codec.Encode == nil {
		return fmt.Errorf("queue %q: the codec decodes and does not encode", queue)
	}
	if push.Codec.Name != "" && push.Codec.Encode == nil {
		return fmt.Errorf("queue %q: codec %q does not encode", queue, push.Codec.Name)
	}
	if push.Codec.Encode != nil {
		if err := CheckName("codec", push.Codec.Name); err != nil {
			return fmt.Errorf("queue %q: %w; the registry keeps it, as in \"aes-gcm\"", queue, err)
		}
	}
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.registry.rules[queue] = push
	if q := c.registry.queues[queue]; q != nil {
		q.applyRules(push)
	}
	return nil
}

// strictestRules returns the rules for the pushes of a client with rules of its own. Each limit is the stricter
// limit of the registry and the client. Coalesce and Debounce are the client's if it has any.
func strictestRules(registered, own rules.Push) rules.Push {
	registered = registered.WithDefaults()
	limit := func(to, own *int) {
		if *own != 0 {
			*to = min(*to, *own)
		}
	}
	limit(&registered.PayloadBytes, &own.PayloadBytes)
	limit(&registered.Payloads, &own.Payloads)
	limit(&registered.IDPayload, &own.IDPayload)
	registered.Coalesce = cmp.Or(own.Coalesce, registered.Coalesce)
	registered.Debounce = cmp.Or(own.Debounce, registered.Debounce).WithDefaults()
	return registered
}

// SetLimits applies the limits of a queue that are set at run time to the pushes of this process. They take
// the place of all other limits.
func (g *Registry) SetLimits(queue string, live rules.Push) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.setLimits(queue, live)
}

func (g *Registry) setLimits(queue string, live rules.Push) {
	if g.liveLimits[queue] == live {
		return
	}
	g.liveLimits[queue] = live
	if live == (rules.Push{}) {
		delete(g.liveLimits, queue)
	}
	if q := g.queues[queue]; q != nil {
		q.applyRules(g.rules[queue])
	}
}

// Limits returns the limits for pushes to a queue with this entry. Limits set at run time come first, as far as
// this process has read them.
func (g *Registry) Limits(queue string, entry RegistryEntry) rules.Push {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.liveLimits[queue].Or(entry.Push).WithDefaults()
}

// Stores returns ErrCodec unless the queue stores payloads in the codec with this name; "" is no codec.
func (e RegistryEntry) Stores(queue, codec string) error {
	switch {
	case e.Codec == codec:
		return nil
	case e.Codec == "":
		return fmt.Errorf("queue %q: %w: as they are pushed, not in codec %q; the codec is registered when a node starts that handles the queue with it, or by protocol.Registry.Publish",
			queue, ErrCodec, codec)
	case codec == "":
		return fmt.Errorf("queue %q: %w: codec %q, which is not here; push through a node that handles the queue (lowkiq-node push --node URL), or give this program the codec (queue.Client.SetRules, node.QueueConfig.Codec)",
			queue, ErrCodec, e.Codec)
	}
	return fmt.Errorf("queue %q: %w: codec %q, not %q; a queue keeps its codec, and a codec that reads more than one form has one name", queue, ErrCodec, e.Codec, codec)
}

// Pushable returns an error if this client may not push to the queue.
func (q *Queue) Pushable() error {
	q = q.Latest()
	q.registry.mu.Lock()
	defer q.registry.mu.Unlock()
	return q.checkPushable(q.registry.rules[q.Name])
}

// checkPushable returns an error if all pushes by these rules must be refused. The caller holds registry.mu.
func (q *Queue) checkPushable(r PushRules) error {
	if q.damage != nil {
		return q.damage
	}
	if err := q.entry.Readable(q.Name); err != nil {
		return err
	}
	// A queue that is being deleted is not refused here, as the deletion may be given up. The marks of its shards decide.
	if q.entry.Removed || q.entry.Layout != q.layout {
		return fmt.Errorf("%w %q: %w", lowkiq.ErrUnknownQueue, q.Name, &markError{})
	}
	if q.entry.Shards != q.Shards {
		return fmt.Errorf("queue %q: %w: it is registered anew, with %d shards; open it again", q.Name, lowkiq.ErrShardCount, q.entry.Shards)
	}
	return q.entry.Stores(q.Name, r.Codec.Name)
}

// Storing returns the present rules for storing payloads, with codec and limits. It returns an error if this
// client may not push.
func (q *Queue) Storing(ctx context.Context) (PushRules, error) {
	q = q.Latest()
	q.refreshEntry(ctx)
	if err := q.Pushable(); err != nil {
		return PushRules{}, err
	}
	return *q.rules.Load(), nil
}

// Codec returns the name of the codec of stored payloads, "" if they are stored as they are pushed.
func (q *Queue) Codec() string {
	q.registry.mu.Lock()
	defer q.registry.mu.Unlock()
	return q.entry.Codec
}

// Publish writes the codec's name and the limits of this client's rules for a registered queue into the
// registry, where they hold for every client that pushes. A node calls it at its start, for the queues that
// it handles. Limits that the rules do not name stay as they are.
//
// A queue without a codec gets this client's codec. The Decode of the codec must be able to read the waiting
// payloads. A codec is never replaced (ErrCodec). Clients that push to the queue follow the change within 10 s.
func (g *Registry) Publish(ctx context.Context, queue string) error {
	own := g.rulesOf(queue)
	if own.Codec.Name == "" && own.Push == (rules.Push{}) { // nothing to write
		q, err := g.openQueue(ctx, queue)
		if err != nil {
			return err
		}
		return q.Pushable()
	}
	return g.rewriteEntry(ctx, queue, func(e *RegistryEntry) error {
		if err := e.Readable(queue); err != nil {
			return err
		}
		if e.Codec == "" {
			e.Codec = own.Codec.Name
		}
		e.Push = own.Push.Or(e.Push)
		return e.Stores(queue, own.Codec.Name)
	})
}

func (g *Registry) rulesOf(queue string) PushRules {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rules[queue]
}

// checkNeeds returns an error if a live process does not read the features that an entry is about to need in
// addition. Nothing may be written that a live process cannot read, so every lease must list the features. A
// process that starts later reads the entry before it touches the queue's jobs.
func (g *Registry) checkNeeds(ctx context.Context, queue string, was, needs []string) error {
	added := slices.DeleteFunc(slices.Clone(needs), func(f string) bool { return slices.Contains(was, f) })
	if len(added) == 0 {
		return nil
	}
	instances, err := lease.In(g.db).All(ctx)
	if err != nil {
		return err
	}
	for _, of := range instances {
		if of.Lease == nil {
			continue
		}
		var text struct {
			Features []string `json:"features"`
		}
		if err := json.Unmarshal(of.Lease, &text); err != nil {
			return fmt.Errorf("queue %q: the features in the lease of %s cannot be read: %w", queue, of.Name, err)
		}
		for _, feature := range added {
			if !slices.Contains(text.Features, feature) {
				return fmt.Errorf("queue %q: %s does not read %s, which the queue would need; run the new release on every node first", queue, of.Name, feature)
			}
		}
	}
	return nil
}
