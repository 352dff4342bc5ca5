package web

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// documentedPath is a route's pattern as OpenAPI writes it.
func documentedPath(pattern string) string {
	return strings.NewReplacer("{$}", "", "...}", "}").Replace(pattern)
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
		return
	}
	if err := s.check(media["schema"], example, where); err != nil {
		t.Error(err)
	}
}

// trial is an operation of the document that a running node serves, and that node.
type trial struct {
	*testing.T
	operation
	name, method, path string
	server             *httptest.Server
}

// forEveryOperation runs a test for each operation that a node describes, with a node of its own.
func forEveryOperation(t *testing.T, test func(t *trial)) {
	t.Helper()
	redis := shared(t)
	start := func(t *testing.T) *httptest.Server {
		w := newWorld(t, redis).fill()
		w.push(job("order-1"))
		server := httptest.NewServer(w.handler)
		t.Cleanup(server.Close)
		return server
	}
	text := get(t, start(t), "GET", "/api/v1/openapi.yaml", "", nil).Body.Bytes()
	var s schemas
	must(t, yaml.Unmarshal(text, &s.root))
	for name, op := range s.operations(t) {
		method, path, _ := strings.Cut(name, " ")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&trial{t, op, name, method, path, start(t)})
		})
	}
}

func get(t *testing.T, server *httptest.Server, method, target, body string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL+target, strings.NewReader(body))
	must(t, err)
	maps.Copy(r.Header, header)
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(r)
	must(t, err)
	defer answer.Body.Close()
	got := httptest.NewRecorder()
	maps.Copy(got.Header(), answer.Header)
	got.WriteHeader(answer.StatusCode)
	_, err = io.Copy(got.Body, answer.Body)
	must(t, err)
	return got
}

// parameters are those of an operation.
func (o operation) parameters(t *testing.T) (list []map[string]any) {
	t.Helper()
	all, _ := o.node["parameters"].([]any)
	for _, node := range all {
		list = append(list, node.(map[string]any))
	}
	return list
}

// call sends a request with the examples of the required parameters and the body, but for what change makes of them.
func (t *trial) call(query url.Values, body string, without string) *httptest.ResponseRecorder {
	t.Helper()
	path, header := t.path, http.Header{}
	for _, p := range t.parameters(t.T) {
		name, value := p["name"].(string), fmt.Sprint(p["example"])
		switch {
		case p["in"] == "path":
			path = strings.Replace(path, "{"+name+"}", value, 1)
		case p["required"] != true || name == without:
		case p["in"] == "header":
			header.Set(name, value)
		case !query.Has(name):
			query.Set(name, value)
		}
	}
	if header.Get("If-Match") != "" {
		header.Set("If-Match", "*")
	}
	if t.path == "/api/v1/events" && !query.Has("for") {
		query.Set("for", "1ms") // else it does not end
	}
	answer := get(t.T, t.server, t.method, path+"?"+query.Encode(), body, header)
	if err := t.keeps(answer); err != nil {
		t.Errorf("%s: answered with what is not described: %v", query.Encode(), err)
	}
	return answer
}

// bodies are the examples of the body, by media type; one of no type and no text if there is none.
func (t *trial) bodies() map[string]string {
	media, err := t.body()
	must(t, err)
	all := map[string]string{}
	for kind, of := range media {
		text, ok := of["example"].(string)
		if !ok {
			raw, err := json.Marshal(of["example"])
			must(t, err)
			text = string(raw)
		}
		all[kind] = text
	}
	if media == nil {
		all[""] = ""
	}
	return all
}

// Every operation of the document takes its examples, and answers with what the document says.
func TestNodeKeepsItsDescription(t *testing.T) {
	forEveryOperation(t, func(t *trial) {
		granted := []int{200}
		switch {
		case strings.HasSuffix(t.path, "/note"), strings.HasSuffix(t.path, "/cancel"), strings.HasSuffix(t.path, "/remove"),
			t.method == http.MethodPost && t.path == "/api/v1/recurring/{entry}", strings.HasSuffix(t.path, "{q}/delete"),
			t.method == http.MethodDelete && strings.HasSuffix(t.path, "/reshard"):
			// The job does not run, the entry is there already or is of a file, the queue is owned, or it is not resharded.
			granted = []int{200, 409}
		case t.method == http.MethodPut:
			granted = []int{201}
		case strings.Contains(t.path, "{workflow}"): // there is none
			granted = []int{404}
		case strings.Contains(t.path, "/replies/"), strings.HasSuffix(t.path, "/plan"):
			granted = []int{200, 404} // nobody has called, and nodes are unknown
		}
		for kind, body := range t.bodies() {
			queries := []url.Values{{}}
			for _, p := range t.parameters(t.T) {
				if name := p["name"].(string); p["in"] == "query" && name != "cursor" { // a cursor is of a list
					query := url.Values{name: {fmt.Sprint(p["example"])}}
					if name == "wait" || name == "keep" {
						query.Set("wait", "1s") // a busy machine can take longer than the example before it pushes
					}
					queries = append(queries, query)
				}
			}
			for _, query := range queries {
				if answer := t.call(query, body, ""); !slices.Contains(granted, answer.Code) {
					t.Errorf("%s %s: got %d, want one of %v: %s", kind, query.Encode(), answer.Code, granted, answer.Body)
				}
			}
		}
	})
}

