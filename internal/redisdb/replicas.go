package redisdb

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A claim that a failover forgets lets two owners believe in the same shard, until the older
// one's next command. So a claim waits for a replica, if its master has any. It is a
// best effort: Redis does not promise that this replica becomes the next master.

const (
	replicaPatience = 100 * time.Millisecond // for one replica to have a claim
	replicasFor     = 30 * time.Second       // what is known of a master's replicas is believed so long
)

// replicas remembers how many replicas masters have.
type replicas struct {
	mu   sync.Mutex // guards seen
	seen map[string]replicaCount
}

type replicaCount struct {
	n  int64
	at time.Time
}

// count asks a master, but not again and again. A master that does not tell has none.
func (r *replicas) count(ctx context.Context, master *DB) int64 {
	r.mu.Lock()
	known, ok := r.seen[master.address]
	r.mu.Unlock()
	if ok && time.Since(known.at) < replicasFor {
		return known.n
	}
	n := Int(master.info(ctx, "replication")["connected_slaves"])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[master.address] = replicaCount{n, time.Now()}
	return n
}

// RunReplicated is [DB.Run], followed by a WAIT on the same connection, which alone knows
// what there is to wait for. confirmed is false if there are replicas and none of them has
// it yet.
func (db *DB) RunReplicated(ctx context.Context, s *Script, keys []string, args ...any) (reply any, confirmed bool, err error) {
	master, err := db.MasterOf(ctx, keys[0])
	if err != nil || db.replicas.count(ctx, master) == 0 {
		reply, err = db.Run(ctx, s, keys, args...)
		return reply, true, err
	}
	pipe := master.rdb.Pipeline()
	answer := pipe.EvalSha(ctx, s.sha, keys, args...)
	waited := pipe.Do(ctx, "WAIT", 1, replicaPatience.Milliseconds())
	pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
	reply, err = answer.Result()
	if isNoScript(err) || redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
		reply, err = db.Run(ctx, s, keys, args...) // nothing was done; this one is not waited for
		return reply, false, err
	}
	n, _ := waited.Int()
	return reply, n > 0, db.explain(s, err)
}
