package check

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
)

// recordRules evaluates the recording rules in their order at a time, as a group of Prometheus does, and stores their
// values. It returns them by name and labels.
func recordRules(t *testing.T, series string, at time.Duration) map[string]float64 {
	t.Helper()
	db := promqltest.LoadedStorage(t, "load 15s\n"+series)
	defer db.Close()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, NoStepSubqueryIntervalFn: func(int64) int64 { return 15_000 }})
	defer engine.Close()
	recorded := map[string]float64{}
	for _, rule := range allRules(t) {
		if rule.Record == "" {
			continue
		}
		now := time.Unix(0, 0).Add(at)
		query, err := engine.NewInstantQuery(t.Context(), db, nil, rule.Expr, now)
		if err != nil {
			t.Fatal(err)
		}
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v, with\n%s", rule.Record, err, series)
		}
		appender := db.Appender(t.Context())
		for _, sample := range vector {
			name := labels.NewBuilder(sample.Metric).Set("__name__", rule.Record).Labels()
			if _, err := appender.Append(storage.SeriesRef(0), name, now.UnixMilli(), sample.F); err != nil {
				t.Fatal(err)
			}
			recorded[name.String()] = sample.F
		}
		if err := appender.Commit(); err != nil {
			t.Fatal(err)
		}
		query.Close()
	}
	return recorded
}

// load has the series of a cluster c, at 15 s.
type load struct{ text strings.Builder }

// addNode adds a node with 8 slots. busy has its busy slots.
func (l *load) addNode(name, busy string) *load {
	fmt.Fprintf(&l.text, "  lowkiq_slots{cluster=\"c\",node=%q} 8x160\n  lowkiq_slots_busy{cluster=\"c\",node=%q} %s\n", name, name, busy)
	return l
}

// addQueue adds the series of a node for a queue. seconds is the sum of its calls, and jobs the number of its done jobs.
func (l *load) addQueue(node, name string, shards int, seconds, jobs, ready string) *load {
	on := fmt.Sprintf("{cluster=\"c\",node=%q,queue=%q}", node, name)
	fmt.Fprintf(&l.text, "  lowkiq_queue_shards%s %dx160\n  lowkiq_handler_seconds_sum%s %s\n  lowkiq_jobs_processed_total%s %s\n  lowkiq_jobs_failed_total%s 0x160\n",
		on, shards, on, seconds, on, jobs, on)
	fmt.Fprintf(&l.text, "  lowkiq_queue_jobs{cluster=\"c\",node=%q,queue=%q,state=\"ready\"} %s\n  lowkiq_queue_jobs{cluster=\"c\",node=%q,queue=%q,state=\"retry\"} 7000x160\n",
		node, name, ready, node, name)
	return l
}

// addSeries adds a line of promqltest.
func (l *load) addSeries(line string) *load {
	l.text.WriteString("  " + line + "\n")
	return l
}

