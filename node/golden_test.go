package node

import (
	"testing"

	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// What gossip says of a process stays the same while it applies one plan after the other.
func TestPlansAreNotGossiped(t *testing.T) {
	t.Parallel()
	seat := rebalance.RaftInfo{Server: "01J#7.1", Leader: "01K#7.2", Applied: plan.Generation{Record: 7, Index: 300}, CanPlan: true}
	was := gossipedInfo(seat)
	seat.Applied.Index++
	if got := gossipedInfo(seat); got != was {
		t.Errorf("after one more plan %s is gossiped, want %s as before", got, was)
	}
	seat.Leader = "01L#7.1"
	if gossipedInfo(seat) == was {
		t.Error("another leader is not gossiped")
	}
}
