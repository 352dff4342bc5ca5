package dashboard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

// redisSource reads what the node knows and what Redis holds.
type redisSource struct {
	node   web.Node
	client *queue.Client
}

func (r redisSource) overview(ctx context.Context) (o overview, err error) {
	if o.Status, err = r.node.Status(ctx); err != nil {
		return o, err
	}
	if o.Members, err = r.node.Members(); err != nil && !errors.Is(err, status.ErrNoCluster) {
		return o, err
	}
	if o.Owners, err = r.node.Owners(ctx); err != nil {
		return o, err
	}
	if o.Handled, err = r.node.Handled(ctx); err != nil {
		return o, err
	}
	o.Entries, err = r.client.Registry(ctx)
	return o, err
}

func (r redisSource) stats(ctx context.Context, shards []lowkiq.Shard) ([]queue.Stats, error) {
	asked := make([]*queue.Shard, len(shards))
	for i, s := range shards {
		q, err := r.client.Queue(ctx, s.Queue)
		if err != nil {
			return nil, err
		}
		if s.Index >= q.Shards {
			return nil, fmt.Errorf("queue %q: %w", s.Queue, lowkiq.ErrShardCount)
		}
		asked[i] = q.Shard(s.Index)
	}
	return r.client.Stats(ctx, asked...)
}

func (r redisSource) counted(ctx context.Context) (processed, failed int64, shards int, err error) {
	return r.client.Counted(ctx)
}

func (r redisSource) timings(ctx context.Context) (map[string]queue.Timing, error) {
	return r.client.Timings(ctx)
}

// figures reads one queue now.
func (r redisSource) figures(ctx context.Context, name string) (*figures, error) {
	began := time.Now()
	entries, err := r.client.Registry(ctx)
	if err != nil {
		return nil, err
	}
	entry, ok := entries[name]
	if !ok {
		return nil, lowkiq.ErrUnknownQueue
	}
	owners, err := r.node.Owners(ctx)
	if err != nil {
		return nil, err
	}
	handled, err := r.node.Handled(ctx)
	if err != nil {
		return nil, err
	}
	m := &memory{have: map[string]*figures{}}
	m.see(overview{Entries: map[string]queue.Entry{name: entry}, Owners: owners, Handled: handled}, began)
	for chunk := range chunks(m.seen.Entries, chunkShards) {
		stats, err := r.stats(ctx, chunk)
		if err != nil {
			return nil, err
		}
		for i, shard := range chunk {
			m.add(shard, stats[i], began)
		}
	}
	return m.have[name], nil
}
