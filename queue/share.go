package queue

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// When jobs come one by one for many shards, a pop of each has a job or two, and Redis takes longer
// to start its script than to pop them. So pops and acks that are asked for while others are under
// way share a script (lua/pop_each.lua); in a Redis Cluster, where a script sees one shard, they
// share a pipeline. A pop that comes alone goes alone, at once. Acks are in no hurry: they go with the
// next pop, or wait a moment for other acks. Pops that are said to come together wait for each other.
const (
	maxShared   = 2                      // shared requests under way at once, of one Redis server
	shareRoom   = 64 * 8                 // of one of them: 64 shards, or fewer with many acks
	shareIDs    = 500                    // most jobs of one of them
	shareBytes  = 1 << 20                // most bytes of its records
	shareAcks   = 64                     // most acks of a shard's part
	company     = 200 * time.Microsecond // that acks wait for others, if no request is under way
	popsUnasked = 16                     // pops of a shard that go alone after pop_each.lua could not serve it
)

// sharePatience: who waits for the next request while none begins or ends for so long goes alone.
// Those under way may hang on dead connections, of which the pool may have more.
const sharePatience = 250 * time.Millisecond

// sharing has the pops and acks of one client share requests.
type sharing struct {
	registry *Registry
	least    int           // parts for which the shared script pays
	unasked  int           // popsUnasked
	patience time.Duration // sharePatience

	mu      sync.Mutex
	servers map[string]*gathered[*part] // by address: a server that does not answer must not hold up others; guarded by mu
}

func newSharing(g *Registry) *sharing {
	return &sharing{registry: g, least: 2, unasked: popsUnasked, patience: sharePatience, servers: map[string]*gathered[*part]{}}
}

// part is what is asked of one shard: by itself, or in the shared script.
type part struct {
	redisdb.Call
	ctx     context.Context
	shard   *Shard
	pops    bool // else it is acks alone
	company int  // so many pops come at this moment; see PopRequest
	ids     int  // asked for
	acks    int
	done    chan struct{} // closed when Reply and Err are there, or left
	left    bool          // the shared script has left it: it is to be asked by itself
}

// size of a pop that has company counts its ids as well: they are there, and are to be served.
func (p *part) size() int {
	if p.company > 1 {
		return max(8+p.acks, 1+p.ids)
	}
	return 8 + p.acks
}

// ask sends p, with others that come meanwhile. The shard is asked by itself where the shared script
// could not serve it: then served is false.
func (s *sharing) ask(p *part) (reply any, served bool, err error) {
	calls := s.server(p.ctx, p.shard)
	if calls == nil || p.acks > shareAcks {
		reply, err = run(p.ctx, s.registry.db, p.Script, p.Keys, p.Args...)
		return reply, true, err
	}
	p.done = make(chan struct{})
	if !p.pops || p.company > 1 {
		calls.follow(p, company, p.company)
	} else if calls.join(p) {
		defer calls.leave()
		if group := calls.take(p); len(group) >= s.least {
			s.send(group)
		} else {
			reply, err = run(p.ctx, s.registry.db, p.Script, p.Keys, p.Args...)
			return reply, true, err
		}
	}
	look := time.NewTimer(s.patience)
	defer look.Stop()
	for turns, waits := -1, true; waits; {
		select {
		case <-p.done:
			waits = false
		case <-p.ctx.Done():
			calls.withdraw(p) // else it is as if the answer was lost
			return nil, true, p.ctx.Err()
		case <-look.C:
			if calls.stuck(p, &turns) {
				reply, err = run(p.ctx, s.registry.db, p.Script, p.Keys, p.Args...)
				return reply, true, err
			}
			look.Reset(s.patience)
		}
	}
	if p.left {
		reply, err = run(p.ctx, s.registry.db, p.Script, p.Keys, p.Args...)
		return reply, false, err
	}
	return p.Reply, true, refusal(p.Err)
}

// server is where the parts for the server of a shard gather; nil: it is not known which one has it.
func (s *sharing) server(ctx context.Context, shard *Shard) *gathered[*part] {
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
		calls = &gathered[*part]{most: maxShared, room: shareRoom, size: (*part).size, send: s.send}
		s.servers[at.Address()] = calls
	}
	return calls
}

// send makes one request for several shards.
func (s *sharing) send(parts []*part) {
	// It must not fail because one of its callers gave up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(parts[0].ctx), s.registry.cfg.Timeout)
	defer cancel()
	if len(parts) < s.least || s.registry.db.Sharded {
		calls := make([]*redisdb.Call, len(parts))
		for i, p := range parts {
			calls[i] = &p.Call
		}
		s.registry.db.RunAll(ctx, calls)
	} else {
		s.each(ctx, parts)
	}
	for _, p := range parts {
		close(p.done)
	}
}

// each runs pop_each.lua. An error that is not one of the connection may be a single shard's: then
// each goes by itself.
func (s *sharing) each(ctx context.Context, parts []*part) {
	instance := parts[0].Args[0]
	keys, args := make([]string, 0, len(parts)), make([]any, 3, 3+7*len(parts))
	args[0], args[1], args[2] = instance, shareIDs, shareBytes
	var asked []*part
	for _, p := range parts {
		if p.left = p.Args[0] != instance; p.left {
			continue
		}
		asked = append(asked, p)
		keys = append(keys, p.shard.keys.Tag)
		if a := p.Args; p.pops { // those of pop.lua
			args = append(append(args, a[1], a[2], a[3], a[5], len(a)-8), a[8:]...)
		} else { // those of ack.lua
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
			p.left = true
		case p.pops:
			p.Reply = asPop(answers[0], answers[1+i])
		default:
			p.Reply = answers[1+i]
		}
	}
}

// asPop is a shard's answer in the shape of pop.lua's: the time comes first, and none of its ids is
// in quarantine.
func asPop(now, answer any) any {
	list, _ := answer.([]any)
	if len(list) < 3 {
		return answer
	}
	return append([]any{now, list[0], list[1], list[2], ""}, list[3:]...)
}
