package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/workflow"
)

// handleWorkflows makes the node handle the queue of workflows, once somebody has started a workflow. Until then the queue
// is not registered, and has no shards, no series and no place in the lease.
func (n *Node) handleWorkflows() error {
	cfg := QueueConfig{Name: protocol.Workflows, Rules: workflow.Rules()}
	on := newHandled(cfg, workflow.Handler(n.redisTime), metrics.New(prometheus.NewRegistry()))
	on.builtIn = true
	return n.addHandled(on)
}

// redisTime returns the estimate of Redis's clock for a handler call. A call has an instance, which has set its clock by the
// answer to the pop.
func (n *Node) redisTime() time.Time { return n.current.Load().clock.Now() }
