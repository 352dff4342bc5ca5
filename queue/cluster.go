package queue

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Two values for the nodes' election, kept as bytes whose meaning is none of Redis's
// business: which Raft group is the cluster's, and whether its leader lives.

// ClusterRecord is the value that says which group of nodes is the cluster.
type ClusterRecord struct{ c *Client }

// Record returns the cluster's record.
func (c *Client) Record() ClusterRecord { return ClusterRecord{c} }

// Load returns the record, nil if there is none.
func (r ClusterRecord) Load(ctx context.Context) ([]byte, error) {
	return r.c.bytes(ctx, r.c.db.Keys.Record(), "read the cluster record")
}

// CompareAndSet replaces the record old (nil: there is none) by next (nil: delete it)
// and reports whether it was old. After an error it may have happened.
func (r ClusterRecord) CompareAndSet(ctx context.Context, old, next []byte) (bool, error) {
	reply, err := r.c.run(ctx, r.c.db.Scripts.ClusterSwap, []string{r.c.db.Keys.Record()}, old, next)
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
	return m.c.bytes(ctx, m.c.db.Keys.Leader(), "read the leader's mark")
}

// Renew sets the mark for another ttl while the cluster record equals record, and
// reports whether it did.
func (m LeaderMark) Renew(ctx context.Context, record, mark []byte) (bool, error) {
	reply, err := m.c.run(ctx, m.c.db.Scripts.Mark, []string{m.c.db.Keys.Record(), m.c.db.Keys.Leader()}, record, mark, m.ttl.Milliseconds())
	return reply == int64(1), err
}

// Drop deletes the mark of a leader that is proven dead.
func (m LeaderMark) Drop(ctx context.Context) error {
	_, err := m.c.db.Do(ctx, "drop the leader's mark", "DEL", m.c.db.Keys.Leader())
	return err
}

func (c *Client) bytes(ctx context.Context, key, op string) ([]byte, error) {
	value, err := c.db.Do(ctx, op, "GET", key)
	return redisdb.Bytes(value), err
}
