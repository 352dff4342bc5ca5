package node

import (
	"fmt"
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
	for _, client := range []*protocol.Client{n.client, n.leases} {
		if err := client.SetRules(cfg.Name, cfg.pushRules()); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	n.client.SetDeadTo(cfg.Name, "")
	on := newHandled(cfg, workflow.Handler(time.Now), metrics.New(prometheus.NewRegistry()))
	on.awaited = true
	n.queues.handled[cfg.Name] = on
	return nil
}
