package queue

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Two values for the nodes' election, kept as bytes whose meaning is none of Redis's
// business: which Raft group is the cluster's, and whether its leader lives.

// ClusterRecord is the value that says which group of nodes is the cluster.
type ClusterRecord struct{ c *Client }

// Record returns the cluster's record.
func (c *Client) Record() ClusterRecord { return ClusterRecord{c} }

func (c *Client) recordKey() string { return clusterKey(c.cfg.Cluster, "record") }
func (c *Client) markKey() string   { return clusterKey(c.cfg.Cluster, "leader") }

// Load returns the record, nil if there is none.
func (r ClusterRecord) Load(ctx context.Context) ([]byte, error) {
	return r.c.bytes(ctx, r.c.recordKey(), "read the cluster record")
}

// CompareAndSet replaces the record old (nil: there is none) by next (nil: delete it)
// and reports whether it was old. After an error it may have happened.
func (r ClusterRecord) CompareAndSet(ctx context.Context, old, next []byte) (bool, error) {
	reply, err := r.c.run(ctx, r.c.scripts.clusterSwap, []string{r.c.recordKey()}, old, next)
	return reply == int64(1), err
}

// Now is Redis's clock.
func (r ClusterRecord) Now(ctx context.Context) (time.Time, error) { return r.c.Time(ctx) }

// LeaderMark is a value that vanishes a ttl after its last renewal.
type LeaderMark struct {
	c   *Client
	ttl time.Duration
}

// Mark returns the leader's mark.
func (c *Client) Mark(ttl time.Duration) LeaderMark { return LeaderMark{c, ttl} }

// Load returns the mark, nil if it is missing.
func (m LeaderMark) Load(ctx context.Context) ([]byte, error) {
	return m.c.bytes(ctx, m.c.markKey(), "read the leader's mark")
}

// Renew sets the mark for another ttl while the cluster record equals record, and
// reports whether it did.
func (m LeaderMark) Renew(ctx context.Context, record, mark []byte) (bool, error) {
	reply, err := m.c.run(ctx, m.c.scripts.mark, []string{m.c.recordKey(), m.c.markKey()}, record, mark, m.ttl.Milliseconds())
	return reply == int64(1), err
}

// Drop deletes the mark of a leader that is proven dead.
func (m LeaderMark) Drop(ctx context.Context) error {
	return m.c.explain("drop the leader's mark", m.c.rdb.Del(ctx, m.c.markKey()).Err())
}

func (c *Client) bytes(ctx context.Context, key, op string) ([]byte, error) {
	value, err := c.rdb.Get(ctx, key).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return value, c.explain(op, err)
}
