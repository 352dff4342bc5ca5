package handler

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// endpoint serves f and returns a handler that posts to it.
func endpoint(t *testing.T, cfg HTTPConfig, f http.HandlerFunc) *HTTP {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	cfg.URL = strings.Replace(server.URL, "://", "://secret:secret@", 1) + "/orders?key=secret#secret"
	h, err := NewHTTP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func TestHTTPRequest(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	h := endpoint(t, HTTPConfig{Token: "sesame", Header: http.Header{"x-team": {"blue"}}}, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	if err := h.Handle(t.Context(), batch()); err != nil {
		t.Fatalf("got %v, want a 200 with an empty body to be done", err)
	}
	for name, want := range map[string]string{
		"Lowkiq-Queue": "orders", "Lowkiq-Shard": "3", "Lowkiq-Fence": "1763600000123", "Lowkiq-Flight": "17",
		"Content-Type": "application/json", "X-Team": "blue", "Authorization": "Bearer sesame",
	} {
		if got.Header.Get(name) != want {
			t.Errorf("header %s: got %q, want %q", name, got.Header.Get(name), want)
		}
	}
	d := decode(t, body)
	if got.Method != "POST" || got.URL.Path != "/orders" || d.Jobs[0].ID != "a" || string(d.Jobs[0].Payloads[0].Payload) != `{"b":1}` {
		t.Errorf("got %s %s %s, want the batch posted to /orders", got.Method, got.URL, body)
	}
}

func TestHTTPResponses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		header map[string]string
		body   string
		want   string // "" = done
	}{
		"no content":          {204, nil, "", ""},
		"ok":                  {200, nil, `{"ok":true}`, ""},
		"plain text":          {200, map[string]string{"Content-Type": "text/plain"}, "OK", ""},
		"failed id":           {200, nil, `{"failed":{"a":"no such account"}}`, "a: no such account"},
		"refused":             {200, nil, `{"ok":false,"error":"away"}`, "away"},
		"unknown id":          {200, nil, `{"failed":{"zz":"x"}}`, `named "zz" as failed, which is not in the batch`},
		"other JSON":          {200, nil, `{"status":"fine"}`, `200 OK, but the response is no answer: line 1, column 11: unknown field "status"`},
		"JSON by its type":    {200, map[string]string{"Content-Type": "application/json"}, `nope`, "is no answer"},
		"too long":            {200, nil, strings.Repeat(" ", maxBody+1), "longer than 1048576 bytes"},
		"server error":        {500, nil, "boom", `500 Internal Server Error: "boom"`},
		"long server error":   {500, nil, strings.Repeat("x", 600), strings.Repeat("x", 512) + `"…`},
		"redirect":            {302, map[string]string{"Location": "/else"}, "", "302 Found"},
		"busy without a time": {503, nil, "", "503 Service Unavailable: (nothing)"},
		"busy, bad time":      {503, map[string]string{"Retry-After": "soon"}, "", "503 Service Unavailable"},
		"retry-after of 500":  {500, map[string]string{"Retry-After": "5"}, "", "500 Internal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := endpoint(t, HTTPConfig{}, func(w http.ResponseWriter, r *http.Request) {
				for name, value := range c.header {
					w.Header().Set(name, value)
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			err := h.Handle(t.Context(), batch())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want neither user, password nor query in it", err)
			}
		})
	}
}

func TestHTTPPostpones(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		after  string
		want   time.Duration
	}{
		"429, seconds": {429, "7", 7 * time.Second},
		"503, zero":    {503, "0", time.Second},
		"503, date":    {503, "Wed, 19 Nov 2025 10:00:30 GMT", 30 * time.Second},
		"503, RFC 850": {503, "Wednesday, 19-Nov-25 10:00:30 GMT", 30 * time.Second},
		"503, asctime": {503, "Wed Nov 19 10:00:30 2025", 30 * time.Second},
		"503, now":     {503, "Wed, 19 Nov 2025 10:00:00 GMT", time.Second},
		"503, past":    {503, "Wed, 19 Nov 2025 09:00:00 GMT", time.Second},
		"503, years":   {503, "Wed, 19 Nov 2325 10:00:00 GMT", 24 * time.Hour},
		"503, forever": {503, "4000000000", 24 * time.Hour},
		"429, 33 bits": {429, "4294967296", 24 * time.Hour},
		"429, 64 bits": {429, "18446744073709551615", 24 * time.Hour},
		"429, more":    {429, "99999999999999999999999", 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := endpoint(t, HTTPConfig{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", "Wed, 19 Nov 2025 10:00:00 GMT")
				w.Header().Set("Retry-After", c.after)
				w.WriteHeader(c.status)
			})
			var got lowkiq.Postpone
			if err := h.Handle(t.Context(), batch()); !errors.As(err, &got) || got.After != c.want {
				t.Errorf("got %v, want to be postponed by %s", err, c.want)
			}
			if strings.Contains(got.Reason, "secret") || !strings.Contains(got.Reason, "/orders answered") {
				t.Errorf("got %q, want the endpoint without user, password and query", got.Reason)
			}
		})
	}
}

func TestHTTPCancelAbortsTheRequest(t *testing.T) {
	t.Parallel()
	arrived, aborted := make(chan struct{}), make(chan struct{})
	h := endpoint(t, HTTPConfig{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
		close(aborted)
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-arrived
		cancel(lowkiq.ErrLeaseLost)
	}()
	if err := h.Handle(ctx, batch()); !errors.Is(err, lowkiq.ErrLeaseLost) {
		t.Errorf("got %v, want the cause of the cancel", err)
	}
	<-aborted
}

func TestHTTPTimeout(t *testing.T) {
	t.Parallel()
	h := endpoint(t, HTTPConfig{Timeout: 20 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	if err := h.Handle(t.Context(), batch()); err == nil || !strings.Contains(err.Error(), "no answer within 20ms") {
		t.Errorf("got %v, want the timeout named", err)
	}
}

func TestHTTPConfigErrors(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{"": "url", "orders": "url", "ftp://x/": "url", "http://": "url", "http://x:y z/": "url"} {
		if _, err := NewHTTP(HTTPConfig{URL: url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error that names %s", url, err, want)
		}
	}
	if _, err := NewHTTP(HTTPConfig{URL: "ftp://secret:secret@x/?key=secret"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error without secrets", err)
	}
	if _, err := NewHTTP(HTTPConfig{URL: "http://x/", Timeout: -1}); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("got %v, want an error that names timeout", err)
	}
}
