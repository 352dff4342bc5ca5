package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// evictionCheckInterval is the time between two checks whether Redis may evict keys. A person may change that while nodes run.
const evictionCheckInterval = 30 * time.Second

// redisTrouble has the problems with Redis that this node shows to people.
type redisTrouble struct {
	mu      sync.Mutex
	evicts  string // warning about a server that may evict keys; "" if none may; guarded by mu
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
	if t.evicts != "" {
		list = append(list, t.evicts)
	}
	return list
}

// setEvicts sets the warning about a server that may evict keys. It returns whether the warning has changed.
func (t *redisTrouble) setEvicts(text string) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	news = text != t.evicts
	t.evicts = text
	return news
}

// watchEviction repeats checkEviction until ctx ends.
func (in *instance) watchEviction(ctx context.Context) {
	every(ctx, evictionCheckInterval, func() { in.checkEviction(ctx) })
}

// checkEviction asks whether Redis may evict keys, and logs a change.
func (in *instance) checkEviction(ctx context.Context) {
	n := in.node
	ctx, cancel := context.WithTimeout(ctx, evictionCheckInterval/2)
	defer cancel()
	address, policy, err := n.client.Evicts(ctx)
	if err != nil {
		in.ops.logWarning("ask whether redis may evict keys", nil, err)
		return
	}
	text := ""
	if policy != "" && !n.cfg.AllowEviction {
		text = fmt.Sprintf("redis %s has maxmemory-policy %s and may drop jobs when it is full; set it to noeviction, with CONFIG SET and in its file", address, policy)
	}
	switch news := n.redis.setEvicts(text); {
	case news && text != "":
		n.log.Error("redis may evict keys, and with them jobs", "redis", address, "maxmemory_policy", policy)
	case news:
		n.log.Info("redis does not evict keys any more")
	}
}
