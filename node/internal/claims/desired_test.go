package claims

import (
	"maps"
	"slices"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// TestDesiredShards has a row for each situation in the table of DesiredShards, and for those that meet.
func TestDesiredShards(t *testing.T) {
	t.Parallel()
	shard := func(i int) lowkiq.Shard { return lowkiq.Shard{Queue: "orders", Index: i} }
	agreed := &plan.Assignment{Nodes: []string{"n1"}, Queues: []plan.Placement{{Queue: "orders", Owners: []int32{plan.None, 0}}}}
	owned := func() map[lowkiq.Shard]bool { return map[lowkiq.Shard]bool{shard(3): true} }
	static, none := map[lowkiq.Shard]bool{shard(2): true}, map[lowkiq.Shard]bool{}
	for _, c := range []struct {
		name       string
		situation  Situation
		all, known bool
		of         []lowkiq.Shard
	}{
		{"drained", Situation{Drained: true}, false, true, nil},
		{"drained in a cluster", Situation{Drained: true, Clustered: true, Plan: agreed}, false, true, nil},
		{"drained and static", Situation{Drained: true, Static: static}, false, true, nil},
		{"superseded", Situation{Clustered: true, Superseded: true, Plan: agreed}, false, true, nil},
		{"static", Situation{Static: static}, false, true, []lowkiq.Shard{shard(2)}},
		{"static without a shard", Situation{Static: none}, false, true, nil},
		{"in no cluster", Situation{}, true, true, nil},
		{"a plan", Situation{Clustered: true, Plan: agreed}, false, true, []lowkiq.Shard{shard(1)}},
		{"no plan, alone", Situation{Clustered: true, Alone: true, MayStart: true}, true, true, []lowkiq.Shard{shard(3)}},
		{"no plan, alone, may not start", Situation{Clustered: true, Alone: true}, false, false, []lowkiq.Shard{shard(3)}},
		{"no plan, not alone", Situation{Clustered: true, MayStart: true}, false, false, []lowkiq.Shard{shard(3)}},
	} {
		got := c.situation.DesiredShards("n1", nil, owned)
		if of := slices.Collect(maps.Keys(got.Of)); got.All != c.all || got.Known != c.known || !slices.Equal(of, c.of) {
			t.Errorf("%s: got all %t, known %t, %v; want %t, %t, %v", c.name, got.All, got.Known, of, c.all, c.known, c.of)
		}
	}
}
