package check

import (
	"slices"
	"strings"
	"testing"
)

// undocumented are the alerts that a page lacks.
func undocumented(page string, alerts []string) (missing []string) {
	for _, name := range alerts {
		if !strings.Contains(page, "\n### "+name+"\n\n") {
			missing = append(missing, name)
		}
	}
	return missing
}

func TestOperationsIsComplete(t *testing.T) {
	page := read(t, "..", "..", "docs", "operations.md")
	var alerts []string
	for _, rule := range rules(t) {
		alerts = append(alerts, rule.Alert)
	}
	if missing := undocumented(page, alerts); len(missing) > 0 {
		t.Errorf("docs/operations.md lacks %q", missing)
	}
	if got := undocumented(page, []string{"LowkiqNew"}); !slices.Equal(got, []string{"LowkiqNew"}) {
		t.Errorf("got %q, want what is missing", got)
	}
}
