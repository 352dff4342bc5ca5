package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// scrape adds up what a node exports under a name, with these values among the labels:
// values, or observations of a histogram.
func scrape(t *testing.T, m *running, name string, labels ...string) (sum float64, series int) {
	t.Helper()
	families, err := m.cfg.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, one := range f.GetMetric() {
			has := map[string]bool{}
			for _, label := range one.GetLabel() {
				has[label.GetValue()] = true
			}
			if f.GetName() == name && !slices.ContainsFunc(labels, func(v string) bool { return !has[v] }) {
				sum += one.GetGauge().GetValue() + one.GetCounter().GetValue() + float64(one.GetHistogram().GetSampleCount())
				series++
			}
		}
	}
	return sum, series
}

func total(t *testing.T, nodes []*running, name string, labels ...string) (sum float64) {
	t.Helper()
	for _, m := range nodes {
		one, _ := scrape(t, m, name, labels...)
		sum += one
	}
	return sum
}

// TestClusterMetrics checks that sums over the nodes are right for the cluster, and that the figures of shards that a node has
// given away vanish from its metrics.
func TestClusterMetrics(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	p := open(t, url, 40)
	var nodes []*running
	for i := range 3 {
		nodes = append(nodes, startMember(t, Config{Name: fmt.Sprint("n", i+1), Redis: url, TTL: 15 * time.Second}, 40)) // a lease that is lost is claims without releases
	}
	awaitSpread(t, []int{13, 13, 14}, nodes...)
	for i := range 100 {
		p.push(lowkiq.Push{ID: fmt.Sprint(i), PerformAt: time.Now().Add(time.Hour)})
	}
	check := func(when, name string, want float64, labels ...string) {
		t.Helper()
		await(t, fmt.Sprintf("%s: sum of %s is %v", when, name, want), func() bool { return total(t, nodes, name, labels...) == want })
	}
	check("spread", "lowkiq_shards_owned", 40, "orders")
	check("spread", "lowkiq_queue_jobs", 100, "orders", "scheduled")
	check("spread", "lowkiq_raft_leader", 1)
	await(t, "all export the generation", func() bool {
		return total(t, nodes, "lowkiq_generation") == 3*float64(nodes[0].cluster.Load().AgreedPlan().Generation.Index)
	})
	for _, m := range nodes {
		if left, _ := scrape(t, m, "lowkiq_lease_remaining_seconds"); left == 0 || left > .7*15 {
			t.Errorf("%s: lease remaining: got %v s, want up to 0.7 ttl", m.Name(), left)
		}
	}
	// Every shard was claimed once more than it was released.
	await(t, "40 more claims than releases, and as many moves as both", func() bool {
		claims, moves := total(t, nodes, "lowkiq_unowned_seconds"), total(t, nodes, "lowkiq_shard_moves_total")
		released := total(t, nodes, "lowkiq_handover_seconds")
		return claims-released == 40 && moves == claims+released
	})
	nodes[1].setDrained(true)
	awaitSpread(t, []int{0, 20, 20}, nodes...)
	check("drained", "lowkiq_shards_owned", 40, "orders")
	check("drained", "lowkiq_queue_jobs", 100, "orders", "scheduled")
	for _, name := range []string{"lowkiq_queue_jobs", "lowkiq_queue_lag_seconds", "lowkiq_morgue_payloads"} {
		if _, series := scrape(t, nodes[1], name); series != 0 {
			t.Errorf("%s: the drained node exports %d series, want none", name, series)
		}
	}
}
