package node

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/runner"
	"github.com/lowkiq/lowkiq/queue"
)

// handled is a queue that this node handles: its rules, its handler, its metrics.
type handled struct {
	rules QueueConfig
	// asRegistered: the rules name no shard count, and that of the registry holds.
	asRegistered bool
	handler      lowkiq.Handler                          // with middlewares
	service      interface{ Run(context.Context) error } // the handler's own loop, or nil
	reserve      runner.Reserve                          // sets aside what the handler needs for a call; or nil
	grant        func(time.Duration)                     // tells the handler for how long it may run on without news; or nil
	// children says how many processes the handler runs, and how many have a batch; or nil
	children  func() (running, busy int)
	ready     func() error // why the handler cannot work; or nil
	asking    *question    // of ready, without an answer; or nil
	processes int          // most that it runs, 0 = it needs none
	metrics   *metrics.Queue
	// processWait counts how long batches wait for reserve; nil without it
	processWait *metrics.Histogram
	queue       *queue.Queue // set by Run; nil while its entry was damaged before, or its registration is refused
	refused     *refusal     // of its registration between two instances; or nil
	paused      atomic.Bool
}

// shards is how many the queue has, 0 while that is not known.
func (on *handled) shards() int {
	if on.queue == nil {
		return 0
	}
	return on.queue.Shards
}

// concurrency bounds the calls of the queue on this node, 0 = only the node's own bound does: what is
// configured, and no more than the handler has processes.
func (on *handled) concurrency() int {
	n := on.rules.Concurrency
	if on.processes > 0 && (n == 0 || on.processes < n) {
		n = on.processes
	}
	return n
}

// hasChildren reports whether a handler works in child processes.
func (n *Node) hasChildren() bool {
	for _, on := range n.queues {
		if on.grant != nil {
			return true
		}
	}
	return false
}

// forRunners is what the runners of an instance share of the queue.
func (on *handled) forRunners(format func(error) string) *runner.Queue {
	rules := &on.rules
	return runner.NewQueue(runner.Queue{
		Rules: runner.Rules{
			BatchSize: rules.BatchSize, ShardConcurrency: rules.ShardConcurrency, Prefetch: rules.Prefetch, HandlerTimeout: rules.HandlerTimeout,
			MaxRetryCount: rules.MaxRetryCount, MaxCrashes: rules.MaxCrashes, Exhausted: rules.Exhausted, RetryIn: rules.RetryIn,
			InTurn: rules.Scheduler == Seq, RetriesExhausted: rules.RetriesExhausted, FormatError: format,
		},
		Handler: on.handler, Reserve: on.reserve, Concurrency: on.concurrency(), Paused: &on.paused,
		Metrics: on.metrics, ProcessWait: on.processWait,
	})
}
