package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

// Entry is a queue's entry in the registry: what all producers and nodes must agree on.
type Entry struct {
	Shards int  `json:"shards"`
	Layout int  `json:"layout"` // counts changes of the shard count; part of every key
	Paused bool `json:"paused,omitempty"`
}

// Queue is a registered queue. It is safe for concurrent use.
type Queue struct {
	lowkiq.Queue
	c      *Client
	layout int
	shards []*Shard
	commit committer
	push   Pusher
}

// Shard is one part of a queue in Redis. It is safe for concurrent use.
type Shard struct {
	lowkiq.Shard
	c    *Client
	keys shardKeys
	push []string // keys.forPush, made once
}

func (c *Client) newQueue(name string, entry Entry) *Queue {
	q := &Queue{Queue: lowkiq.Queue{Name: name, Shards: entry.Shards}, c: c, layout: entry.Layout}
	q.shards = make([]*Shard, entry.Shards)
	all := make([]Shard, entry.Shards)
	for i := range all {
		keys := newShardKeys(c.cfg.Cluster, name, entry.Layout, i)
		all[i] = Shard{Shard: lowkiq.Shard{Queue: name, Index: i}, c: c, keys: keys, push: keys.forPush()}
		q.shards[i] = &all[i]
	}
	q.commit.queue = q
	q.push = q.pusher()
	return q
}

// Shard returns the shard with this index. It panics if the queue has none.
func (q *Queue) Shard(index int) *Shard { return q.shards[index] }

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

// Register writes the queue into the registry at its first use, and returns it. A
// registered queue with another shard count is lowkiq.ErrShardCount: its jobs are
// where the old count put them.
func (c *Client) Register(ctx context.Context, q lowkiq.Queue) (*Queue, error) {
	if err := CheckQueue(q); err != nil {
		return nil, err
	}
	fresh, err := json.Marshal(Entry{Shards: q.Shards, Layout: 1})
	if err != nil {
		return nil, fmt.Errorf("queue %q: %w", q.Name, err)
	}
	reply, err := c.run(ctx, c.scripts.register, []string{c.queuesKey()}, q.Name, fresh)
	if err != nil {
		return nil, err
	}
	registered, err := c.adopt(q.Name, fmt.Sprint(reply))
	if err != nil {
		return nil, err
	}
	if registered.Shards != q.Shards {
		return nil, fmt.Errorf("queue %q has %d shards in redis %s, not %d: %w; configure %d", q.Name, registered.Shards, c.address, q.Shards, lowkiq.ErrShardCount, registered.Shards)
	}
	return registered, nil
}

// Queue returns a registered queue, lowkiq.ErrUnknownQueue with the known names if
// there is no such queue.
func (c *Client) Queue(ctx context.Context, name string) (*Queue, error) {
	c.mu.Lock()
	q := c.queues[name]
	c.mu.Unlock()
	if q != nil {
		return q, nil
	}
	if err := CheckName("queue", name); err != nil {
		return nil, err
	}
	entries, err := c.Registry(ctx)
	if err != nil {
		return nil, err
	}
	entry, ok := entries[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(entries)), ", ")
		return nil, fmt.Errorf("%w %q (known: %s)", lowkiq.ErrUnknownQueue, name, known)
	}
	return c.remember(name, entry), nil
}

// Registry reads all entries.
func (c *Client) Registry(ctx context.Context) (map[string]Entry, error) {
	raw, err := c.rdb.HGetAll(ctx, c.queuesKey()).Result()
	if err != nil {
		return nil, c.explain("read the queue registry", err)
	}
	entries := make(map[string]Entry, len(raw))
	for name, text := range raw {
		entry, err := decodeEntry(name, text)
		if err != nil {
			return nil, err
		}
		entries[name] = entry
	}
	return entries, nil
}

// Pause stops every node from popping the queue's jobs, Resume lets them go on. Pushes
// are taken all the while. Nodes see it with their next lease renewal.
func (c *Client) Pause(ctx context.Context, name string) error { return c.setPaused(ctx, name, true) }

// Resume ends a [Client.Pause].
func (c *Client) Resume(ctx context.Context, name string) error {
	return c.setPaused(ctx, name, false)
}

func (c *Client) setPaused(ctx context.Context, name string, paused bool) error {
	for {
		if _, err := c.Queue(ctx, name); err != nil {
			return err
		}
		old, err := c.rdb.HGet(ctx, c.queuesKey(), name).Result()
		if errors.Is(err, redis.Nil) { // known from before Redis lost its data
			return fmt.Errorf("%w %q", lowkiq.ErrUnknownQueue, name)
		}
		if err != nil {
			return c.explain("read the queue registry", err)
		}
		entry, err := decodeEntry(name, old)
		if err != nil {
			return err
		}
		entry.Paused = paused
		fresh, err := json.Marshal(entry)
		if err != nil {
			return fmt.Errorf("queue %q: %w", name, err)
		}
		reply, err := c.run(ctx, c.scripts.swap, []string{c.queuesKey()}, name, old, fresh)
		if err != nil || reply == int64(1) {
			return err
		}
	}
}

func decodeEntry(name, text string) (Entry, error) {
	var entry Entry
	if err := json.Unmarshal([]byte(text), &entry); err != nil || entry.Shards < 1 {
		return entry, fmt.Errorf("queue registry: entry of %q is damaged: %q", name, text)
	}
	return entry, nil
}

func (c *Client) adopt(name, text string) (*Queue, error) {
	entry, err := decodeEntry(name, text)
	if err != nil {
		return nil, err
	}
	return c.remember(name, entry), nil
}

// remember keeps one Queue per name, so that concurrent pushes of one process share
// their scripts.
func (c *Client) remember(name string, entry Entry) *Queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.queues[name]; q != nil && q.Shards == entry.Shards && q.layout == entry.Layout {
		return q
	}
	q := c.newQueue(name, entry)
	c.queues[name] = q
	return q
}

func (c *Client) queuesKey() string { return clusterKey(c.cfg.Cluster, "queues") }
