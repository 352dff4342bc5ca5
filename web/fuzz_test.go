package web

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// FuzzAPI checks that the API answers as openapi.yaml describes, for any text as a queue, an id, a query or a body. No
// text makes the node fail.
func FuzzAPI(f *testing.F) {
	w := newWorld(f, redistest.Start(f).URL()).fill()
	routes := []struct{ method, path string }{
		{"GET", "jobs"}, {"POST", "jobs"}, {"GET", "jobs/ID"}, {"POST", "run-all-now"}, {"GET", "in-flight"}, {"GET", "morgue"}, {"GET", "errors"}, {"GET", ""},
		{"POST", "jobs/run-now"}, {"POST", "morgue/requeue"}, {"POST", "kill-all-failed"},
	}
	for _, seed := range []struct{ queue, id, query, body string }{
		{"orders", "f1", "state=retry&by=due&limit=2", `{"id":"x","payload":{"n":1},"score":1,"perform_in":4102444800}`},
		{"orders", "a/b", "cursor=eyJxIjoxfQ&reverse=true", "[{\"id\":\"x\"},{\"id_base64\":\"/w==\"}]"},
		{"mail", "\xff", "by=id&from=a&to=b", "{\"id\":\"x\"}\n{\"id\":\"y\",\"score\":1e999}\n"},
		{"nobody", "", "id=f1", `{"ids":["f1"],"ids_base64":["/w=="],"dry_run":true}`},
		{"..", "%2F", "id_base64=%2B", `{"all":true,"state":"retry","by":"time","from":"2026-01-02","to":"1e9","limit":5,"cursor":"x","dry_run":true}`},
		{"q\n", ".", "limit=0&limit=1", `{"limit":-1}`},
		{strings.Repeat("q", 200), strings.Repeat("i", 600), "kind=%00&from=-1&by=retries&state=morgue", `{"ids":null}`},
		{"orders", "s1", "%zz", "\xef\xbb\xbf{}"},
	} {
		for i := range routes {
			f.Add(uint8(i), seed.queue, seed.id, seed.query, []byte(seed.body))
		}
	}
	f.Fuzz(func(t *testing.T, route uint8, queue, id, query string, body []byte) {
		r := routes[int(route)%len(routes)]
		path := "/api/v1/queues/" + url.PathEscape(queue) + "/" + strings.Replace(r.path, "ID", url.PathEscape(id), 1)
		if r.path == "" {
			path = strings.TrimSuffix(path, "/")
		}
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return // no client can send it
		}
		u.RawQuery = query
		request := httptest.NewRequest(r.method, "/", strings.NewReader(string(body))).WithContext(t.Context())
		request.URL = u
		answer := httptest.NewRecorder()
		w.handler.ServeHTTP(answer, request)
		if answer.Code == http.StatusTemporaryRedirect {
			return // . and .. are no names: the path without them is another one
		}
		if answer.Code >= 500 {
			t.Errorf("%s %s: got %d: %s", r.method, u, answer.Code, answer.Body)
		}
		if kind := answer.Header().Get("Content-Type"); strings.Contains(kind, "json") && !json.Valid(answer.Body.Bytes()) {
			t.Errorf("%s %s: got %q, want JSON", r.method, u, answer.Body)
		}
		world := *w
		world.t = t
		world.keepsDescription(request, string(body), answer)
	})
}
