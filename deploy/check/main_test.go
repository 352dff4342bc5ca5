package check

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/metrics"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

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
func exported() map[string][]string {
	names := map[string][]string{
		"up":                   targetLabels,
		"lowkiq:need":          {"cluster", "queue"}, // TestRecordingRules
		"lowkiq:desired_nodes": {"cluster"},
	}
	for _, m := range metrics.Table() {
		labels := slices.Concat(targetLabels, m.Labels)
		names[m.Name] = labels
		if m.Type == metrics.TypeHistogram {
			names[m.Name+"_bucket"] = append(slices.Clone(labels), "le")
			names[m.Name+"_sum"] = labels
			names[m.Name+"_count"] = labels
		}
	}
	return names
}
