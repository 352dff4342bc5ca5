package node

import (
	"context"
	"maps"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Package status uses these methods to answer questions about the cluster.

// Recurring returns the recurring entries of the node's configuration.
func (n *Node) Recurring() map[string]recurring.Spec { return maps.Clone(n.cfg.Recurring) }

// Then returns the rules then in force of the queues that the node handles, by queue.
func (n *Node) Then() map[string]rules.Then {
	all := make(map[string]rules.Then, len(n.queues.handled))
	for name, on := range n.queues.handled {
		all[name] = on.rulesNow().Then
	}
	return all
}

// Raft returns the status of the node's Raft group, and the assignment that the node has applied last. The status is nil if
// the node is in no cluster. The assignment is nil if none is known.
func (n *Node) Raft() (*rebalance.Status, *plan.Assignment) {
	joined := n.cluster.Load()
	if joined == nil {
		return nil, nil
	}
	known := joined.Status()
	return &known, joined.AgreedPlan()
}

// Peers returns the processes that gossip knows, or nil if the node is in no cluster.
func (n *Node) Peers() []membership.Member {
	if joined := n.cluster.Load(); joined != nil {
		return joined.Members()
	}
	return nil
}

// View reads the nodes and queues that a leader's plan would cover now. The view is empty if the node is in no cluster.
func (n *Node) View(ctx context.Context) (rebalance.View, error) {
	if joined := n.cluster.Load(); joined != nil {
		return joined.ReadView(ctx)
	}
	return rebalance.View{}, nil
}

// Warnings returns the problems that this node sees and that an operator should mend, a sentence each.
func (n *Node) Warnings() []string {
	list := n.redis.warningTexts()
	if joined := n.cluster.Load(); joined != nil {
		list = append(list, joined.Warnings()...)
	}
	return list
}

// LocateOrCancel returns where this process has an id, if owner is its instance. Unless cancel is nil, it also cancels the
// handler call that has the id. ok is false if owner is another instance.
func (n *Node) LocateOrCancel(owner string, s lowkiq.Shard, id string, cancel *protocol.Cancellation) (where protocol.Whereabouts, ok bool) {
	in := n.current.Load()
	if in == nil || in.name != owner {
		return where, false
	}
	return in.wakeups.locateOrCancel(s, id, cancel), true
}

// RedisFull says which Redis is full, or returns "".
func (n *Node) RedisFull() string { return n.redis.fullServer() }

// RedisRefuses returns Redis's refusal of the node's lease, or "".
func (n *Node) RedisRefuses() string { return n.redis.leaseRefusal() }
