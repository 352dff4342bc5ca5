package handler

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
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
		"no content":         {204, nil, "", ""},
		"ok":                 {200, nil, `{"ok":true}`, ""},
		"plain text":         {200, map[string]string{"Content-Type": "text/plain"}, "OK", ""},
		"failed id":          {200, nil, `{"failed":{"a":"no such account"}}`, "a: no such account"},
		"refused":            {200, nil, `{"ok":false,"error":"away"}`, "away"},
		"unknown id":         {200, nil, `{"failed":{"zz":"x"}}`, `named "zz" as failed, which is not in the batch`},
		"other JSON":         {200, nil, `{"status":"fine"}`, `200 OK, but the response is no answer: line 1, column 11: unknown field "status"`},
		"JSON by its type":   {200, map[string]string{"Content-Type": "application/json"}, `nope`, "is no answer"},
		"too long":           {200, nil, strings.Repeat(" ", answerLimit(batch())+1), "longer than 1703936 bytes"},
		"server error":       {500, nil, "boom", `500 Internal Server Error: "boom"`},
		"long server error":  {500, nil, strings.Repeat("x", 600), strings.Repeat("x", 512) + `"…`},
		"redirect":           {302, map[string]string{"Location": "http://u:s3cret@h/else?token=s3cret"}, "", "302 Found to http://h/else; the node follows no redirect, so the handler's URL must be the last address: (nothing)"},
		"page":               {200, map[string]string{"Content-Type": "text/html"}, "\n<!DOCTYPE html>\n<title>Log in</title>", `200 OK, but the response is a web page; it must be empty, or an answer such as {"ok":true}: "<!DOCTYPE html>`},
		"old page":           {200, nil, "<HTML><body>ok", "is a web page"},
		"XML":                {200, nil, "<ok/>", ""},
		"retry-after of 500": {500, map[string]string{"Retry-After": "5"}, "", "500 Internal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, client := range []*http.Client{nil, newClient()} {
				h := endpoint(t, HTTPConfig{Client: client}, func(w http.ResponseWriter, r *http.Request) {
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
			}
		})
	}
}

