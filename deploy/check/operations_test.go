package check

import (
	"slices"
	"strings"
	"testing"
)

// undocumented are the exported metrics and the alerts that a page lacks.
func undocumented(page string, metrics, alerts []string) (missing []string) {
	for _, name := range metrics {
		if !strings.Contains(page, "\n| `"+name+"`") && !strings.Contains(page, ", `"+name+"` | ") {
			missing = append(missing, name)
		}
	}
	for _, name := range alerts {
		if !strings.Contains(page, "\n### "+name+"\n\n") {
			missing = append(missing, name)
		}
	}
	return missing
}

func TestOperationsIsComplete(t *testing.T) {
	page := read(t, "..", "..", "docs", "operations.md")
	var metrics, alerts []string
	for _, family := range gathered(t) {
		metrics = append(metrics, family.GetName())
	}
	for _, rule := range rules(t) {
		alerts = append(alerts, rule.Alert)
	}
	if missing := undocumented(page, metrics, alerts); len(missing) > 0 {
		t.Errorf("docs/operations.md lacks %q", missing)
	}
	if got := undocumented(page, []string{"lowkiq_new"}, []string{"LowkiqNew"}); !slices.Equal(got, []string{"lowkiq_new", "LowkiqNew"}) {
		t.Errorf("got %q, want what is missing", got)
	}
}
