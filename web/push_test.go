package web

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

func (w *world) size(t *testing.T) int {
	t.Helper()
	stats, err := w.orders.Stats(t.Context())
	must(t, err)
	return stats.Jobs.Total()
}

func TestMalformedPushStoresNothing(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	before := w.size(t)
	for name, body := range map[string]string{
		"last line":    "{\"id\":\"x\"}\n{\"id\":\"y\"}\n{\"id\":",
		"last element": `[{"id":"x"},{"id":"y","score":"high"}]`,
		"long id":      `[{"id":"x"},{"id":"` + strings.Repeat("i", lowkiq.MaxIDBytes+1) + `"}]`,
		"empty":        "", "null": "null", "number": "1", "infinite": `{"id":"x","score":1e999}`,
	} {
		t.Run(name, func(t *testing.T) {
			answer := w.do("POST", ordersPath+"jobs", body)
			expect(t, answer, 400, `"line":`, `"column":`)
			if got := w.size(t); got != before {
				t.Errorf("got %d jobs after it, want %d", got, before)
			}
		})
	}
}

func TestPushAnswersPerJob(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	huge := strings.Repeat("x", lowkiq.MaxPayloadBytes)
	answer := w.do("POST", ordersPath+"jobs", `[{"id":"x"},{"id":"y","payload":"`+huge+`"},{"id":"z"}]`)
	expect(t, answer, 200, `{"id":"x","ok":true,"merged":false},{"id":"y","ok":false,"merged":false,"error":"job \"y\": payload is too large`, `{"id":"z","ok":true`)
	if strings.Contains(answer.Body.String(), `"retry"`) {
		t.Errorf("a refused job need not be tried again: %s", answer.Body)
	}
	expect(t, w.do("POST", ordersPath+"jobs", `[]`), 200, `{"results":[]}`)
}

// Jobs get the trace of the request that pushes them, where they have none.
func TestPushWithHeaders(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for name, c := range map[string]struct{ job, parent, want string }{
		"own":             {`{"id":"own","header":{"tag":"vip"}}`, "", `"header":{"tag":"vip"}`},
		"traced":          {`{"id":"traced"}`, trace, `"header":{"traceparent":"` + trace + `","tracestate":"a=1,b=2"}`},
		"own and traced":  {`{"id":"own and traced","header":{"tag":"vip"}}`, trace, `"header":{"tag":"vip","traceparent":"` + trace + `","tracestate":"a=1,b=2"}`},
		"own trace":       {`{"id":"own trace","header":{"traceparent":"mine"}}`, trace, `"header":{"traceparent":"mine"}`},
		"no trace at all": {`{"id":"no trace at all"}`, "00-nonsense", `"payload":""}]`},
		"own state":       {`{"id":"own state","header":{"tracestate":"mine"}}`, trace, `"header":{"tracestate":"mine"}`},
		"empty":           {`{"id":"empty","header":{}}`, trace, `"header":{"traceparent":`},
		"null trace":      {`{"id":"null trace"}`, "00-00000000000000000000000000000000-00f067aa0ba902b7-01", `"payload":""}]`},
		"null span":       {`{"id":"null span"}`, "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", `"payload":""}]`},
		"no version":      {`{"id":"no version"}`, "ff" + trace[2:], `"payload":""}]`},
		"more of 00":      {`{"id":"more of 00"}`, trace + "-more", `"payload":""}]`},
		"later version":   {`{"id":"later version"}`, "01" + trace[2:] + "-more", `"header":{"traceparent":"01-4b`},
		"no room":         {`{"id":"no room","header":{"h":"` + strings.Repeat("v", 4000) + `"}}`, trace, `vvv"}`},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, w.do("POST", ordersPath+"jobs", c.job, "Traceparent", c.parent, "Tracestate", "a=1,b=2"), 200, `"ok":true`)
			expect(t, w.do("GET", ordersPath+"jobs?id="+url.QueryEscape(name), ""), 200, c.want)
			expect(t, w.do("GET", ordersPath+"jobs?state=ready", ""), 200, c.want)
		})
	}
	expect(t, w.do("POST", ordersPath+"jobs", `{"id":"x","header":{"a b":""}}`), 400, `"field":"header"`, "a b")

	// What fits without a trace is not refused for one.
	full := strings.Repeat("x", lowkiq.MaxPayloadBytes-len(`""`))
	expect(t, w.do("POST", ordersPath+"jobs", `{"id":"full","payload":"`+full+`"}`, "Traceparent", trace), 200, `"ok":true`)
}

