package check

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/template"
)

// rendered is an annotation as Prometheus sends it.
func rendered(t *testing.T, text string, value float64, labels map[string]string) string {
	t.Helper()
	const vars = "{{$labels := .Labels}}{{$value := .Value}}"
	data := template.AlertTemplateData(labels, nil, "", promql.Sample{F: value})
	said, err := template.NewTemplateExpander(t.Context(), vars+text, "alert", data, 0, nil, &url.URL{}, nil).Expand()
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// illegible is what cannot be read at night: 103.44827586206897, 1.234567e+06, a
// label that the alert does not have.
var illegible = regexp.MustCompile(`\.\d{5}|\de\+|<no value>|  `)

func TestAnnotations(t *testing.T) {
	grouped := regexp.MustCompile(`by \(([a-z, ]+)\)`)
	for _, rule := range rules(t) {
		labels := map[string]string{"cluster": "c", "name": "e", "node": "n", "queue": "q", "reason": "r"} // of a series
		if by := grouped.FindStringSubmatch(rule.Expr); by != nil {
			kept := strings.Split(by[1], ", ")
			for name := range labels {
				if !slices.Contains(kept, name) {
					labels[name] = "<no value>"
				}
			}
		}
		for _, text := range rule.Annotations {
			for _, value := range []float64{1, 103.44827586206897, 1234567} {
				if strings.Contains(text, "humanizePercentage") {
					value = 1 / (1 + value) // at most 100 %
				}
				if said := rendered(t, text, value, labels); illegible.MatchString(said) {
					t.Errorf("%s says %q", rule.Alert, said)
				}
			}
		}
	}
	for _, text := range []string{"{{ $value }} jobs", "{{ $labels.queue }} lags"} {
		if said := rendered(t, text, 1234567, map[string]string{"queue": "<no value>"}); !illegible.MatchString(said) {
			t.Errorf("%q counts as legible", said)
		}
	}
}