// A 429 with Lowkiq-Limit postpones a whole group.
func TestHTTPLimits(t *testing.T) {
	t.Parallel()
	h := endpoint(t, HTTPConfig{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Lowkiq-Limit", "acme:")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	var got lowkiq.Throttle
	if err := h.Handle(t.Context(), batch()); !errors.As(err, &got) || got != (lowkiq.Throttle{Prefix: "acme:", For: 7 * time.Second}) {
		t.Errorf("got %v, want acme: to be limited for 7s", err)
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
		"503, none":    {503, "", time.Second},
		"429, none":    {429, "", time.Second},
		"503, no time": {503, "soon", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := endpoint(t, HTTPConfig{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", "Wed, 19 Nov 2025 10:00:00 GMT")
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
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

// responses answers requests by itself.
type responses func(*http.Request) *http.Response

func (f responses) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

// TestHTTPBusyPauses checks that an endpoint that answers 503 without Retry-After is asked after 1, 1, 2, 4 … 30 s,
// until it answers something else.
func TestHTTPBusyPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		status, header := http.StatusServiceUnavailable, http.Header{}
		h, err := NewHTTP(HTTPConfig{URL: "http://endpoint/", Client: &http.Client{Transport: responses(func(*http.Request) *http.Response {
			return &http.Response{StatusCode: status, Status: fmt.Sprint(status), Header: header, Body: http.NoBody}
		})}})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			for _, want := range []time.Duration{1, 1, 2, 4, 8, 16, 30, 30} {
				var got lowkiq.Postpone
				if err := h.Handle(t.Context(), batch()); !errors.As(err, &got) || got.After != want*time.Second {
					t.Errorf("got %v, want to be postponed by %ds", err, want)
				}
				time.Sleep(got.After)
			}
			status = http.StatusInternalServerError
			if err := h.Handle(t.Context(), batch()); err == nil || errors.As(err, new(lowkiq.Postpone)) {
				t.Errorf("got %v, want a failure", err)
			}
			status = http.StatusServiceUnavailable
		}
		header.Set("Lowkiq-Limit", "acme:")
		var got lowkiq.Throttle
		if err := h.Handle(t.Context(), batch()); !errors.As(err, &got) || got != (lowkiq.Throttle{Prefix: "acme:", For: time.Second}) {
			t.Errorf("got %v, want acme: to be limited for 1s", err)
		}
	})
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

// lossy is a connection that loses bytes once the test says so, like a connection that a firewall has
// forgotten. Neither end learns of it.
type lossy struct {
	net.Conn
	lost atomic.Bool
}

func (d *lossy) Write(text []byte) (int, error) {
	if d.lost.Load() {
		return len(text), nil
	}
	return d.Conn.Write(text)
}

// dialed is a listener of pipes.
type dialed chan net.Conn

func (d dialed) Accept() (net.Conn, error) {
	if conn, ok := <-d; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (d dialed) Close() error   { return nil }
func (d dialed) Addr() net.Addr { return &net.TCPAddr{} }

// certificates are those of the standard library's test server.
func certificates(t *testing.T) []tls.Certificate {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	return server.TLS.Certificates
}

// All batches of an HTTP/2 endpoint share a connection. A dead connection must not keep them, one
// after the other, for the whole time of their handlers.
func TestHTTPNoticesADeadConnection(t *testing.T) {
	t.Parallel()
	known := certificates(t)
	synctest.Test(t, func(t *testing.T) {
		conns := make(dialed)
		server := &http.Server{TLSConfig: &tls.Config{Certificates: known}, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				t.Errorf("got %s, want HTTP/2", r.Proto)
			}
		})}
		served := make(chan error, 1)
		go func() { served <- server.ServeTLS(conns, "", "") }()
		var last *lossy
		h, err := NewHTTP(HTTPConfig{URL: "https://endpoint/"})
		if err != nil {
			t.Fatal(err)
		}
		transport := h.cfg.Client.Transport.(resender).Transport
		transport.Proxy = nil
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // it is about what comes after
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			last = &lossy{Conn: ours}
			conns <- theirs
			return last, nil
		}
		if err := h.Handle(t.Context(), batch()); err != nil {
			t.Fatalf("got %v, want the first batch to be done", err)
		}
		last.lost.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		if err := h.Handle(ctx, batch()); err == nil || time.Since(began) > 3*time.Minute {
			t.Errorf("got %v after %s, want an error within three minutes", err, time.Since(began))
		}
		if err := h.Handle(ctx, batch()); err != nil {
			t.Errorf("got %v, want a new connection for the next batch", err)
		}
		h.Close() //nolint:errcheck // it is always nil
		close(conns)
		server.Close() //nolint:errcheck // all is over
		<-served
	})
}

// lock is a dialer that can be shut.
type lock struct {
	shut  atomic.Bool
	tries atomic.Int64
	last  atomic.Value // the address
}

func (l *lock) dial(_ context.Context, network, address string) (net.Conn, error) {
	l.tries.Add(1)
	l.last.Store(address)
	if l.shut.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
	}
	ours, theirs := net.Pipe()
	theirs.Close()
	return ours, nil
}

