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
	on := newHandled(cfg, workflow.Handler(time.Now), metrics.New(prometheus.NewRegistry()))
	on.builtIn = true
	return n.addHandled(on)
}