func TestRecordingRules(t *testing.T) {
	const needOrders, nodes = `{__name__="lowkiq:need", cluster="c", queue="orders"}`, `{__name__="lowkiq:desired_nodes", cluster="c"}`
	const unknown = -1
	for name, c := range map[string]struct {
		with        *load
		need, nodes float64
	}{
		"at rest": {new(load).addNode("n1", "0x160").addQueue("n1", "orders", 64, "7x160", "9x160", "0x160"), 0, 1},
		"4 slots are busy, nothing waits": { // 60 s of calls in 15 s are 4 slots
			new(load).addNode("n1", "4x160").addQueue("n1", "orders", 64, "0+60x160", "0+30x160", "0x160"), 4, 1},
		"12 slots are busy on two nodes": {
			new(load).addNode("n1", "6x160").addNode("n2", "6x160").addQueue("n1", "orders", 64, "0+90x160", "0+30x160", "0x160").addQueue("n2", "orders", 64, "0+90x160", "0+30x160", "0x160"), 12, 3},
		"jobs of 2 s wait": { // 300 jobs of 2 s in a minute are 10 slots
			new(load).addNode("n1", "4x160").addQueue("n1", "orders", 64, "0+60x160", "0+30x160", "300x160"), 14, 3},
		"the same, native": {
			new(load).addNode("n1", "4x160").addQueue("n1", "orders", 64, "_x160", "0+30x160", "300x160").
				addSeries(`lowkiq_handler_seconds{cluster="c",node="n1",queue="orders"} {{schema:0 sum:0 count:0 buckets:[0]}}+{{schema:0 sum:60 count:30 buckets:[30]}}x160`), 14, 3},
		"a queue needs no more than its shards": { // 16 shards fill two nodes
			new(load).addNode("n1", "8x160").addQueue("n1", "orders", 16, "0+120x160", "0+60x160", "90000x160"), 3008, 2},
		"however many jobs wait": {
			new(load).addNode("n1", "8x160").addQueue("n1", "orders", 64, "0+120x160", "0+60x160", "90000x160"), 3008, 8},
		"and leaves the other queues theirs": { // 16 slots, and 7 / 0.7
			new(load).addNode("n1", "8x160").addQueue("n1", "orders", 16, "0+15x160", "0+7.5x160", "90000x160").addQueue("n1", "mails", 1000, "0+105x160", "0+500x160", "0x160"), 3001, 4},
		"all jobs fail": {
			new(load).addNode("n1", "4x160").addQueue("n1", "orders", 64, "0+60x160", "0x160", "300x160").addSeries(`lowkiq_jobs_failed_total{cluster="c",node="n1b",queue="orders"} 0+30x160`), 14, 3},
		"a new queue with ready jobs": { // its first calls run
			new(load).addNode("n1", "8x160").addQueue("n1", "orders", 64, "0x160", "0x160", "5000x160"), 0, 2},
		"calls of an hour": {new(load).addNode("n1", "8x160").addNode("n2", "8x160").addQueue("n1", "orders", 64, "0x160", "0x160", "0x160"), 0, 3},
		"a paused queue":   {new(load).addNode("n1", "0x160").addQueue("n1", "orders", 64, "900x160", "900x160", "5000x160"), 0, 1},
		"a node died two minutes ago": { // its slots do not count on
			new(load).addNode("n1", "2x160").addNode("n2", "8x146 stale _x12").addQueue("n1", "orders", 64, "0+30x160", "0+30x160", "0x160"), 2, 1},
		"a queue that nobody handles": {
			new(load).addNode("n1", "4x160").addQueue("n1", "orders", 64, "0+60x160", "0+30x160", "0x160").addSeries(`lowkiq_queue_jobs{cluster="c",node="n1",queue="old",state="ready"} 9000x160`), 4, 1},
		"the first scrape": {new(load).addNode("n1", "_x156 0x4").addQueue("n1", "orders", 64, "_x156 0", "_x156 0", "_x156 900"), unknown, unknown},
		"Redis is away":    {new(load).addNode("n1", "8x100 0x60").addQueue("n1", "orders", 64, "0+60x100 6000x60", "0+30x100 3000x60", "900x100 _x60"), unknown, unknown},
		"no metrics":       {new(load), unknown, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			got := recordRules(t, c.with.text.String(), 39*time.Minute)
			for series, want := range map[string]float64{needOrders: c.need, nodes: c.nodes} {
				value, there := got[series]
				if !there {
					value = unknown
				}
				if value < want-1e-6 || value > want+1e-6 {
					t.Errorf("%s: got %v, want %v, in %v", series, value, want, got)
				}
			}
		})
	}
}

func TestRecordingRulesAreTold(t *testing.T) {
	known, found := exported(), 0
	for _, rule := range allRules(t) {
		for _, fault := range faults(rule.Expr, known) {
			t.Errorf("%s%s: %s", rule.Record, rule.Alert, fault)
		}
		if rule.Record != "" {
			found++
			if _, ok := known[rule.Record]; !ok || !strings.HasPrefix(rule.Record, "lowkiq:") {
				t.Errorf("%s is not among the names that boards and scalers may use", rule.Record)
			}
		}
	}
	if found != 2 {
		t.Errorf("got %d recording rules, want 2", found)
	}
}
