package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/web/auth"
)

// parameters are the names of an operation's parameters of one kind.
func (o operation) parameters(t *testing.T, in string) (names []string) {
	t.Helper()
	list, _ := o.node["parameters"].([]any)
	for _, node := range list {
		p, err := o.s.resolve(node)
		must(t, err)
		if p["in"] == in {
			names = append(names, p["name"].(string))
		}
		if p["example"] == nil {
			t.Errorf("parameter %v has no example", p["name"])
		} else if err := o.s.check(p["schema"], p["example"], "example"); err != nil {
			t.Errorf("parameter %v: %v", p["name"], err)
		}
	}
	slices.Sort(names)
	return names
}

// documentedPath is a route's pattern as OpenAPI writes it.
func documentedPath(pattern string) string {
	return strings.NewReplacer("{$}", "", "...}", "}").Replace(pattern)
}

// differences compares the routes with the file, both ways.
func differences(t *testing.T, routes []route, operations map[string]operation) (faults []string) {
	t.Helper()
	left := maps.Clone(operations)
	for _, rt := range routes {
		name := documentedPath(rt.pattern)
		op, ok := left[name]
		if !ok {
			faults = append(faults, name+": not described")
			continue
		}
		delete(left, name)
		query := slices.Sorted(slices.Values(rt.query))
		if got := op.parameters(t, "query"); !slices.Equal(rt.query, anyQuery) && !slices.Equal(got, query) {
			faults = append(faults, fmt.Sprintf("%s: parameters %q are described, want %q", name, got, query))
		}
		var inPath []string
		for _, found := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(name, -1) {
			inPath = append(inPath, found[1])
		}
		slices.Sort(inPath)
		if got := op.parameters(t, "path"); !slices.Equal(got, inPath) {
			faults = append(faults, fmt.Sprintf("%s: path parameters %q are described, want %q", name, got, inPath))
		}
		want, open := rt.needs().String(), rt.needs() == auth.Probe
		if open {
			want = "none"
		}
		if op.node["x-role"] != want || (op.node["security"] != nil) != open {
			faults = append(faults, fmt.Sprintf("%s: role %v is described, want %s", name, op.node["x-role"], want))
		}
		if got, must := op.statuses(), statusesOf(rt); !containsAll(got, must) {
			faults = append(faults, fmt.Sprintf("%s: answers %q are described, want %q among them", name, got, must))
		}
	}
	for name := range left {
		faults = append(faults, name+": described, and no route")
	}
	return faults
}

// statusesOf are those that a route can answer with, being of its kind.
func statusesOf(rt route) []string {
	all := []string{"200", "400"}
	if rt.needs() > auth.Anonymous {
		all = append(all, "401", "403")
	}
	if rt.needs() > auth.Anonymous && auth.ForPeople(rt.path) {
		all = append(all, "303")
	}
	if rt.method() == http.MethodPost {
		all = append(all, "408", "413")
	}
	if strings.Contains(rt.pattern, "{q}") {
		all = append(all, "404", "500", "503")
	}
	return all
}

func containsAll(list, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(one string) bool { return !slices.Contains(list, one) })
}

func TestOpenAPIHasEveryRoute(t *testing.T) {
	t.Parallel()
	s := described(t)
	routes := (&api{}).routes()
	for _, fault := range differences(t, routes, s.operations(t)) {
		t.Error(fault)
	}
	ids := map[any]bool{}
	for name, op := range s.operations(t) {
		if ids[op.node["operationId"]] || op.node["summary"] == nil || len(op.node["tags"].([]any)) == 0 {
			t.Errorf("%s: want an operationId of its own, a summary and a tag", name)
		}
		ids[op.node["operationId"]] = true
	}
	for name, change := range map[string]func(rt *route){
		"a path":      func(rt *route) { rt.pattern = "GET /api/v2" },
		"a parameter": func(rt *route) { rt.query = append([]string{"more"}, rt.query...) },
		"a role":      func(rt *route) { rt.role = auth.Push },
	} {
		wrong := slices.Clone(routes)
		change(&wrong[slices.IndexFunc(routes, func(rt route) bool { return rt.pattern == "GET /api/v1/plan" })])
		if len(differences(t, wrong, s.operations(t))) == 0 {
			t.Errorf("%s that is not described: got no objection", name)
		}
	}
	fewer := maps.Clone(s.operations(t))
	drain := maps.Clone(fewer["POST /api/v1/nodes/{n}/drain"].node)
	drain["responses"] = maps.Clone(drain["responses"].(map[string]any))
	delete(drain["responses"].(map[string]any), "413")
	fewer["POST /api/v1/nodes/{n}/drain"] = operation{s, drain}
	if len(differences(t, routes, fewer)) == 0 {
		t.Error("a status that is not described: got no objection")
	}
}