// A node refuses what its document does not allow.
func TestNodeRefusesWhatIsNotDescribed(t *testing.T) {
	forEveryOperation(t, func(t *trial) {
		example := t.bodies()["application/json"]
		refused := func(what string, query url.Values, body, without string) {
			t.Helper()
			if answer := t.call(query, body, without); answer.Code != 400 && answer.Code != 428 {
				t.Errorf("%s: got %d, want it refused: %s", what, answer.Code, answer.Body)
			}
		}
		if t.path != "/metrics" && t.path != "/debug/pprof/{name}" { // their queries are not lowkiq's
			refused("an unknown parameter", url.Values{"nosuch": {"1"}}, example, "")
		}
		for _, p := range t.parameters(t.T) {
			name := p["name"].(string)
			if p["required"] == true && p["in"] != "path" {
				refused("without "+name, url.Values{}, example, name)
			}
			if p["in"] == "query" {
				for _, text := range beyond(p["schema"].(map[string]any)) {
					refused(name+"="+text, url.Values{name: {text}}, example, "")
				}
			}
		}
		media, err := t.body()
		must(t, err)
		if media == nil {
			return
		}
		for _, body := range t.s.wrongBodies(t.T, media["application/json"]["schema"], example) {
			refused(body, url.Values{}, body, "")
		}
	})
}

// beyond are texts that the schema of a parameter does not allow.
func beyond(schema map[string]any) (texts []string) {
	if schema["enum"] != nil || schema["type"] == "integer" {
		texts = append(texts, "nosuch")
	}
	if schema["minimum"] != nil {
		texts = append(texts, fmt.Sprint(int(number(schema["minimum"]))-1), fmt.Sprint(int(number(schema["maximum"]))+1))
	}
	if schema["contentEncoding"] != nil {
		texts = append(texts, "%")
	}
	return texts
}

// wrongBodies are bodies that a schema does not allow: the example with a field that is wrong.
func (s schemas) wrongBodies(t *testing.T, node any, example string) []string {
	t.Helper()
	schema, err := s.resolve(node)
	must(t, err)
	if forms, ok := schema["anyOf"].([]any); ok && schema["properties"] == nil {
		schema, err = s.resolve(forms[0])
		must(t, err)
	}
	with := func(name string, value any) string {
		var body map[string]any
		must(t, json.Unmarshal([]byte(example), &body))
		body[name] = value
		text, err := json.Marshal(body)
		must(t, err)
		return string(text)
	}
	bodies := []string{"{", "[7]", "7", `"x"`, "null x", with("nosuch", 1)}
	if schema["required"] != nil || schema["anyOf"] != nil {
		bodies = append(bodies, "{}")
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, of := range properties {
		property, err := s.resolve(of)
		must(t, err)
		for _, value := range wrongValues(property) {
			bodies = append(bodies, with(name, value))
		}
	}
	for _, body := range bodies {
		var value any
		if json.Unmarshal([]byte(body), &value) == nil && s.check(node, value, "body") == nil {
			t.Errorf("%s is allowed", body)
		}
	}
	return bodies
}

// wrongValues are values that the schema of a field does not allow.
func wrongValues(schema map[string]any) (values []any) {
	switch schema["type"] {
	case "string":
		values = append(values, 7, []any{})
	case "integer", "number", "boolean", "array", "object":
		values = append(values, "nosuch")
	}
	if schema["enum"] != nil {
		values = append(values, "nosuch")
	}
	for word, step := range map[string]float64{"minimum": -1, "maximum": 1} {
		if schema[word] != nil {
			values = append(values, number(schema[word])+step)
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		for _, value := range wrongValues(items) {
			values = append(values, []any{value})
		}
	}
	if items, ok := schema["additionalProperties"].(map[string]any); ok {
		for _, value := range wrongValues(items) {
			values = append(values, map[string]any{"a": value})
		}
	}
	return values
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
