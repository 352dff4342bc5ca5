package protocol

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Counts has the number of jobs of a shard or a queue by state. Each id is in one state. Failed counts some
// ids again.
type Counts struct {
	Ready     int `json:"ready"`     // due and waiting for a handler, whether they have failed before or not
	Scheduled int `json:"scheduled"` // not failed and not due yet
	Retry     int `json:"retry"`     // failed and not due yet
	Held      int `json:"held"`      // held by people until they release them
	InFlight  int `json:"in_flight"` // popped by a node
	Blocked   int `json:"blocked"`   // without retries left, waiting for a person

	// Failed counts the failed jobs in Retry and in Ready, as a list of failed jobs does. Retry and Ready
	// contain them already.
	Failed int `json:"failed"`
}

// Total returns the number of ids that are not done.
func (c Counts) Total() int { return c.Ready + c.Scheduled + c.Retry + c.Held + c.InFlight + c.Blocked }

// Stats has the figures of a shard or a queue.
type Stats struct {
	Jobs      Counts
	Morgue    int           // payloads in the morgue
	MorgueIDs int           // ids in the morgue
	Processed int64         // ids acked since the queue was created
	Failed    int64         // failures of ids since then
	Unlogged  int64         // lines missing in the journal since then, because Redis was out of memory
	Outgoing  int           // follow-ups that wait to be delivered
	OldestOut time.Duration // how long the first of them has waited; 0 if none waits
	Lag       time.Duration // how long the oldest due job has waited; 0 if none waits
	Now       time.Time     // by Redis's clock
	Owner     Owner         // of a shard
	// Of a shard with jobs that wait and jobs in flight:
	First      string        // first id of the oldest flight
	FirstSince time.Duration // age of the oldest flight
	LastSince  time.Duration // age of the newest flight
}

// Stats reads the figures of shards, in one round trip per 200 of them.
func (c *Client) Stats(ctx context.Context, shards ...*Shard) ([]Stats, error) {
	return readStats(ctx, c.db, shards)
}

// ReadStats is [Client.Stats] for shards of a client; there must be at least one.
func ReadStats(ctx context.Context, shards ...*Shard) ([]Stats, error) {
	return readStats(ctx, shards[0].registry.db, shards)
}

// statsBytes is the memory that the figures of a shard take until they are answered.
const statsBytes = 1 << 10

func readStats(ctx context.Context, db *redisdb.DB, shards []*Shard) ([]Stats, error) {
	if err := memory.Take(ctx, int64(len(shards))*statsBytes); err != nil {
		return nil, fmt.Errorf("figures of %d shards: %w", len(shards), err)
	}
	stats := make([]Stats, 0, len(shards))
	err := RunEach(ctx, db.Scripts.Stats, shards, func(*Shard) []any { return nil }, func(_ *Shard, answer []any) error {
		figures, err := decodeStats(answer)
		stats = append(stats, figures)
		return err
	})
	if err != nil {
		return nil, err
	}
	return stats, nil
}

// Stats reads the figures of the whole queue.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	scoped, end := memory.Scope(ctx)
	defer end()
	all, err := readStats(scoped, q.registry.db, q.shards)
	if err != nil {
		return Stats{}, fmt.Errorf("queue %q: %w", q.Name, err)
	}
	return Sum(all), nil
}

// Sum adds up the figures of shards. The lag is the largest lag.
func Sum(all []Stats) Stats {
	var sum Stats
	for _, s := range all {
		sum.Jobs.Ready += s.Jobs.Ready
		sum.Jobs.Scheduled += s.Jobs.Scheduled
		sum.Jobs.Retry += s.Jobs.Retry
		sum.Jobs.Held += s.Jobs.Held
		sum.Jobs.InFlight += s.Jobs.InFlight
		sum.Jobs.Blocked += s.Jobs.Blocked
		sum.Jobs.Failed += s.Jobs.Failed
		sum.Morgue += s.Morgue
		sum.MorgueIDs += s.MorgueIDs
		sum.Processed += s.Processed
		sum.Failed += s.Failed
		sum.Unlogged += s.Unlogged
		sum.Outgoing += s.Outgoing
		sum.OldestOut = max(sum.OldestOut, s.OldestOut)
		sum.Lag = max(sum.Lag, s.Lag)
		if s.Now.After(sum.Now) {
			sum.Now = s.Now
		}
	}
	return sum
}

func decodeStats(r []any) (Stats, error) {
	if len(r) != 21 {
		return Stats{}, fmt.Errorf("stats answered %v", r)
	}
	n := func(i int) int {
		v, _ := r[i].(int64)
		return int(v)
	}
	s := Stats{
		Now:    redisdb.Micros(r[0]),
		Jobs:   Counts{Ready: n(1), Scheduled: n(2), Retry: n(3), Held: n(15), InFlight: n(4), Blocked: n(5)},
		Morgue: n(7), MorgueIDs: n(6), Processed: int64(n(8)), Failed: int64(n(9)), Unlogged: int64(n(14)), Outgoing: n(16),
	}
	s.Jobs.Failed = s.Jobs.Retry + n(13)
	if oldest := redisdb.Micros(r[10]); !oldest.IsZero() {
		s.Lag = max(0, s.Now.Sub(oldest))
	}
	if first := redisdb.Micros(r[17]); !first.IsZero() {
		s.OldestOut = max(0, s.Now.Sub(first))
	}
	if oldest, newest := redisdb.Micros(r[19]), redisdb.Micros(r[20]); !oldest.IsZero() && !newest.IsZero() {
		s.First, _ = r[18].(string)
		s.FirstSince, s.LastSince = max(0, s.Now.Sub(oldest)), max(0, s.Now.Sub(newest))
	}
	s.Owner.Instance, _ = r[11].(string)
	fence, _ := r[12].(string)
	s.Owner.Fence, _ = strconv.ParseInt(fence, 10, 64)
	return s, nil
}
