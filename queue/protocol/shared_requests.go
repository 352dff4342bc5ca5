package protocol

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// When jobs come one by one for many shards, the pop of a shard returns a job or two. Redis then takes longer
// to start a script than to pop the jobs. Therefore pops and acks that come while others are under way share
// a script (lua/pop_each.lua). In a Redis Cluster a script sees one shard, so there they share a pipeline.
//
// A pop that comes alone is sent alone, at once. Acks can wait: they are sent with the next pop, or after a
// moment with other acks.
const (
	maxSharedRequests = 2                      // shared requests under way at once, for each Redis server
	maxSharedSize     = 64 * 8                 // size of a request: 64 shards, or fewer with many acks
	maxSharedIDs      = 500                    // jobs of a request
	maxSharedBytes    = 1 << 20                // bytes of the records in a request
	maxSharedAcks     = 64                     // acks of a shard's part
	ackWait           = 200 * time.Microsecond // how long acks wait for others if no request is under way
	soloPops          = 16                     // pops that a shard sends alone after pop_each.lua could not serve it
)

// sharePatience is how long a part waits for the next request while no request starts or ends. After that it
// is sent alone. The requests under way may hang on dead connections. The pool may have more dead
// connections, so the part does not rely on the next request either.
const sharePatience = 250 * time.Millisecond

// sharedRequests sends the pops and acks of a client.
type sharedRequests struct {
	registry *Registry
	minParts int           // minimum number of parts of the shared script
	soloPops int           // the constant, except in tests
	patience time.Duration // sharePatience, except in tests

	mu sync.Mutex
	// servers has a combiner for each server, by address, so that a server that does not answer holds up no
	// other server. It is guarded by mu.
	servers map[string]*combiner[*shardRequest]
}

func newSharedRequests(g *Registry) *sharedRequests {
	return &sharedRequests{registry: g, minParts: 2, soloPops: soloPops, patience: sharePatience, servers: map[string]*combiner[*shardRequest]{}}
}

// shardRequest is a pop or acks of a shard. It can be sent alone, as a call of pop.lua or ack.lua, or as a
// part of a shared request.
type shardRequest struct {
	redisdb.Call // of pop.lua or ack.lua
	ctx          context.Context
	shard        *Shard
	isPop        bool          // false for acks alone
	acks         int           // number of acks, also of a pop
	done         chan struct{} // closed when Reply, Err and unserved are set
	unserved     bool          // the shared script could not serve the shard, so the part must be sent alone
}

// size returns the size of p as a part of a shared request.
func (p *shardRequest) size() int { return 8 + p.acks }

// sendShared sends p, together with other parts if requests are under way. If the shared script could not
// serve the shard, sendShared sends p alone and returns served = false. After sharePatience without progress
// it sends p alone as well, and returns served = true. In this case p is in no request yet.
//
// The shared script may have executed a part that it did not answer. Sending the part again is safe, because
// pops have numbers and a second ack does nothing.
func (s *sharedRequests) sendShared(p *shardRequest) (reply any, served bool, err error) {
	calls := s.combinerOf(p.ctx, p.shard)
	if calls == nil || p.acks > maxSharedAcks {
		reply, err = runScript(p.ctx, s.registry.db, p.Script, p.Keys, p.Args...)
		return reply, true, err
	}
	p.done = make(chan struct{})
	if !p.isPop {
		calls.waitFor(p, ackWait)
	} else if calls.startOrWait(p) {
		defer calls.handOver()
		if group := calls.nextGroup(p); len(group) >= s.minParts {
			s.sendRequest(group)
		} else {
			reply, err = runScript(p.ctx, s.registry.db, p.Script, p.Keys, p.Args...)
			return reply, true, err
		}
	}
	timer := time.NewTimer(s.patience)
	defer timer.Stop()
	for seen, waits := -1, true; waits; {
		select {
		case <-p.done:
			waits = false
		case <-p.ctx.Done():
			calls.withdraw(p) // if p is in a request already, its answer is lost
			return nil, true, p.ctx.Err()
		case <-timer.C:
			if calls.withdrawIfStuck(p, &seen) {
				reply, err = runScript(p.ctx, s.registry.db, p.Script, p.Keys, p.Args...)
				return reply, true, err
			}
			timer.Reset(s.patience)
		}
	}
	if p.unserved {
		reply, err = runScript(p.ctx, s.registry.db, p.Script, p.Keys, p.Args...)
		return reply, false, err
	}
	return p.Reply, true, readRefusal(p.Err)
}

