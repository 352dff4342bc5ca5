package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// memoryCheckInterval is the time between two checks whether Redis is full or may evict keys.
const memoryCheckInterval = 10 * time.Second

// redisTrouble has the problems with Redis that this node shows to people.
type redisTrouble struct {
	mu      sync.Mutex
	evicts  string // warning about a server that may evict keys; "" if none may; guarded by mu
	full    string // warning about a full server; "" if none is; guarded by mu
	refuses string // error of the last refused lease; "" since a renewal; guarded by mu
	failed  string // error of the last request of the lease; "" since a renewal; guarded by mu
}

// setFailed records the error of a request of the lease.
func (t *redisTrouble) setFailed(err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = err.Error()
	if !protocol.Unreachable(err) {
		t.refuses = t.failed
	}
}

// explain adds the error of the last request of the lease to the reason why the node is not ready.
func (t *redisTrouble) explain(reason string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed != "" {
		reason += ": " + t.failed
	}
	return errors.New(reason)
}

// clearFailed records that the lease was renewed.
func (t *redisTrouble) clearFailed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refuses, t.failed = "", ""
}

// leaseRefusal returns Redis's refusal of leases, or "".
func (t *redisTrouble) leaseRefusal() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refuses
}

// warningTexts returns the problems, a sentence each.
func (t *redisTrouble) warningTexts() (list []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refuses != "" {
		list = append(list, "Redis refuses the lease of this node, so nodes are gone and queues are unhandled until that is mended: "+t.refuses)
	}
	for _, text := range []string{t.full, t.evicts} {
		if text != "" {
			list = append(list, text)
		}
	}
	return list
}

// fullServer returns the warning about a full server, or "".
func (t *redisTrouble) fullServer() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.full
}

// setMemory sets the warnings about full servers and about servers that may evict keys. It returns whether these have changed.
func (t *redisTrouble) setMemory(full, evicts string) (fullNews, evictsNews bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fullNews, evictsNews = (full != "") != (t.full != ""), evicts != t.evicts
	t.full, t.evicts = full, evicts
	return fullNews, evictsNews
}

// watchMemory repeats checkMemory until ctx ends. Then it withdraws the memory and the warnings, because nobody checks them.
func (in *instance) watchMemory(ctx context.Context) {
	every(ctx, memoryCheckInterval, func() { in.checkMemory(ctx) })
	in.node.metrics.NoRedisMemory()
	in.node.redis.setMemory("", "")
}

// fullest returns the server that is nearest to its limit. A server without a limit counts as if it had 8 EiB.
func fullest(servers []protocol.Memory) protocol.Memory {
	share := func(s protocol.Memory) float64 { return float64(s.Used) / float64(cmp.Or(s.Max, math.MaxInt64)) }
	return slices.MaxFunc(servers, func(x, y protocol.Memory) int { return cmp.Compare(share(x), share(y)) })
}

// checkMemory asks whether Redis is full or may evict keys, logs a change, and exports the memory.
func (in *instance) checkMemory(ctx context.Context) {
	n := in.node
	ctx, cancel := context.WithTimeout(ctx, memoryCheckInterval/2)
	defer cancel()
	servers, err := n.client.Memory(ctx)
	if err == nil && len(servers) == 0 {
		err = errors.New("no master of the Redis Cluster has slots")
	}
	if err != nil {
		n.metrics.NoRedisMemory()
		in.ops.logWarning("ask redis about its memory", nil, err)
		return
	}
	most := fullest(servers)
	n.metrics.SetRedisMemory(most.Used, most.Max)
	full, evicts := "", ""
	for _, s := range servers {
		if s.Full() {
			full = fmt.Sprintf("redis %s is full with %d of %d bytes and refuses pushes; raise maxmemory or let jobs drain", s.Address, s.Used, s.Max)
		}
		if s.MayEvict() && !n.cfg.AllowEviction {
			evicts = fmt.Sprintf("redis %s has maxmemory-policy %s and may drop jobs when it is full; set it to noeviction, with CONFIG SET and in its file", s.Address, s.Policy)
		}
	}
	fullNews, evictsNews := n.redis.setMemory(full, evicts)
	switch {
	case evictsNews && evicts != "":
		n.log.Error("redis may evict keys, and with them jobs", "detail", evicts)
	case evictsNews:
		n.log.Info("redis does not evict keys any more")
	}
	switch {
	case fullNews && full != "":
		n.log.Error("redis refuses pushes", "detail", full)
	case fullNews:
		n.log.Info("redis is not full any more")
	}
}
