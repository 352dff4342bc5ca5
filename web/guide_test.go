package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// exchange is a request of docs/api.md and the answer that it shows.
type exchange struct{ method, target, body, answer string }

var exchanges = regexp.MustCompile("(?s)```http\n(\\w+) (\\S+)\n(.*?)```\n\n```json\n(.*?)```")

func guide(t *testing.T) (text string, found []exchange) {
	t.Helper()
	raw, err := os.ReadFile("../docs/api.md")
	must(t, err)
	for _, m := range exchanges.FindAllStringSubmatch(string(raw), -1) {
		found = append(found, exchange{m[1], m[2], strings.TrimSpace(m[3]), m[4]})
	}
	return string(raw), found
}

// unlike says where two values differ in more than their numbers and texts.
func unlike(got, want any, where string) error {
	if g, w := typeOf(got), typeOf(want); g != w && (g != "integer" || w != "number") && (g != "number" || w != "integer") {
		return fmt.Errorf("%s: got %s, want %s", where, g, w)
	}
	switch w := want.(type) {
	case map[string]any:
		g := got.(map[string]any)
		if where == "answer.jobs[0].payloads[0].payload" {
			return nil
		}
		if names := slices.Sorted(maps.Keys(g)); !slices.Equal(names, slices.Sorted(maps.Keys(w))) {
			return fmt.Errorf("%s: got fields %q, want %q", where, names, slices.Sorted(maps.Keys(w)))
		}
		for name := range w {
			if err := unlike(g[name], w[name], where+"."+name); err != nil {
				return err
			}
		}
	case []any:
		g := got.([]any)
		if len(g) == 0 != (len(w) == 0) {
			return fmt.Errorf("%s: got %d entries, want %d", where, len(g), len(w))
		}
		if len(w) > 0 {
			return unlike(g[0], w[0], where+"[0]")
		}
	}
	return nil
}

// The requests of the guide get answers like those it shows.
func TestGuide(t *testing.T) {
	redis := shared(t)
	_, found := guide(t)
	if len(found) < 6 {
		t.Fatalf("got %d examples, want more", len(found))
	}
	for _, e := range found {
		t.Run(e.method+" "+e.target, func(t *testing.T) {
			answer := newWorld(t, redis).fill().do(e.method, e.target, e.body)
			var got, want any
			must(t, json.Unmarshal(answer.Body.Bytes(), &got))
			must(t, json.Unmarshal([]byte(e.answer), &want))
			if err := unlike(got, want, "answer"); err != nil {
				t.Errorf("%v; the answer was %s", err, answer.Body)
			}
		})
	}
	right := map[string]any{"a": 1.0, "b": []any{"x"}}
	for name, wrong := range map[string]any{
		"field": map[string]any{"a": 1.0}, "type": map[string]any{"a": "1", "b": []any{"x"}}, "empty": map[string]any{"a": 1.0, "b": []any{}},
		"deep": map[string]any{"a": 1.0, "b": []any{true}},
	} {
		if unlike(wrong, right, "answer") == nil {
			t.Errorf("another %s: got no objection", name)
		}
	}
}

// Each path that the guide names is that of a route, with parameters that it takes.
func TestGuideNamesRoutes(t *testing.T) {
	t.Parallel()
	text, _ := guide(t)
	routes := (&api{}).listRoutes()
	named := regexp.MustCompile("`((?:GET|POST) /api/v1/[^`]*)`").FindAllStringSubmatch(text, -1)
	if len(named) < 15 {
		t.Fatalf("got %d routes, want more", len(named))
	}
	for _, m := range named {
		if fault := strange(m[1], routes); fault != "" {
			t.Error(fault)
		}
	}
	for _, rt := range routes {
		if path := strings.TrimSuffix(documentedPath(rt.pattern), "{name}"); !strings.Contains(text, "| `"+path+"` |") {
			t.Errorf("%s: not in the table", path)
		}
	}
	for _, wrong := range []string{"GET /api/v1/nowhere", "POST /api/v1/stats", "GET /api/v1/queues/{q}/morgue?order=id"} {
		if strange(wrong, routes) == "" {
			t.Errorf("%s: got no objection", wrong)
		}
	}
}

func strange(request string, routes []route) string {
	path, query, _ := strings.Cut(request, "?")
	i := slices.IndexFunc(routes, func(rt route) bool { return documentedPath(rt.pattern) == path })
	if i < 0 {
		return path + ": no such route"
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return err.Error()
	}
	for name := range values {
		if !slices.Contains(namesOf(routes[i].query), name) {
			return path + ": takes no " + name
		}
	}
	return ""
}