// The examples of the file keep its own schemas, and the bodies are what the routes read.
func TestOpenAPIExamples(t *testing.T) {
	t.Parallel()
	s := described(t)
	for name, op := range s.operations(t) {
		body, err := op.body()
		must(t, err)
		for kind, media := range body {
			checkExample(t, s, name+" body "+kind, media)
		}
		for _, status := range op.statuses() {
			media, err := op.response(status)
			must(t, err)
			for kind, one := range media {
				if strings.HasSuffix(kind, "json") {
					checkExample(t, s, name+" "+status, one)
				}
				if kind == "application/problem+json" && fmt.Sprint(one["example"].(map[string]any)["status"]) != status {
					t.Errorf("%s %s: the example is of another status", name, status)
				}
			}
		}
	}
}

func checkExample(t *testing.T, s schemas, where string, media map[string]any) {
	t.Helper()
	example, ok := media["example"]
	if !ok {
		t.Errorf("%s: no example", where)
		return
	}
	if err := s.check(media["schema"], example, where); err != nil {
		t.Error(err)
	}
}

// Nothing is described that no request or answer uses.
func TestOpenAPIHasNoRemains(t *testing.T) {
	t.Parallel()
	for kind, list := range described(t).root["components"].(map[string]any) {
		for name := range list.(map[string]any) {
			ref := "#/components/" + kind + "/" + name + "'"
			if kind != "securitySchemes" && !strings.Contains(string(openapiText), ref) {
				t.Errorf("%s: nothing refers to it", ref)
			}
		}
	}
}

// Who sends the example of a body gets an answer.
func TestOpenAPIBodiesAreTaken(t *testing.T) {
	redis := shared(t)
	for name, op := range described(t).operations(t) {
		method, path, _ := strings.Cut(name, " ")
		media, err := op.body()
		must(t, err)
		for kind, one := range media {
			body, ok := one["example"].(string)
			if !ok {
				raw, err := json.Marshal(one["example"])
				must(t, err)
				body = string(raw)
			}
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				want := 200
				if strings.HasSuffix(path, "/note") {
					want = 409 // the job is not in that flight
				}
				if strings.HasSuffix(path, "/cancel") {
					want = 409 // it does not run
				}
				if path == "/api/v1/recurring/{entry}" || strings.HasSuffix(path, "/remove") {
					want = 409 // it is there already, or from a file
				}
				expect(t, newWorld(t, redis).fill().do(method, example.Replace(path), body, "Content-Type", kind), want)
			})
		}
	}
}

// What is malformed or too long is refused by every route, as it is described.
func TestEveryRouteRefuses(t *testing.T) {
	w := newWorld(t, shared(t), func(cfg *Config) { cfg.BodyLimit = 64 }).fill()
	for pattern, list := range cases {
		method, _, _ := strings.Cut(pattern, " ")
		path, _, _ := strings.Cut(list[0].target, "?")
		expect(t, w.do(method, path+"?x=%zz", ""), 400, "query")
		if method == http.MethodPost {
			expect(t, w.do(method, path, strings.Repeat(" ", 65)), 413, "limit of 64 bytes")
		}
	}
}

// The fields of a body that are described are those that are read; a route that means all takes no
// ids.
func TestOpenAPISelection(t *testing.T) {
	t.Parallel()
	var all []string
	for field := range reflect.TypeFor[Selection]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		all = append(all, name)
	}
	filter := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains([]string{"ids", "ids_base64", "all"}, name) })
	for schema, want := range map[string][]string{"Select": all, "Filter": filter} {
		node, err := described(t).at("#/components/schemas/" + schema)
		must(t, err)
		got := slices.Sorted(maps.Keys(node.(map[string]any)["properties"].(map[string]any)))
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("%s: got %q described, want %q", schema, got, want)
		}
	}
}
