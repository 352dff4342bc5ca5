package check

import (
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/dns" // a scrape configuration uses it
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func parseRules(text string) (*rulefmt.RuleGroups, []error) {
	return rulefmt.Parse([]byte(text), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
}

// rules returns the alerts.
func rules(t *testing.T) (alerts []rulefmt.Rule) {
	t.Helper()
	for _, rule := range allRules(t) {
		if rule.Alert != "" {
			alerts = append(alerts, rule)
		}
	}
	return alerts
}

// allRules returns the alerts and the recording rules, in the order of their evaluation.
func allRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := parseRules(deployed(t, "prometheus", "rules.yml"))
	if len(errs) > 0 {
		t.Fatalf("rules.yml: %v", errs)
	}
	var all []rulefmt.Rule
	for _, group := range groups.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

const runbook = "https://github.com/lowkiq/lowkiq/blob/main/docs/incidents/"

var heading = regexp.MustCompile(`(?m)^#+ (.*)$`)

// anchors are the targets of links into a page, as GitHub makes them.
func anchors(markdown string) (names []string) {
	for _, found := range heading.FindAllStringSubmatch(markdown, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(found[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// incidents returns the sections of the pages in docs/incidents, as "page.md#section".
func incidents(t *testing.T) (sections []string) {
	t.Helper()
	pages, err := filepath.Glob("../../docs/incidents/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("got the pages %q, %v", pages, err)
	}
	for _, page := range pages {
		for _, anchor := range anchors(read(t, page)) {
			sections = append(sections, filepath.Base(page)+"#"+anchor)
		}
	}
	return sections
}

// ruleFaults says what an alert lacks.
func ruleFaults(rule rulefmt.Rule, known map[string][]string, sections []string) (found []string) {
	found = faults(rule.Expr, known)
	for _, annotation := range []string{"summary", "description"} {
		if rule.Annotations[annotation] == "" {
			found = append(found, "no "+annotation)
		}
	}
	if !slices.Contains([]string{"page", "ticket"}, rule.Labels["severity"]) {
		found = append(found, "want severity page or ticket")
	}
	section, ok := strings.CutPrefix(rule.Annotations["runbook_url"], runbook)
	if !ok || !slices.Contains(sections, section) {
		found = append(found, "runbook_url "+rule.Annotations["runbook_url"]+" leads nowhere")
	}
	return found
}

func TestRules(t *testing.T) {
	sections := incidents(t)
	for _, rule := range rules(t) {
		for _, fault := range ruleFaults(rule, exported(), sections) {
			t.Errorf("%s: %s", rule.Alert, fault)
		}
		if want := strings.ToLower(rule.Alert); !strings.HasSuffix(rule.Annotations["runbook_url"], "#"+want) {
			t.Errorf("%s: got the runbook %s, want one of its own", rule.Alert, rule.Annotations["runbook_url"])
		}
	}
}

func TestRuleFaultsAreFound(t *testing.T) {
	good := rules(t)[0]
	sections := incidents(t)
	if found := ruleFaults(good, exported(), sections); len(found) > 0 {
		t.Fatalf("%s: got %q, want nothing", good.Alert, found)
	}
	for name, spoil := range map[string]func(*rulefmt.Rule){
		"metric":   func(r *rulefmt.Rule) { r.Expr = "lowkiq_nothing > 0" },
		"summary":  func(r *rulefmt.Rule) { delete(r.Annotations, "summary") },
		"severity": func(r *rulefmt.Rule) { r.Labels = nil },
		"runbook":  func(r *rulefmt.Rule) { r.Annotations["runbook_url"] += "x" },
	} {
		bad := rules(t)[0]
		spoil(&bad)
		if len(ruleFaults(bad, exported(), sections)) == 0 {
			t.Errorf("%s: a bad rule counts as good", name)
		}
	}
	for _, text := range []string{
		"groups: [{name: a, rules: [{alert: B, expr: 'sum('}]}]",
		"groups: [{name: a, rules: [{alert: B, expr: up, fore: 1m}]}]",
		"groups: [{name: a, rules: [{alert: B, expr: up, annotations: {summary: '{{ $nothing }}'}}]}]",
	} {
		if _, errs := parseRules(text); len(errs) == 0 {
			t.Errorf("%s: got no error", text)
		}
	}
}

func TestScrapeConfiguration(t *testing.T) {
	text := deployed(t, "prometheus", "prometheus.yml")
	cfg, err := config.Load(text, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.ScrapeConfigs) != 1 || cfg.ScrapeConfigs[0].JobName != "lowkiq" {
		t.Errorf("got the jobs %v, want lowkiq, which the rules name", cfg.ScrapeConfigs)
	}
	if _, err := config.Load(strings.Replace(text, "scrape_interval", "scrape_intervall", 1), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("an unknown key counts as good")
	}
}
