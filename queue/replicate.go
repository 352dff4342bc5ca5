package queue

import (
	"context"
	"strconv"
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
	n  int
	at time.Time
}

// count asks a master, but not again and again. A master that does not tell has none.
func (r *replicas) count(ctx context.Context, address string, master redis.UniversalClient) int {
	r.mu.Lock()
	known, ok := r.seen[address]
	r.mu.Unlock()
	if ok && time.Since(known.at) < replicasFor {
		return known.n
	}
	fields := map[string]string{}
	text, err := master.Info(ctx, "replication").Result()
	if err == nil {
		readInfo(text, fields)
	}
	n, _ := strconv.Atoi(fields["connected_slaves"])
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]replicaCount{}
	}
	r.seen[address] = replicaCount{n, time.Now()}
	return n
}

// master is the one that has a key, and its address.
func (c *Client) master(ctx context.Context, key string) (redis.UniversalClient, string, error) {
	cluster, ok := c.rdb.(*redis.ClusterClient)
	if !ok {
		return c.rdb, c.address, nil
	}
	node, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, "", err
	}
	return node, node.Options().Addr, nil
}

// runReplicated is run, followed by a WAIT on the same connection, which alone knows what
// there is to wait for. confirmed is false if there are replicas and none of them has
// it yet.
func (c *Client) runReplicated(ctx context.Context, s *script, keys []string, args ...any) (reply any, confirmed bool, err error) {
	master, address, err := c.master(ctx, keys[0])
	if err != nil || c.replicas.count(ctx, address, master) == 0 {
		reply, err = c.run(ctx, s, keys, args...)
		return reply, true, err
	}
	pipe := master.Pipeline()
	answer := pipe.EvalSha(ctx, s.sha, keys, args...)
	waited := pipe.Do(ctx, "WAIT", 1, replicaPatience.Milliseconds())
	pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
	reply, err = answer.Result()
	if isNoScript(err) || redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
		reply, err = c.run(ctx, s, keys, args...) // nothing was done; this one is not waited for
		return reply, false, err
	}
	n, _ := waited.Int()
	return reply, n > 0, c.explain(s.name, err)
}