// combinerOf returns the combiner for the server of a shard, nil if the cluster's server is not known.
func (s *sharedRequests) combinerOf(ctx context.Context, shard *Shard) *combiner[*shardRequest] {
	at := s.registry.db
	if at.Sharded {
		var err error
		if at, err = at.MasterOf(ctx, shard.keys.Claim); err != nil {
			return nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.servers[at.Address()]
	if calls == nil {
		calls = &combiner[*shardRequest]{maxActive: maxSharedRequests, maxSize: maxSharedSize, size: (*shardRequest).size, send: s.sendRequest}
		s.servers[at.Address()] = calls
	}
	return calls
}

// sendRequest sends a request for several shards and tells their callers that it has ended.
func (s *sharedRequests) sendRequest(parts []*shardRequest) {
	// The request must not fail because the first caller gives up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(parts[0].ctx), s.registry.cfg.Timeout)
	defer cancel()
	if len(parts) < s.minParts || s.registry.db.Sharded {
		calls := make([]*redisdb.Call, len(parts))
		for i, p := range parts {
			calls[i] = &p.Call
		}
		s.registry.db.RunAll(ctx, calls)
	} else {
		s.runPopEach(ctx, parts)
	}
	for _, p := range parts {
		close(p.done)
	}
}

// runPopEach runs pop_each.lua. It sets the reply of each part, or marks the part as unserved. If the
// connection failed, all parts get the error. Another error may come from a single shard, so all parts are
// marked as unserved and then sent alone. Parts of another instance than the first are unserved too,
// because the script takes one instance.
func (s *sharedRequests) runPopEach(ctx context.Context, parts []*shardRequest) {
	instance := parts[0].Args[0]
	keys, args := make([]string, 0, len(parts)), make([]any, 3, 3+7*len(parts))
	args[0], args[1], args[2] = instance, maxSharedIDs, maxSharedBytes
	var asked []*shardRequest
	for _, p := range parts {
		if p.unserved = p.Args[0] != instance; p.unserved {
			continue
		}
		asked = append(asked, p)
		keys = append(keys, p.shard.keys.Tag)
		if a := p.Args; p.isPop { // arguments of pop.lua
			args = append(append(args, a[1], a[2], a[3], a[5], len(a)-8), a[8:]...)
		} else { // arguments of ack.lua
			args = append(append(args, a[1], 0, 0, 0, len(a)-3), a[3:]...)
		}
	}
	reply, err := s.registry.db.Run(ctx, s.registry.db.Scripts.PopEach, keys, args...)
	answers, _ := reply.([]any)
	if err == nil && len(answers) != 1+len(asked) {
		err = fmt.Errorf("pop_each answered %.50v for %d shards", reply, len(asked))
	}
	for i, p := range asked {
		switch {
		case err != nil && Transient(err):
			p.Err = err
		case err != nil || answers[1+i] == "x":
			p.unserved = true
		case p.isPop:
			p.Reply = toPopAnswer(answers[0], answers[1+i])
		default:
			p.Reply = answers[1+i]
		}
	}
}

// toPopAnswer returns a shard's answer in the form of pop.lua's answer, with the time first and without
// quarantine.
func toPopAnswer(now, answer any) any {
	list, _ := answer.([]any)
	if len(list) < 3 {
		return answer
	}
	return append([]any{now, list[0], list[1], list[2], ""}, list[3:]...)
}
