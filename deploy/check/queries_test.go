package check

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// faults says what is wrong with a query: its syntax, or a metric or label that no node
// exports.
func faults(query string, known map[string][]string) (found []string) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return []string{err.Error()}
	}
	var names []string
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
			found = append(found, selectorFaults(selector, known)...)
		}
		return nil
	})
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if sum, ok := node.(*parser.AggregateExpr); ok && !sum.Without {
			for _, label := range sum.Grouping {
				if !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(known[name], label) }) {
					found = append(found, fmt.Sprintf("by (%s): none of %q has that label", label, names))
				}
			}
		}
		return nil
	})
	return found
}

func selectorFaults(selector *parser.VectorSelector, known map[string][]string) (found []string) {
	has, ok := known[selector.Name]
	if !ok {
		return []string{fmt.Sprintf("no node exports %q", selector.Name)}
	}
	for _, matcher := range selector.LabelMatchers {
		if matcher.Name != model.MetricNameLabel && !slices.Contains(has, matcher.Name) {
			found = append(found, fmt.Sprintf("%s has no label %q", selector.Name, matcher.Name))
		}
	}
	return found
}

func TestFaultsAreFound(t *testing.T) {
	known := exported()
	for query, good := range map[string]bool{
		`max by (cluster, queue) (lowkiq_queue_lag_seconds) > 60`:                     true,
		`sum by (state) (lowkiq_queue_jobs{state="ready"})`:                           true,
		`histogram_quantile(0.9, sum by (le) (rate(lowkiq_wait_seconds_bucket[5m])))`: true,
		`max by (cluster, queue) (lowkiq_queue_lag) > 60`:                             false,
		`max by (cluster, queues) (lowkiq_queue_lag_seconds) > 60`:                    false,
		`lowkiq_queue_lag_seconds{nodes="n1"}`:                                        false,
		`histogram_quantile(0.9, sum by (le) (rate(lowkiq_wait_seconds[5m])))`:        false, // native: there is no le
		`histogram_quantile(0.9, sum(rate(lowkiq_wait_seconds[5m])))`:                 true,
		`sum(lowkiq_queue_lag_seconds`:                                                false,
		`sum by (le) (rate(lowkiq_jobs_failed_total[5m]))`:                            false,
	} {
		if found := faults(query, known); (len(found) == 0) != good {
			t.Errorf("%s: got %q, want it good: %t", query, found, good)
		}
	}
	if names := slices.Collect(maps.Keys(known)); len(names) < 20 {
		t.Errorf("got only %q: the registry is not a node's", names)
	}
}
