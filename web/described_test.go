package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/lowkiq/lowkiq/status"
)

// parsed is openapi.yaml, read once.
var parsed = sync.OnceValues(func() (schemas, error) {
	var root map[string]any
	err := yaml.Unmarshal(openapiText, &root)
	return schemas{root: root}, err
})

// described is openapi.yaml.
func described(t testing.TB) schemas {
	t.Helper()
	s, err := parsed()
	must(t, err)
	return s
}

// patterns is a mux that knows the routes, and serves none.
var patterns = sync.OnceValue(func() *http.ServeMux {
	mux := http.NewServeMux()
	for _, rt := range (&api{}).listRoutes() {
		mux.Handle(rt.pattern, http.NotFoundHandler())
	}
	return mux
})

// keepsDescription holds an answer of a route, whatever the test is about, against the file, and
// the body of the request if it was taken.
func (w *world) keepsDescription(r *http.Request, body string, answer *httptest.ResponseRecorder) {
	w.t.Helper()
	_, pattern := patterns().Handler(r)
	if pattern == "" {
		return // no route
	}
	op := described(w.t).operations(w.t)[documentedPath(pattern)]
	if err := op.keeps(answer); err != nil {
		w.t.Errorf("%s %s is not described so: %v", r.Method, r.URL, err)
	}
	if err := op.takes(body); err != nil && answer.Code == http.StatusOK {
		w.t.Errorf("%s %s took what is not described: %v", r.Method, r.URL, err)
	}
}

// takes says how a body differs from what is described; NDJSON is not looked at.
func (o operation) takes(body string) error {
	media, err := o.body()
	if err != nil || media == nil {
		return err
	}
	var value any
	if strings.TrimSpace(body) == "" || json.Unmarshal([]byte(body), &value) != nil {
		return nil
	}
	return o.s.check(media["application/json"]["schema"], value, "body")
}

// operation is one method of one path.
type operation struct {
	s    schemas
	node map[string]any
}

// operations are those of the file, by "GET /path".
func (s schemas) operations(t testing.TB) map[string]operation {
	t.Helper()
	all := map[string]operation{}
	for path, item := range s.root["paths"].(map[string]any) {
		for method, node := range item.(map[string]any) {
			all[strings.ToUpper(method)+" "+path] = operation{s, node.(map[string]any)}
		}
	}
	return all
}

// statuses are those that an operation may answer with.
func (o operation) statuses() []string {
	return slices.Sorted(maps.Keys(o.node["responses"].(map[string]any)))
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
	status := strconv.Itoa(answer.Code)
	media, err := o.response(status)
	if err != nil {
		return err
	}
	if err := o.keepsHeaders(status, answer.Header()); err != nil {
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
	if told, ok := value.(map[string]any); ok && kind == "application/problem+json" && fmt.Sprint(told["status"]) != status {
		return fmt.Errorf("the problem has status %v, its answer %s", told["status"], status)
	}
	return o.s.check(one["schema"], value, "answer")
}

// keepsHeaders says which header is described as required, and missing.
func (o operation) keepsHeaders(status string, got http.Header) error {
	response, err := o.s.resolve(o.node["responses"].(map[string]any)[status])
	if err != nil {
		return err
	}
	headers, _ := response["headers"].(map[string]any)
	for name, node := range headers {
		if node.(map[string]any)["required"] == true && got.Get(name) == "" {
			return fmt.Errorf("status %s without the header %s", status, name)
		}
	}
	return nil
}

// ear hears what a test objects to.
type ear struct {
	testing.TB
	heard int
}

func (e *ear) Errorf(string, ...any) { e.heard++ }

// An answer that is not as described fails the test that asked, whatever that is about.
func TestEveryAnswerIsChecked(t *testing.T) {
	url := shared(t)
	for name, c := range map[string]struct {
		state status.NodeState
		heard int
	}{"right": {status.Live, 0}, "wrong": {"asleep", 1}} {
		w := newWorld(t, url)
		w.node.state = c.state
		e := &ear{TB: t}
		w.t = e
		if expect(t, w.do("GET", "/api/v1/status", ""), 200); e.heard != c.heard {
			t.Errorf("%s: got %d objections, want %d", name, e.heard, c.heard)
		}
	}
}

func TestOpenAPIObjects(t *testing.T) {
	t.Parallel()
	s := described(t)
	op := s.operations(t)["GET /api/v1/queues"]
	right := `{"queues":[{"name":"a","shards":1,"paused":false,"unhandled":false,"lag_s":0.5,"jobs":{"ready":0,"scheduled":1,"retry":0,"held":0,"in_flight":0,"blocked":0,"failed":0},"morgue":0,"outgoing":0,"processed":4,"failed":0,"codec":"","limits":{"payload_bytes":1048576,"id_payloads":10000,"id_bytes":16777216},"causes":[]}]}`
	const problems = "application/problem+json"
	for _, c := range []struct {
		name, kind string
		status     int
		body       string
	}{
		{"right", "application/json", 200, right},
		{"missing", "application/json", 200, strings.Replace(right, `"paused":false,`, ``, 1)},
		{"not described", "application/json", 200, strings.Replace(right, `"paused":false,`, `"paused":false,"extra":1,`, 1)},
		{"type", "application/json", 200, strings.Replace(right, `"shards":1`, `"shards":"1"`, 1)},
		{"fraction", "application/json", 200, strings.Replace(right, `"shards":1`, `"shards":1.5`, 1)},
		{"null", "application/json", 200, strings.Replace(right, `[{`, `[null,{`, 1)},
		{"deep", "application/json", 200, strings.Replace(right, `"blocked":0`, `"blocked":true`, 1)},
		{"not the object", "application/json", 200, strings.Replace(right, `{"queues":`, `{"queue":`, 1)},
		{"a status that is not described", problems, 418, ""},
		{"another status in the problem", problems, 400, `{"type":"about:blank","title":"","status":401,"detail":""}`},
		{"a header that is missing", problems, 503, `{"type":"about:blank","title":"","status":503,"detail":""}`},
	} {
		answer := httptest.NewRecorder()
		answer.Header().Set("Content-Type", c.kind)
		answer.WriteHeader(c.status)
		answer.WriteString(c.body)
		if err := op.keeps(answer); (err == nil) != (c.name == "right") {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	drain := s.operations(t)["POST /api/v1/nodes/{n}/drain"]
	for body, right := range map[string]bool{"": true, `{"undo":true}`: true, `{"undo":1}`: false, `{"un":true}`: false, `[]`: false} {
		if err := drain.takes(body); (err == nil) != right {
			t.Errorf("body %s: got %v, want it taken: %t", body, err, right)
		}
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
		"int64":   {`{"format":"int64"}`, `1.5`},
		"double":  {`{"format":"double"}`, `"1"`},
		"format":  {`{"format":"uuid"}`, `"1"`},
		"base64":  {`{"contentEncoding":"base64"}`, `"%"`},
	} {
		var schema, value any
		must(t, json.Unmarshal([]byte(c[0]), &schema))
		must(t, json.Unmarshal([]byte(c[1]), &value))
		if s.check(schema, value, "value") == nil {
			t.Errorf("%s: got no objection", name)
		}
	}
}