// probed runs a handler whose connections come from the lock.
func probed(t *testing.T, l *lock, endpoint string, proxy *url.URL) *HTTP {
	t.Helper()
	h, err := NewHTTP(HTTPConfig{URL: endpoint, Log: slog.New(slog.DiscardHandler),
		Client: &http.Client{Transport: &http.Transport{DialContext: l.dial, Proxy: http.ProxyURL(proxy)}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return h
}

// A handler is not ready if its endpoint has refused connections for more than 10 s. No batch is needed
// to find that out at the start. The handler is ready again soon after the endpoint is back, also
// without any batch.
func TestHTTPReady(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]bool{"from the start": true, "since a batch": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lock{}
				l.shut.Store(early)
				h := probed(t, l, "http://user:secret@endpoint/jobs?key=secret", nil)
				synctest.Wait()
				if !early {
					l.shut.Store(true)
					var put lowkiq.Postpone
					if err := h.Handle(t.Context(), batch()); !errors.As(err, &put) {
						t.Fatalf("got %v, want the batch to be postponed", err)
					}
				}
				time.Sleep(unreadyAfter - time.Second)
				if err := h.Ready(); err != nil {
					t.Errorf("after 9 s: got %v, want it to be ready", err)
				}
				time.Sleep(2 * time.Second)
				text := fmt.Sprint(h.Ready())
				if !strings.Contains(text, "http://endpoint/jobs: dial tcp: connection refused") || strings.Contains(text, "secret") {
					t.Errorf("after 11 s: got %v, want that the endpoint refuses connections, without secrets", text)
				}
				time.Sleep(time.Hour)
				before := l.tries.Load()
				time.Sleep(time.Minute)
				if n := l.tries.Load() - before; n < 12 || n > 24 {
					t.Errorf("%d connections were tried in a minute, want one every 2.5 to 5 s", n)
				}
				l.shut.Store(false)
				time.Sleep(maxProbePause)
				if err := h.Ready(); err != nil {
					t.Errorf("5 s after it is back: got %v, want it to be ready", err)
				}
				before = l.tries.Load()
				time.Sleep(time.Minute)
				if n := l.tries.Load() - before; n < 11 || n > 13 {
					t.Errorf("%d connections in a minute without an outage, want one every 5 s", n)
				}
				l.shut.Store(true)
				time.Sleep(idleProbe + unreadyAfter + time.Second)
				if h.Ready() == nil {
					t.Error("a handler without batches does not notice that its endpoint is gone")
				}
			})
		})
	}
}

// The probe connects to the same address as requests.
func TestHTTPProbesWhereRequestsGo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ endpoint, proxy, want string }{
		{"http://endpoint/", "", "endpoint:80"},
		{"https://endpoint/", "", "endpoint:443"},
		{"https://[2001:db8::1]:8443/", "", "[2001:db8::1]:8443"},
		{"https://endpoint/", "http://proxy:3128", "proxy:3128"},
		{"http://endpoint/", "socks5://proxy", "proxy:1080"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var proxy *url.URL
			if c.proxy != "" {
				proxy, _ = url.Parse(c.proxy)
			}
			l := &lock{}
			probed(t, l, c.endpoint, proxy)
			synctest.Wait()
			if got := l.last.Load(); got != c.want {
				t.Errorf("%s by %q: connected to %v, want %s", c.endpoint, c.proxy, got, c.want)
			}
		})
	}
}

type tripper struct{}

func (tripper) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Err: errors.New("gone")}
}

