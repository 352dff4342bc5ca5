package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// The examples name the address that the person has asked for.
func TestExamplesNameTheAddressThatWasAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, unreachable)
	mux := http.NewServeMux()
	mux.Handle("/jobs/", w.handler)
	for _, c := range []struct {
		name    string
		handler http.Handler
		target  string
		headers []string
		want    string
	}{
		{"directly", w.handler, "/api/v1/", nil, "http://example.com/api/v1/status"},
		{"below a prefix", mux, "/jobs/api/v1/", nil, "http://example.com/jobs/api/v1/status"},
		{"proxy", w.handler, "/api/v1/", []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "ops.example:8443", "X-Forwarded-Prefix", "/jobs"}, "https://ops.example:8443/jobs/api/v1/status"},
		{"not an address", w.handler, "/api/v1/", []string{"X-Forwarded-Host", "x'; rm -rf /", "X-Forwarded-Prefix", "/$(reboot)"}, "http://example.com/api/v1/status"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", c.target, nil)
			for i := 0; i < len(c.headers); i += 2 {
				r.Header.Set(c.headers[i], c.headers[i+1])
			}
			answer := httptest.NewRecorder()
			c.handler.ServeHTTP(answer, r)
			expect(t, answer, 200, "&#39;"+c.want+"&#39;")
		})
	}
}