func TestPushInBulk(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	var body bytes.Buffer
	for i := range 5000 {
		body.WriteString(`{"id":"bulk-` + strconv.Itoa(i) + `","payload":1}` + "\n")
	}
	before := w.size(t)
	answer := w.do("POST", ordersPath+"jobs", body.String(), "Content-Type", "application/x-ndjson")
	var got Pushed
	must(t, json.Unmarshal(answer.Body.Bytes(), &got))
	if len(got.Results) != 5000 || w.size(t) != before+5000 {
		t.Errorf("got %d results and %d more jobs, want 5000", len(got.Results), w.size(t)-before)
	}
}

func TestBodyLimit(t *testing.T) {
	w := newWorld(t, shared(t), func(cfg *Config) { cfg.BodyLimit = 64 }).fill()
	fits := `{"id":"x","payload":"` + strings.Repeat("x", 64-len(`{"id":"x","payload":""}`)) + `"}`
	expect(t, w.do("POST", ordersPath+"jobs", fits), 200)
	expect(t, w.do("POST", ordersPath+"jobs", fits+"\n"), 413, "limit of 64 bytes")
}

// A body without a length is counted while it is read, on a real connection.
func TestBodyLimitOfStream(t *testing.T) {
	w := newWorld(t, shared(t), func(cfg *Config) { cfg.BodyLimit = 64 }).fill()
	s := started(t, w.handler, 0, false)
	answer, err := s.Client().Post(s.URL+ordersPath+"jobs", "", io.MultiReader(strings.NewReader(`{"id":"x","payload":"`), strings.NewReader(strings.Repeat("x", 1000))))
	must(t, err)
	must(t, answerIs(answer, http.StatusRequestEntityTooLarge))
}

func TestServerHasLimits(t *testing.T) {
	t.Parallel()
	s := newServer("127.0.0.1:0", http.NotFoundHandler(), 0)
	if s.ReadHeaderTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 || s.WriteTimeout != 0 {
		t.Errorf("got %v, %v, %d, %v; want limits for all but writing", s.ReadHeaderTimeout, s.IdleTimeout, s.MaxHeaderBytes, s.WriteTimeout)
	}
}

// While Redis is away, what needs it is 503 and names its address; health is not.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := newWorld(t, server.URL()).fill()
	server.Stop()
	for pattern, list := range cases {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.HasPrefix(path, "/api/v1/") || path == "/api/v1/members" || path == "/api/v1/{$}" || path == "/api/v1/openapi.yaml" {
			continue // gossip and the API's descriptions need no Redis
		}
		answer := w.do(method, list[0].target, list[0].body)
		expect(t, answer, 503, `"title":"Service Unavailable"`)
		if answer.Header().Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", pattern)
		}
	}
	expect(t, w.do("GET", "/healthz", ""), 200)
	expect(t, w.do("GET", "/api/v1/", ""), 200, "curl")
}

// Redis full: the pusher learns why, and that it may try again.
func TestRedisFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "3mb")
	w := newWorld(t, server.URL()).fill()
	payload := strings.Repeat("x", 900_000)
	for i := range 10 {
		answer := w.do("POST", ordersPath+"jobs", `{"id":"`+strconv.Itoa(i)+`","payload":"`+payload+`"}`)
		if answer.Code == 200 {
			continue
		}
		expect(t, answer, 503, "OOM")
		expect(t, w.do("POST", ordersPath+"jobs", `[{"id":"one","payload":1},{"id":""}]`), 400)
		return
	}
	t.Fatal("10 pushes of 900 kB fit into 3 MB")
}

func TestPushToAReservedQueue(t *testing.T) {
	w := newWorld(t, shared(t))
	_, err := w.client.RegisterAny(t.Context(), lowkiq.Queue{Name: protocol.Workflows, Shards: 1})
	must(t, err)
	for _, query := range []string{"", "?wait=1s"} {
		expect(t, w.do("POST", "/api/v1/queues/lowkiq.workflows/jobs"+query, `{"id":"a"}`), 400, `names that begin with \"lowkiq.\" belong to lowkiq; use another queue`)
	}
	expect(t, w.do("PATCH", "/api/v1/queues/lowkiq.workflows/rules", `{"set":{"state":"1h"}}`), 400, `names that begin with \"lowkiq.\" belong to lowkiq`)
}
