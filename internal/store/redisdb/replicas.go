package redisdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// If a failover forgets a claim, two instances believe that they own the shard, until the next
// command of the older owner. So a claim waits for a replica, if its master has any. That is best
// effort, because Redis does not promise that this replica becomes the next master.

const (
	replicaPatience = 100 * time.Millisecond // how long a claim waits for a replica
	// How long a call waits that is repeated until a replica has confirmed it. A replica in another region must have the time
	// to answer. A command has 5 s.
	repeatPatience = time.Second
	replicasFor    = 30 * time.Second // how long the number of a master's replicas is remembered
)

// replicas remembers how many replicas each master has.
type replicas struct {
	mu   sync.Mutex // guards seen
	seen map[string]replicaCount
}

type replicaCount struct {
	n  int64
	at time.Time
}

// countOf asks a master for its number of replicas that follow it, unless the number is remembered. A replica that still
// copies the whole data set confirms nothing, and does not count. A master that does not answer has none.
func (r *replicas) countOf(ctx context.Context, master *DB) int64 {
	r.mu.Lock()
	known, ok := r.seen[master.address]
	r.mu.Unlock()
	if ok && time.Since(known.at) < replicasFor {
		return known.n
	}
	n := countOnline(master.readInfo(ctx, "replication"))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[master.address] = replicaCount{n, time.Now()}
	return n
}

// countOnline counts the replicas that follow a master, by the fields of INFO replication.
func countOnline(fields map[string]string) (n int64) {
	for field, state := range fields {
		if index, ok := strings.CutPrefix(field, "slave"); ok && strings.Trim(index, "0123456789") == "" && strings.Contains(state, "state=online") {
			n++
		}
	}
	return n
}

// forget makes the next call ask a master for its number of replicas.
func (r *replicas) forget(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, address)
}

// ErrUnreplicated means that a master has done a call, and that no replica has confirmed it in time. Repeat the call, which
// must do nothing the second time: its WAIT covers the first one.
var ErrUnreplicated = errors.New("no replica of redis has confirmed the write")

// RunAllReplicated is [DB.RunAll] followed by a WAIT for the writes on each master that has replicas. Calls of the
// same master run in their order. If no replica confirms them within a second, their error is ErrUnreplicated.
func (db *DB) RunAllReplicated(ctx context.Context, calls []*Call) {
	var plain []*Call // to masters without replicas
	by := map[string][]*Call{}
	masters := map[string]*DB{}
	for _, call := range calls {
		master, err := db.MasterOf(ctx, call.Keys[0])
		if err != nil || db.replicas.countOf(ctx, master) == 0 {
			plain = append(plain, call)
			continue
		}
		by[master.address], masters[master.address] = append(by[master.address], call), master
	}
	if len(plain) > 0 {
		db.RunAll(ctx, plain)
	}
	for address, some := range by {
		pipe := masters[address].rdb.Pipeline()
		answers := make([]*redis.Cmd, len(some))
		for i, call := range some {
			answers[i] = pipe.EvalSha(ctx, call.Script.sha, call.Keys, call.Args...)
		}
		waited := pipe.Do(ctx, "WAIT", 1, repeatPatience.Milliseconds())
		pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
		confirmed, _ := waited.Int()
		if confirmed == 0 {
			db.replicas.forget(address) // the replica may be gone
		}
		for i, call := range some {
			var err error
			call.Reply, err = answers[i].Result()
			if isNoScript(err) || redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
				call.Reply, call.Err = db.runAndRepeat(ctx, call) // nothing was done
				continue
			}
			if call.Err = db.explainScript(call.Script, err); call.Err == nil && confirmed == 0 {
				call.Err = fmt.Errorf("redis %s: %w", address, ErrUnreplicated)
			}
		}
	}
}

// runAndRepeat runs a call, and repeats it with a WAIT. Run loads the script and finds the master of a moved slot.
func (db *DB) runAndRepeat(ctx context.Context, call *Call) (reply any, err error) {
	if reply, err = db.Run(ctx, call.Script, call.Keys, call.Args...); err != nil {
		return nil, err
	}
	_, confirmed, err := db.RunReplicated(ctx, call.Script, call.Keys, call.Args...)
	if err == nil && !confirmed {
		err = fmt.Errorf("redis: %w", ErrUnreplicated)
	}
	return reply, err
}

// RunReplicated is [DB.Run] followed by a WAIT on the same connection, because WAIT covers only the
// writes of its connection. confirmed is false if there are replicas and none of them has the write
// yet.
func (db *DB) RunReplicated(ctx context.Context, s *Script, keys []string, args ...any) (reply any, confirmed bool, err error) {
	master, err := db.MasterOf(ctx, keys[0])
	if err != nil || db.replicas.countOf(ctx, master) == 0 {
		reply, err = db.Run(ctx, s, keys, args...)
		return reply, true, err
	}
	pipe := master.rdb.Pipeline()
	answer := pipe.EvalSha(ctx, s.sha, keys, args...)
	waited := pipe.Do(ctx, "WAIT", 1, replicaPatience.Milliseconds())
	pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
	reply, err = answer.Result()
	if isNoScript(err) || redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
		reply, err = db.Run(ctx, s, keys, args...) // nothing was done; this call does not wait
		return reply, false, err
	}
	n, _ := waited.Int()
	return reply, n > 0, db.explainScript(s, err)
}

// AwaitReplicas waits until a replica of each master has the earlier writes of that master. It repeats one of the calls on
// each master with replicas, because WAIT covers only the writes of its connection. A replica follows its master in order,
// so it has the earlier writes as well. The call must write something. If a replica is late, AwaitReplicas returns nil.
func (db *DB) AwaitReplicas(ctx context.Context, calls []*Call) error {
	seen := map[string]bool{}
	for _, call := range calls {
		master, err := db.MasterOf(ctx, call.Keys[0])
		if err != nil || seen[master.address] {
			continue
		}
		seen[master.address] = true
		if db.replicas.countOf(ctx, master) == 0 {
			continue
		}
		if _, _, err := db.RunReplicated(ctx, call.Script, call.Keys, call.Args...); err != nil {
			return err
		}
	}
	return nil
}
