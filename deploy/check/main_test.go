package check

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/lowkiq/lowkiq/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deployed reads a file of deploy.
func deployed(t *testing.T, path ...string) string {
	t.Helper()
	return read(t, append([]string{".."}, path...)...)
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// targetLabels are the labels that the scrape configuration gives every series.
var targetLabels = []string{"cluster", "node", "job", "instance"}

// exported are the series that a node exports, with the names of their labels.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{"up": targetLabels}
	for _, family := range gathered(t) {
		labels := slices.Clone(targetLabels)
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		names[family.GetName()] = labels
		if family.GetType() == dto.MetricType_HISTOGRAM {
			names[family.GetName()+"_bucket"] = append(slices.Clone(labels), "le")
			names[family.GetName()+"_sum"] = labels
			names[family.GetName()+"_count"] = labels
		}
	}
	return names
}

// gathered has each metric of a node at least once.
func gathered(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	m.Queue("orders").Processed.Add(1)
	m.Queue("orders").Ready().Set(1)
	m.Queue("orders").ProcessWait().Observe(time.Second)
	m.Fenced("ack")
	m.SetUnowned("orders", 0, true)
	m.RecurringMissed("daily", 0)
	metrics.Pushed(registry)("orders", nil)
	registry.MustRegister(metrics.Build("1.2.3"), &metrics.Working{
		Slots:    func() metrics.Use { return metrics.Use{Total: 1} },
		Children: func() map[string]metrics.Use { return map[string]metrics.Use{"orders": {Total: 1}} },
		Calls:    func() int { return 0 },
		Unlogged: func() int64 { return 0 },
	})
	registry.MustRegister(&metrics.Shards{Timeout: time.Second, Read: everyState})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// everyState are the figures of a queue with jobs in each state.
func everyState(context.Context) (map[string]metrics.Figures, error) {
	jobs := map[string]int{"ready": 1, "scheduled": 1, "retry": 1, "in_flight": 1, "blocked": 1}
	return map[string]metrics.Figures{"orders": {Jobs: jobs, Morgue: 1}}, nil
}
