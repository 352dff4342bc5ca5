package check

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// fires tells whether a rule would fire at a time: its expression has had a value at
// every evaluation for as long as the rule asks for.
func fires(t *testing.T, rule rulefmt.Rule, series string, at time.Duration) bool {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 15s\n"+series)
	defer storage.Close()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	defer engine.Close()
	for back := time.Duration(0); back <= time.Duration(rule.For); back += 15 * time.Second {
		query, err := engine.NewInstantQuery(t.Context(), storage, nil, rule.Expr, time.Unix(0, 0).Add(at-back))
		if err != nil {
			t.Fatal(err)
		}
		result := query.Exec(t.Context())
		vector, err := result.Vector()
		if err != nil {
			t.Fatal(err)
		}
		if len(vector) == 0 {
			return false
		}
	}
	return true
}

// Series of two nodes of a cluster over 40 minutes at 15 s, or three hours.
func TestAlertsFire(t *testing.T) {
	known := map[string]rulefmt.Rule{}
	for _, rule := range rules(t) {
		known[rule.Alert] = rule
	}
	one := func(metric, labels, values string) string {
		return fmt.Sprintf("  %s{cluster=\"c\",node=\"n1\",job=\"lowkiq\"%s} %s\n", metric, labels, values)
	}
	two := func(metric, labels, first, second string) string {
		return one(metric, labels, first) + fmt.Sprintf("  %s{cluster=\"c\",node=\"n2\",job=\"lowkiq\"%s} %s\n", metric, labels, second)
	}
	const queue = `,queue="orders"`
	seen := map[string]bool{}
	for _, c := range []struct {
		alert, series string
		fires         bool
	}{
		{"LowkiqQueueLag", two("lowkiq_queue_lag_seconds", queue, "70x160", "0x160"), true},
		{"LowkiqQueueLag", two("lowkiq_queue_lag_seconds", queue, "40x160", "40x160"), false},
		{"LowkiqQueueLag", one("lowkiq_queue_lag_seconds", queue, "0x136 0+15x20"), true},  // an endpoint has been busy for five minutes
		{"LowkiqQueueLag", one("lowkiq_queue_lag_seconds", queue, "0x146 0+15x10"), false}, // for two and a half
		{"LowkiqMorgueGrows", two("lowkiq_morgue_payloads", queue, "5x500 8x300", "0x800"), true},
		{"LowkiqMorgueGrows", two("lowkiq_morgue_payloads", queue, "5x500 0x300", "0x500 5x300"), false}, // the shard moved
		{"LowkiqMorgueGrows", one("lowkiq_morgue_payloads", queue, "_x500 0x20 3x280"), true},            // a queue of half an hour
		{"LowkiqMorgueGrows", one("lowkiq_morgue_payloads", queue, "_x500 3x300"), false},                // a Prometheus of half an hour
		{"LowkiqMorgueGrows", one("lowkiq_morgue_payloads", queue, "3x300 _x80 0x4 3x300"), false},       // Redis was away
		{"LowkiqMorgueGrows", one("lowkiq_morgue_payloads", queue, "_x500 3x20 0x4 3x280"), false},       // and a node died
		{"LowkiqBlocked", one("lowkiq_queue_jobs", queue+`,state="blocked"`, "2x160"), true},
		{"LowkiqBlocked", one("lowkiq_queue_jobs", queue+`,state="blocked"`, "0x160") + one("lowkiq_queue_jobs", queue+`,state="ready"`, "2x160"), false},
		{"LowkiqNoNodes", two("up", "", "1x100 _x60", "1x100 _x60"), true}, // they left service discovery
		{"LowkiqNoNodes", two("up", "", "0x160", "0x160"), true},
		{"LowkiqNoNodes", "  up{job=\"prometheus\"} 1x160\n", true}, // none was ever found
		{"LowkiqNoNodes", two("up", "", "0x160", "1x160"), false},
		{"LowkiqFailures", one("lowkiq_jobs_failed_total", queue, "0+2x160") + one("lowkiq_jobs_processed_total", queue, "0+10x160"), true},
		{"LowkiqFailures", one("lowkiq_jobs_failed_total", queue, "0+1x160") + one("lowkiq_jobs_processed_total", queue, "0+90x160"), false},
		{"LowkiqNodeDown", two("up", "", "1x160", "0x160"), true},
		{"LowkiqNodeDown", two("up", "", "1x160", "1x160"), false},
		{"LowkiqNodeNotReady", two("lowkiq_lease_remaining_seconds", "", "0x160", "4x160"), true},
		{"LowkiqNodeNotReady", two("lowkiq_lease_remaining_seconds", "", "3x160", "4x160"), false},
		{"LowkiqRedisDown", two("lowkiq_lease_remaining_seconds", "", "0x160", "0x160"), true},
		{"LowkiqRedisDown", two("lowkiq_lease_remaining_seconds", "", "0x160", "4x160"), false},
		{"LowkiqRedisMemory", two("lowkiq_redis_memory_used_bytes", "", "81x160", "81x160") + two("lowkiq_redis_memory_max_bytes", "", "100x160", "100x160"), true},
		{"LowkiqRedisMemory", two("lowkiq_redis_memory_used_bytes", "", "79x160", "79x160") + two("lowkiq_redis_memory_max_bytes", "", "100x160", "100x160"), false},
		{"LowkiqRedisMemory", one("lowkiq_redis_memory_used_bytes", "", "0x150 81x10") + one("lowkiq_redis_memory_max_bytes", "", "100x160"), false}, // for two and a half minutes
		{"LowkiqRedisMemory", one("lowkiq_redis_memory_used_bytes", "", "81x160") + one("lowkiq_redis_memory_max_bytes", "", "0x160"), false},        // no maxmemory
		{"LowkiqLeaseLow", two("lowkiq_lease_remaining_seconds", "", "0.5x160", "4x160"), true},
		{"LowkiqLeaseLow", two("lowkiq_lease_remaining_seconds", "", "3.2x160", "0x160"), false},
		{"LowkiqNoLeader", two("lowkiq_raft_leader", "", "0x160", "0x160"), true},
		{"LowkiqNoLeader", two("lowkiq_raft_leader", "", "0x160", "1x160"), false},
		{"LowkiqTwoLeaders", two("lowkiq_raft_leader", "", "1x160", "1x160"), true},
		{"LowkiqTwoLeaders", two("lowkiq_raft_leader", "", "1x160", "0x160"), false},
		{"LowkiqShardsUnowned", two("lowkiq_queue_shards", queue, "16x160", "16x160") + two("lowkiq_shards_owned", queue, "8x160", "7x160"), true},
		{"LowkiqShardsUnowned", one("lowkiq_shards_unowned", queue, "3x160"), true},
		{"LowkiqShardsUnowned", one("lowkiq_shards_unowned", queue, "3x160") + one("lowkiq_queue_unhandled", queue, "0x160") + one("lowkiq_queue_jobs", queue+`,state="ready"`, "0x160"), true},
		{"LowkiqShardsUnowned", one("lowkiq_shards_unowned", queue, "3x160") + one("lowkiq_queue_unhandled", queue, "1x160") + one("lowkiq_queue_jobs", queue+`,state="ready"`, "2x160"), true},
		{"LowkiqShardsUnowned", one("lowkiq_shards_unowned", queue, "3x160") + one("lowkiq_queue_unhandled", queue, "1x160") + one("lowkiq_queue_jobs", queue+`,state="ready"`, "0x160"), false}, // retired
		{"LowkiqShardsUnowned", two("lowkiq_queue_shards", queue, "16x160", "16x160") + two("lowkiq_shards_owned", queue, "8x160", "8x160") + one("lowkiq_shards_unowned", queue, "0x160"), false},
		{"LowkiqRecurringLate", two("lowkiq_recurring_late_seconds", "", "70x160", "0x160"), true},
		{"LowkiqRecurringLate", two("lowkiq_recurring_late_seconds", "", "50x160", "50x160"), false},
		{"LowkiqRecurringMissed", two("lowkiq_recurring_missed_total", `,name="daily"`, "_x580 1x20", "_x600"), true}, // no series before
		{"LowkiqRecurringMissed", one("lowkiq_recurring_missed_total", `,name="daily"`, "1x580 2x20"), true},
		{"LowkiqRecurringMissed", one("lowkiq_recurring_missed_total", `,name="daily"`, "1x600"), false},
		{"LowkiqRecurringMissed", one("lowkiq_recurring_missed_total", `,name="daily"`, "1x300 _x80 1x220"), false}, // the node was out of reach
		{"LowkiqReshardHangs", two("lowkiq_reshard_seconds", queue, "0+60x160", "_x160"), true},
		{"LowkiqReshardHangs", two("lowkiq_reshard_seconds", queue, "0+60x9 _x151", "_x160"), false},
		{"LowkiqFollowUpsWait", two("lowkiq_outgoing_messages", queue, "3x160", "0x160"), true},
		{"LowkiqFollowUpsWait", two("lowkiq_outgoing_messages", queue, "0x150 3 0x9", "0x160"), false}, // on their way
		{"LowkiqFollowUpsDropped", two("lowkiq_outgoing_refused_total", queue+`,reason="size"`, "_x580 1x20", "_x600"), true},
		{"LowkiqFollowUpsDropped", one("lowkiq_outgoing_refused_total", queue+`,reason="size"`, "3x580 4x20"), true},
		{"LowkiqFollowUpsDropped", one("lowkiq_outgoing_refused_total", queue+`,reason="size"`, "3x600"), false},
		{"LowkiqShardsMove", two("lowkiq_shard_moves_total", "", "0+20x160", "0+20x160"), true},
		{"LowkiqShardsMove", two("lowkiq_shard_moves_total", "", "0x100 16x60", "0x100 16x60"), false},
		{"LowkiqFenced", one("lowkiq_fenced_total", `,op="ack"`, "0x140 1x20"), true},
		{"LowkiqFenced", one("lowkiq_fenced_total", `,op="ack"`, "7x160"), false},
		{"LowkiqHandlersOverdue", one("lowkiq_handler_overdue_total", queue, "0x140 1x20"), true},
		{"LowkiqHandlersOverdue", one("lowkiq_handler_overdue_total", queue, "2x160"), false},
		{"LowkiqHandlerNotReady", one("lowkiq_handler_ready", queue, "1x140 0x20"), true},
		{"LowkiqHandlerNotReady", one("lowkiq_handler_ready", queue, "1x160"), false},
		{"LowkiqRedeliveries", one("lowkiq_jobs_redelivered_total", queue, "0x100 150x60"), true},
		{"LowkiqRedeliveries", one("lowkiq_jobs_redelivered_total", queue, "0x100 50x60"), false},
		{"LowkiqLogDropped", two("lowkiq_log_dropped_lines_total", "", "0x140 3x20", "0x160"), true},
		{"LowkiqLogDropped", two("lowkiq_log_dropped_lines_total", "", "3x160", "0x160"), false},
	} {
		at := 39 * time.Minute
		switch c.alert {
		case "LowkiqMorgueGrows", "LowkiqRecurringMissed", "LowkiqFollowUpsDropped":
			at = 150 * time.Minute
		}
		seen[c.alert] = true
		if got := fires(t, known[c.alert], c.series, at); got != c.fires {
			t.Errorf("%s: got it firing: %t, want %t, with\n%s", c.alert, got, c.fires, c.series)
		}
	}
	for name := range known {
		if !seen[name] {
			t.Errorf("%s is not tested", name)
		}
	}
}
