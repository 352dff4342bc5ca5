package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// described is openapi.yaml.
func described(t *testing.T) schemas {
	t.Helper()
	var root map[string]any
	must(t, yaml.Unmarshal(openapiText, &root))
	return schemas{root: root}
}

// operation is one method of one path.
type operation struct {
	s    schemas
	node map[string]any
}

// operations are those of the file, by "GET /path".
func (s schemas) operations(t *testing.T) map[string]operation {
	t.Helper()
	all := map[string]operation{}
	for path, item := range s.root["paths"].(map[string]any) {
		for method, node := range item.(map[string]any) {
			all[strings.ToUpper(method)+" "+path] = operation{s, node.(map[string]any)}
		}
	}
	return all
}

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
		if role := op.node["x-role"]; rt.role == push && role != "push" || rt.role == admin && role != "admin" || rt.role == probe && op.node["security"] == nil {
			faults = append(faults, name+": another role is described")
		}
	}
	for name := range left {
		faults = append(faults, name+": described, and no route")
	}
	return faults
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
		"a role":      func(rt *route) { rt.role = push },
	} {
		wrong := slices.Clone(routes)
		change(&wrong[slices.IndexFunc(routes, func(rt route) bool { return rt.pattern == "GET /api/v1/plan" })])
		if len(differences(t, wrong, s.operations(t))) == 0 {
			t.Errorf("%s that is not described: got no objection", name)
		}
	}
}

// The examples of the file keep its own schemas, and the bodies are what the routes read.
func TestOpenAPIExamples(t *testing.T) {
	t.Parallel()
	s := described(t)
	for name, op := range s.operations(t) {
		body, err := op.body()
		must(t, err)
		for _, media := range body {
			checkExample(t, s, name+" body", media)
		}
		for status := range op.node["responses"].(map[string]any) {
			media, err := op.response(status)
			must(t, err)
			for _, one := range media {
				checkExample(t, s, name+" "+status, one)
			}
		}
	}
	checkExample(t, s, "problem", s.problem(t))
}

func checkExample(t *testing.T, s schemas, where string, media map[string]any) {
	t.Helper()
	example, ok := media["example"]
	if !ok {
		return
	}
	if err := s.check(media["schema"], example, where); err != nil {
		t.Error(err)
	}
}

func (s schemas) problem(t *testing.T) map[string]any {
	t.Helper()
	node, err := s.at("#/components/responses/Problem")
	must(t, err)
	return node.(map[string]any)["content"].(map[string]any)["application/problem+json"].(map[string]any)
}

// body is what a request may carry, by media type.
func (o operation) body() (map[string]map[string]any, error) {
	if o.node["requestBody"] == nil {
		return nil, nil
	}
	return o.s.content(o.node["requestBody"])
}

// response is what an answer of this status carries, by media type.
func (o operation) response(status string) (map[string]map[string]any, error) {
	node := o.node["responses"].(map[string]any)[status]
	if node == nil {
		return nil, fmt.Errorf("status %s is not described", status)
	}
	return o.s.content(node)
}

func (s schemas) content(node any) (map[string]map[string]any, error) {
	object, err := s.resolve(node)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]any{}
	for kind, media := range object["content"].(map[string]any) {
		all[kind] = media.(map[string]any)
	}
	return all, nil
}

// keeps says how an answer differs from what is described.
func (o operation) keeps(answer *httptest.ResponseRecorder) error {
	media, err := o.response(strconv.Itoa(answer.Code))
	if err != nil {
		return err
	}
	kind, _, _ := strings.Cut(answer.Header().Get("Content-Type"), ";")
	one := media[kind]
	if one == nil {
		one = media["*/*"]
	}
	if one == nil {
		return fmt.Errorf("content type %q is not described", kind)
	}
	if !strings.HasSuffix(kind, "json") {
		return nil
	}
	var value any
	if err := json.Unmarshal(answer.Body.Bytes(), &value); err != nil {
		return err
	}
	return o.s.check(one["schema"], value, "answer")
}

// Every answer of every case is as described; so is what happens without a queue.
func TestOpenAPIAnswers(t *testing.T) {
	url := shared(t)
	operations := described(t).operations(t)
	for pattern, list := range cases {
		op := operations[documentedPath(pattern)]
		method, path, _ := strings.Cut(pattern, " ")
		if strings.HasPrefix(path, "/debug/") {
			continue // one CPU profile at a time; what they look like is Go's
		}
		for _, c := range list {
			t.Run(pattern+" "+c.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, url).fill()
				must(t, op.keeps(w.do(method, c.target, c.body)))
				if strings.HasPrefix(path, "/api/v1/queues/{q}") {
					must(t, op.keeps(w.do(method, strings.Replace(c.target, "orders", "nowhere", 1), c.body)))
				}
			})
		}
	}
}

func TestOpenAPIObjects(t *testing.T) {
	t.Parallel()
	s := described(t)
	op := s.operations(t)["GET /api/v1/queues"]
	right := `{"queues":[{"name":"a","shards":1,"paused":false,"lag_s":0.5,"jobs":{"ready":0,"scheduled":1,"retry":0,"in_flight":0,"blocked":0},"morgue":0,"processed":4,"failed":0}]}`
	for name, change := range map[string][2]string{
		"right":          {"", ""},
		"missing":        {`"paused":false,`, ``},
		"not described":  {`"paused":false,`, `"paused":false,"extra":1,`},
		"type":           {`"shards":1`, `"shards":"1"`},
		"fraction":       {`"shards":1`, `"shards":1.5`},
		"null":           {`[{`, `[null,{`},
		"deep":           {`"blocked":0`, `"blocked":true`},
		"not the object": {`{"queues":`, `{"queue":`},
	} {
		answer := httptest.NewRecorder()
		answer.Header().Set("Content-Type", "application/json")
		answer.WriteString(strings.Replace(right, change[0], change[1], 1))
		if err := op.keeps(answer); (err == nil) != (name == "right") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	teapot := httptest.NewRecorder()
	teapot.WriteHeader(418)
	if op.keeps(teapot) == nil {
		t.Error("a status that is not described: got no objection")
	}
	for name, c := range map[string][2]string{
		"enum":    {`{"enum":["a","b"]}`, `"c"`},
		"const":   {`{"const":"a"}`, `"b"`},
		"least":   {`{"minimum":1}`, `0`},
		"most":    {`{"maximum":1}`, `2`},
		"any of":  {`{"anyOf":[{"type":"string"},{"required":["a"]}]}`, `{}`},
		"map":     {`{"additionalProperties":{"type":"string"}}`, `{"a":1}`},
		"unknown": {`{"pattern":"a"}`, `"a"`},
		"no ref":  {`{"$ref":"#/components/schemas/None"}`, `1`},
	} {
		var schema, value any
		must(t, json.Unmarshal([]byte(c[0]), &schema))
		must(t, json.Unmarshal([]byte(c[1]), &value))
		if s.check(schema, value, "value") == nil {
			t.Errorf("%s: got no objection", name)
		}
	}
}

// The fields of a body that are described are those that are read.
func TestOpenAPISelection(t *testing.T) {
	t.Parallel()
	node, err := described(t).at("#/components/schemas/Select")
	must(t, err)
	got := slices.Sorted(maps.Keys(node.(map[string]any)["properties"].(map[string]any)))
	var want []string
	for field := range reflect.TypeFor[selection]().Fields() {
		want = append(want, field.Tag.Get("json"))
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %q described, want %q", got, want)
	}
}
