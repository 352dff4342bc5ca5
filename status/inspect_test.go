package status

import (
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

func TestShardState(t *testing.T) {
	t.Parallel()
	info := func(node string, draining bool) identity.Lease {
		return identity.Lease{Node: node, Draining: draining, Queues: map[string]int{"orders": 1}}
	}
	live := map[string]identity.Lease{"n1/A.1": info("n1", false), "n2/B.1": info("n2", true)}
	static := info("s1", false)
	static.Queues, static.Static = map[string]int{"static": 1, "both": 1}, &identity.Share{Of: 3, Number: 1}
	live["s1/C.1"] = static
	for _, c := range []struct {
		name, queue, owner, assigned string
		agreed                       bool
		want                         ShardState
	}{
		{"owned", "orders", "n1/A.1", "n1", true, Owned},
		{"to be given away", "orders", "n1/A.1", "n2", true, Leaving},
		{"owner drains", "orders", "n2/B.1", "n2", true, Leaving},
		{"released", "orders", "", "n1", true, Claiming},
		{"owner is dead", "orders", "n3/C.1", "n1", true, Claiming},
		{"assigned to the dead", "orders", "n3/C.1", "n3", true, Unowned},
		{"assigned to nobody", "orders", "", "", true, Unowned},
		{"no cluster, owned", "orders", "n1/A.1", "", false, Owned},
		{"no cluster, free", "orders", "", "", false, Claiming},
		{"no cluster, not handled", "mail", "", "", false, Unowned},
		{"static, owned", "static", "s1/C.1", "s1", false, Owned},
		{"static, held by another", "static", "n1/A.1", "s1", false, Owned},
		{"static, free", "static", "", "s1", false, Claiming},
		{"static, in no share", "static", "", "", false, Unowned},
		{"static, owner is dead", "static", "n3/C.1", "", false, Unowned},
		{"static, while a plan has another owner", "static", "s1/C.1", "n1", true, Owned},
	} {
		if got := shardState(c.queue, c.owner, c.assigned, c.agreed, live); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestStaticOwner(t *testing.T) {
	t.Parallel()
	info := func(node string, of, number int) identity.Lease {
		return identity.Lease{Node: node, Queues: map[string]int{"orders": 1}, Static: &identity.Share{Of: of, Number: number}}
	}
	drains := info("n0", 3, 0)
	drains.Draining = true
	live := map[string]identity.Lease{
		"n0/A.1": drains, "n1/B.1": info("n1", 3, 0), "n2/C.1": info("n2", 3, 0), "n3/D.1": info("n3", 3, 2), "n4/E.1": info("n4", 0, 0),
		"n5/F.1": {Node: "n5", Queues: map[string]int{"orders": 1}},
	}
	for i, want := range []string{"n1", "", "n3", "n1"} {
		if got := staticOwner(lowkiq.Shard{Queue: "orders", Index: i}, live); got != want {
			t.Errorf("shard %d: got %q, want %q", i, got, want)
		}
	}
	if got := staticOwner(lowkiq.Shard{Queue: "mail"}, live); got != "" {
		t.Errorf("a queue that they do not handle: got %q, want none", got)
	}
}

func TestChange(t *testing.T) {
	t.Parallel()
	view := rebalance.View{
		Queues: []lowkiq.Queue{{Name: "orders", Shards: 4}},
		Peers: []rebalance.Peer{
			{Node: plan.Node{Name: "n1"}, Leased: true}, {Node: plan.Node{Name: "n2"}, Leased: true},
			{Node: plan.Node{Name: "old"}, Leased: true, Superseded: true}, {Node: plan.Node{Name: "late"}},
		},
	}
	nodes, err := changeNodes(view, []string{"n3"}, []string{"n2"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]plan.Node{}
	for _, n := range nodes {
		got[n.Name] = n
	}
	if len(got) != 3 || got["n1"].Draining || !got["n2"].Draining || len(got["n3"].Queues) != 1 {
		t.Errorf("got %+v, want n1, n2 draining, n3 with orders", nodes)
	}
	for _, c := range []struct {
		name        string
		add, remove []string
		want        string
	}{
		{"unknown", nil, []string{"n9"}, `unknown node "n9", did you mean "n1"? (known: n1, n2)`},
		{"there already", []string{"n1"}, nil, `add "n1": there is such a node already`},
	} {
		if _, err := changeNodes(view, c.add, c.remove); err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}
