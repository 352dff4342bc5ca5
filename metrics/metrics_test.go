package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The names are a contract: boards and alerts refer to them.
func TestNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	q := m.Queue("orders")
	q.Processed.Add(3)
	q.Wait.Observe(0.2)
	m.Fenced("pop")
	m.SetUnowned("orders", 1)
	registry.MustRegister(&Shards{Timeout: time.Second, Read: func(context.Context) (map[string]Figures, error) {
		return map[string]Figures{"orders": {Lag: 1500 * time.Millisecond, Jobs: map[string]int{"ready": 2}, Morgue: 4}}, nil
	}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range families {
		seen[f.GetName()] = true
	}
	for _, name := range strings.Fields(`lowkiq_queue_lag_seconds lowkiq_queue_jobs lowkiq_morgue_payloads
		lowkiq_jobs_processed_total lowkiq_jobs_failed_total lowkiq_jobs_redelivered_total lowkiq_handler_seconds
		lowkiq_wait_seconds lowkiq_shards_owned lowkiq_queue_shards lowkiq_shards_unowned lowkiq_claims_unreplicated_total lowkiq_shard_moves_total lowkiq_handover_seconds lowkiq_unowned_seconds
		lowkiq_fenced_total lowkiq_raft_leader lowkiq_generation`) {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: got %v, %v, want nothing", problems, err)
	}
}

// increase() sees no step from nothing to 1, so a first refusal would alert nobody.
func TestFencedBeginsWithZero(t *testing.T) {
	m := New(prometheus.NewRegistry())
	before := testutil.CollectAndCount(m.fenced)
	for _, op := range []string{"pop", "ack", "nack", "bury", "release"} {
		m.Fenced(op)
	}
	if after := testutil.CollectAndCount(m.fenced); before == 0 || after != before {
		t.Errorf("got %d series before and %d after the first refusals, want all of them before", before, after)
	}
}

func TestShards(t *testing.T) {
	s := &Shards{Timeout: time.Second, Read: func(ctx context.Context) (map[string]Figures, error) {
		if _, limited := ctx.Deadline(); !limited {
			t.Error("a scrape has no deadline")
		}
		return map[string]Figures{"orders": {Lag: 1500 * time.Millisecond, Jobs: map[string]int{"ready": 2}, Morgue: 4}}, nil
	}}
	want := `
# HELP lowkiq_queue_lag_seconds Age of the oldest due job; 0 if none.
# TYPE lowkiq_queue_lag_seconds gauge
lowkiq_queue_lag_seconds{queue="orders"} 1.5
`
	if err := testutil.CollectAndCompare(s, strings.NewReader(want), "lowkiq_queue_lag_seconds"); err != nil {
		t.Error(err)
	}
}

// A Redis out of reach leaves the series out; zeros would be a lie.
func TestShardsUnreadable(t *testing.T) {
	var told error
	s := &Shards{Timeout: time.Second, Failed: func(err error) { told = err },
		Read: func(context.Context) (map[string]Figures, error) { return nil, errors.New("redis is away") }}
	if n := testutil.CollectAndCount(s); n != 0 || told == nil {
		t.Errorf("got %d series and told %v, want none and the error", n, told)
	}
}
