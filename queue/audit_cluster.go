package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// What belongs to no shard: the registry, the index of instances, the record, stray keys.

// registry reads the registry's entries one by one and returns the queues to look at.
func (a *auditor) registry(ctx context.Context) (queues []*Queue, err error) {
	reply, err := a.c.db.Do(ctx, "read the queue registry", "HGETALL", a.c.db.Keys.Queues())
	if err != nil {
		return nil, err
	}
	raw := redisdb.Map(reply)
	for name, text := range raw {
		if entry, err := parseEntry(text); err == nil && entry.Removed {
			delete(raw, name)
		}
	}
	for _, name := range a.cfg.Queues {
		if _, ok := raw[name]; !ok {
			known := strings.Join(slices.Sorted(maps.Keys(raw)), ", ")
			return nil, fmt.Errorf("%w %q (known: %s)", lowkiq.ErrUnknownQueue, name, known)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		if len(a.cfg.Queues) > 0 && !slices.Contains(a.cfg.Queues, name) {
			continue
		}
		entry, err := a.c.decodeEntry(name, raw[name])
		if err == nil {
			err = CheckName("queue", name)
		}
		if err == nil {
			err = entry.Readable(name)
		}
		if err == nil && entry.Removing != "" {
			err = fmt.Errorf("queue %q: its deletion is not finished: repeat lowkiq-node queues delete %s", name, name)
		}
		if err != nil {
			a.add(Fault{Kind: RegistryDamaged, Queue: name, Shard: -1, What: err.Error() + "; its shards were not looked at"})
			continue
		}
		queues = append(queues, a.c.remember(name, entry))
	}
	return queues, nil
}

// cluster looks at what all shards share.
func (a *auditor) cluster(ctx context.Context, queues []*Queue) error {
	if err := a.records(ctx); err != nil {
		return err
	}
	if err := a.instances(ctx); err != nil {
		return err
	}
	if !a.cfg.Orphans {
		return nil
	}
	return a.orphans(ctx)
}

func (a *auditor) records(ctx context.Context) error {
	for key, what := range map[string]string{a.c.db.Keys.Record(): "the cluster record", a.c.db.Keys.Leader(): "the leader's mark"} {
		value, err := a.c.bytes(ctx, key, "read "+what)
		switch {
		case err != nil && strings.Contains(err.Error(), "WRONGTYPE"):
			a.add(Fault{Kind: RecordDamaged, Shard: -1, What: what + " is of another type in Redis"})
		case err != nil:
			return err
		case key == a.c.db.Keys.Record() && value != nil && !json.Valid(value):
			a.add(Fault{Kind: RecordDamaged, Shard: -1, What: fmt.Sprintf("%s cannot be read: %.40q", what, value)})
		}
	}
	return nil
}

// instances compares the index, the leases and the claims. Nothing in Redis says when a lease ended, so
// whether nodes should have forgotten an instance by now cannot be judged.
func (a *auditor) instances(ctx context.Context) error {
	index, err := a.c.Instances(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, i := range index {
		known[i.Name] = true
		if i.Lease == nil {
			a.out.Gone = append(a.out.Gone, i.Name)
		}
	}
	for _, holder := range slices.Sorted(maps.Keys(a.holders)) {
		if known[holder] {
			continue
		}
		if err := a.unknown(ctx, holder); err != nil {
			return err
		}
	}
	return nil
}

// unknown reads the claims of a holder again that is in no index: it may be new, or have
// given them up.
func (a *auditor) unknown(ctx context.Context, holder string) error {
	one, err := a.c.Instance(ctx, holder)
	if err != nil || one.Lease != nil || one.Identity != nil {
		return err
	}
	for _, s := range a.holders[holder] {
		owner, err := s.Owner(ctx)
		if err != nil {
			return err
		}
		if owner.Instance == holder {
			a.add(Fault{Kind: ClaimUnknown, Queue: s.Queue, Shard: s.Index,
				What: fmt.Sprintf("instance %s holds it, which has no lease and is not in the index; a node that handles the queue will seize it", holder)})
		}
	}
	return nil
}

// orphans walks through all keys of the cluster, on each master.
func (a *auditor) orphans(ctx context.Context) error {
	reply, err := a.c.db.Do(ctx, "read the queue registry", "HGETALL", a.c.db.Keys.Queues())
	if err != nil {
		return err
	}
	entries := redisdb.Map(reply)
	var mu sync.Mutex // guards found: the masters of a Redis Cluster are asked at once
	found := map[string]bool{}
	return a.c.db.EachMaster(ctx, func(ctx context.Context, master *redisdb.DB) error {
		for _, pattern := range a.c.db.Keys.Patterns() {
			for cursor := "0"; ; {
				reply, err := master.Do(ctx, "scan keys", "SCAN", cursor, "MATCH", pattern, "COUNT", sweepIDs)
				if err != nil {
					return err
				}
				keys, next := redisdb.Scanned(reply)
				mu.Lock()
				for _, key := range keys {
					if why := a.c.orphan(key, entries); why != "" && !found[key] {
						found[key] = true
						a.add(Fault{Kind: OrphanKey, Shard: -1, What: fmt.Sprintf("key %s: %s", key, why)})
					}
				}
				mu.Unlock()
				if cursor = next; cursor == "0" {
					break
				}
			}
		}
		return nil
	})
}

// orphan says why a key belongs to nothing, "" if it does.
func (c *Client) orphan(key string, registry map[string]string) string {
	if c.db.Keys.Shared(key) {
		return ""
	}
	queue, layout, index, name, ok := redisdb.ParseShard(key)
	if !ok {
		return "lowkiq keeps no such key"
	}
	text, ok := registry[queue]
	if !ok {
		return fmt.Sprintf("queue %s is not registered", queue)
	}
	entry, err := parseEntry(text)
	switch {
	case err != nil:
		return ""
	case name == "count" && (layout < entry.Layout || layout == entry.Layout && entry.Removed):
		return "" // the mark of a deleted queue: see remove.go
	case entry.Removed:
		return fmt.Sprintf("queue %s is deleted", queue)
	case layout != entry.Layout:
		return fmt.Sprintf("queue %s has layout %d", queue, entry.Layout)
	case index >= entry.Shards:
		return fmt.Sprintf("queue %s has %d shards", queue, entry.Shards)
	}
	keys := c.db.Keys.Shard(queue, layout, index)
	if _, ok := keys.Types()[key]; !ok {
		return "a shard has no such key"
	}
	return ""
}
