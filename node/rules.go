package node

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
)

// handled is a queue that this node handles: its rules, its handler, its metrics.
type handled struct {
	rules QueueConfig
	// asRegistered: the rules name no shard count, and that of the registry holds.
	asRegistered bool
	handler      lowkiq.Handler                          // with middlewares
	service      interface{ Run(context.Context) error } // the handler's own loop, or nil
	reserve      reserve                                 // sets aside what the handler needs for a call; or nil
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

// decoded wraps a handler so that it gets decoded payloads. A payload that cannot be
// decoded fails its job only.
func decoded(decode func([]byte) ([]byte, error), next lowkiq.Handler) lowkiq.Handler {
	return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
		failed := lowkiq.Failed{}
		good := *batch
		good.Jobs = nil
		for _, job := range batch.Jobs {
			payloads := make([]lowkiq.Payload, len(job.Payloads))
			var err error
			for i, p := range job.Payloads {
				if payloads[i].Data, err = decode(p.Data); err != nil {
					break
				}
				payloads[i].Score = p.Score
			}
			if err != nil {
				failed[job.ID] = err
				continue
			}
			job.Payloads = payloads
			good.Jobs = append(good.Jobs, job)
		}
		if len(good.Jobs) == 0 {
			return failed
		}
		return merged(&good, next.Handle(ctx, &good), failed)
	})
}

// merged joins the answer for the decoded part of a batch with the failures of the rest.
func merged(part *lowkiq.Batch, answer error, failed lowkiq.Failed) error {
	if len(failed) == 0 {
		return answer
	}
	for i, err := range perJob(part.Jobs, answer) {
		if err != nil {
			failed[part.Jobs[i].ID] = err
		}
	}
	return failed
}
