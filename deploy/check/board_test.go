package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

type board struct {
	Title      string
	Templating struct {
		List []struct {
			Name, Type string
			Query      json.RawMessage
		}
	}
	Panels []struct {
		Title, Description string
		GridPos            struct{ X, Y, W, H int }
		Targets            []struct{ Expr string }
	}
}

// plain replaces Grafana's variables by what they may become.
var plain = strings.NewReplacer("$__rate_interval", "1m", "$cluster", ".*", "$queue", ".*", "$node", ".*")

// boardFaults says what is wrong with a board: queries, panels that lie upon each other,
// and metrics that it does not show.
func boardFaults(text string, known map[string][]string) (found []string) {
	var b board
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return []string{err.Error()}
	}
	for i, panel := range b.Panels {
		for _, target := range panel.Targets {
			for _, fault := range faults(plain.Replace(target.Expr), known) {
				found = append(found, panel.Title+": "+fault)
			}
		}
		if panel.Description == "" || len(panel.Targets) == 0 {
			found = append(found, panel.Title+": no description or no query")
		}
		p := panel.GridPos
		for _, other := range b.Panels[:i] {
			o := other.GridPos
			if p.X < o.X+o.W && o.X < p.X+p.W && p.Y < o.Y+o.H && o.Y < p.Y+p.H || p.X+p.W > 24 {
				found = append(found, panel.Title+" lies upon "+other.Title)
			}
		}
	}
	for name := range maps.Keys(known) {
		shown, _, _ := strings.Cut(name, "_bucket")
		if strings.HasPrefix(name, "lowkiq_") && !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") && !strings.Contains(text, shown) {
			found = append(found, "shows no "+name)
		}
	}
	for _, variable := range []string{"cluster", "queue", "node"} {
		if !slices.ContainsFunc(b.Templating.List, func(v struct {
			Name, Type string
			Query      json.RawMessage
		}) bool {
			return v.Name == variable && v.Type == "query"
		}) {
			found = append(found, "no variable "+variable)
		}
	}
	return found
}

func TestBoard(t *testing.T) {
	for _, fault := range boardFaults(deployed(t, "grafana", "lowkiq.json"), exported()) {
		t.Error(fault)
	}
}

func TestBoardFaultsAreFound(t *testing.T) {
	text := deployed(t, "grafana", "lowkiq.json")
	for _, c := range [][2]string{
		{"lowkiq_queue_lag_seconds", "lowkiq_lag_seconds"},
		{"lowkiq_generation", "lowkiq_epoch"},
		{`"name": "queue"`, `"name": "line"`},
		{`"w": 12`, `"w": 24`},
		{"sum by (", "sum by "},
		{"{", "["},
	} {
		if spoilt := strings.ReplaceAll(text, c[0], c[1]); spoilt == text || len(boardFaults(spoilt, exported())) == 0 {
			t.Errorf("%s for %s counts as good", c[1], c[0])
		}
	}
	known := exported()
	known["lowkiq_new_total"] = nil
	if found := fmt.Sprint(boardFaults(text, known)); !strings.Contains(found, "shows no lowkiq_new_total") {
		t.Errorf("got %s, want the metric that is not shown", found)
	}
}