// If a client connects in its own way, the handler cannot find out that its endpoint is back. So it
// never says that it is not ready, because it would say so for ever.
func TestHTTPReadyWithAStrangeClient(t *testing.T) {
	t.Parallel()
	for _, cfg := range []HTTPConfig{
		{URL: "http://endpoint/", Client: &http.Client{Transport: tripper{}}},
		{URL: "http://bücher.example/", Client: &http.Client{Transport: &http.Transport{DialContext: (&lock{}).dial}}},
	} {
		cfg.Log = slog.New(slog.DiscardHandler)
		h, err := NewHTTP(cfg)
		if err != nil {
			t.Fatal(err)
		}
		h.down.setFailed(errors.New("gone"), time.Now().Add(-time.Hour))
		if err := h.Ready(); err != nil {
			t.Errorf("%s: got %v, want nil", cfg.URL, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// TestHTTPProbesWithItsOwnClient checks that a handler without a client in its configuration probes its endpoint with a
// connection of its own.
func TestHTTPProbesWithItsOwnClient(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	h, err := NewHTTP(HTTPConfig{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if h.dial == nil {
		t.Fatal("it does not know how to connect to the endpoint")
	}
	if err := h.dial(t.Context()); err != nil {
		t.Errorf("got %v, want a connection", err)
	}
}

// TestHTTPProbesShakeHands checks that an https endpoint is out of reach until it shakes hands, for probes and for
// batches, though it accepts connections.
func TestHTTPProbesShakeHands(t *testing.T) {
	t.Parallel()
	silent := raw(t, func(conn net.Conn) { io.Copy(io.Discard, conn) }) //nolint:errcheck // until the probe gives up
	plain := raw(t, func(conn net.Conn) { io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n") })
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	for name, c := range map[string]struct {
		url    string
		client *http.Client // nil: the handler's own
		ready  bool
	}{
		"silent":            {"https://" + silent, nil, false},
		"no TLS":            {"https://" + plain, nil, false},
		"unknown authority": {secure.URL, nil, false},
		"TLS":               {secure.URL, secure.Client(), true},
		"plain http":        {"http://" + silent, nil, true},
	} {
		timeout := 200 * time.Millisecond
		if c.ready { // a busy machine may need longer
			timeout = time.Minute
		}
		h, err := NewHTTP(HTTPConfig{URL: c.url, Client: c.client, Log: slog.New(slog.DiscardHandler), Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		h.down.setFailed(errors.New("gone"), time.Now().Add(-time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		h.probeEndpoint(ctx)
		cancel()
		if ready := h.Ready() == nil; ready != c.ready {
			t.Errorf("%s: ready after a probe: %v, want %v", name, ready, c.ready)
		}
		if !c.ready {
			if err := h.Handle(t.Context(), batch()); !errors.As(err, new(lowkiq.Postpone)) {
				t.Errorf("%s: got %v, want the batch to be postponed, because the endpoint does not have it", name, err)
			}
		}
		h.Close()
	}
}

// TestOutagePauses checks that a batch is tried again after 1, 1, 2, 4 … 30 s of an outage. The next outage begins
// anew.
func TestOutagePauses(t *testing.T) {
	t.Parallel()
	var o outage
	now := time.Now()
	for range 2 {
		for _, want := range []time.Duration{1, 1, 2, 4, 8, 16, 30, 30} {
			var got lowkiq.Postpone
			if err := o.postpone(slog.New(slog.DiscardHandler), "x", errors.New("gone"), now); !errors.As(err, &got) || got.After != want*time.Second {
				t.Errorf("got %v, want %ds", err, want)
			}
			now = now.Add(got.After)
		}
		o.end()
	}
}

func TestOutageWarnings(t *testing.T) {
	t.Parallel()
	var o outage
	var text bytes.Buffer
	log, now := slog.New(slog.NewTextHandler(&text, nil)), time.Now()
	for _, at := range []time.Duration{0, 1, 2, time.Second} {
		_ = o.postpone(log, "http://x/", errors.New("gone"), now.Add(at))
	}
	if got := text.String(); strings.Count(got, "level=WARN") != 2 || strings.Count(got, "handler=http://x/") != 2 || !strings.Contains(got, "left_out=2") {
		t.Errorf("got %s, want two warnings of http://x/, the second of which counts two that were left out", got)
	}
}

// TestHTTPUnreachable checks that an endpoint that cannot be reached has no batch, so no retry is counted.
func TestHTTPUnreachable(t *testing.T) {
	t.Parallel()
	for url, shown := range map[string]string{
		"http://secret:secret@127.0.0.1:1/a?key=secret": "post http://127.0.0.1:1/a: dial tcp", // a port that no other test can be given
		"http://secret:secret@no.such.host.invalid/":    "post http://no.such.host.invalid/: dial tcp: lookup",
	} {
		var text bytes.Buffer
		h, err := NewHTTP(HTTPConfig{URL: url, Log: slog.New(slog.NewTextHandler(&text, nil))})
		if err != nil {
			t.Fatal(err)
		}
		var got lowkiq.Postpone
		if err := h.Handle(t.Context(), batch()); !errors.As(err, &got) || got.After != time.Second || !strings.HasPrefix(got.Reason, shown) {
			t.Errorf("%s: got %v, want to be postponed by 1s, the address and the reason once", url, err)
		}
		logbuf.Flush(h.cfg.Log, time.Minute)
		if log := text.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, h.url) || strings.Contains(log, "secret") {
			t.Errorf("got %s, want a warning that names %s without secrets", log, h.url)
		}
	}
}
