package web

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/network/certs"
	"github.com/lowkiq/lowkiq/internal/network/hosts"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/internal/testing/certtest"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/web/auth"
)

// serving runs a node with an API, and returns its URL and what ends it.
func serving(t *testing.T, cfg Config) (url string, stop func()) {
	t.Helper()
	n, err := node.New(node.Config{Name: "n1", Redis: redistest.Start(t).URL()})
	must(t, err)
	must(t, n.Handle(node.QueueConfig{Name: "orders", Shards: 2}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil })))
	must(t, Serve(n, cfg))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	patience, give := context.WithTimeout(t.Context(), time.Minute)
	defer give()
	for n.Ready() != nil {
		must(t, sleep.For(patience, 5*time.Millisecond))
	}
	return n.URL(), func() { cancel(); must(t, <-ended) }
}

// The API is served with TLS that asks for certificates of everybody but probes. The lease tells
// its address, and the port is free once the node has ended.
func TestServeWithTLS(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := ca.Server("n1")
	// The system gives a port that the node lets go to the next outgoing connection, but none of these.
	address := redistest.Addresses(t, 1)[0]
	url, stop := serving(t, Config{
		Address: address,
		TLS:     TLS{CertFile: cert, KeyFile: key, CAFile: ca.File, ClientAuth: true}, Tokens: auth.Tokens{Admin: []string{adminToken}},
	})
	cert, key = ca.Client("caller")
	known := certs.Files{Cert: cert, Key: key, CA: ca.File}
	unknown := certs.Files{CA: ca.File}
	for _, c := range []struct {
		path, token string
		with        certs.Files
		status      int
		says        string
	}{
		{"/healthz", "", unknown, 200, "ok"},
		{"/metrics", adminToken, unknown, 403, "needs a client certificate"},
		{"/metrics", "", known, 401, "admin token"},
		{"/metrics", adminToken, known, 200, `lowkiq_queue_jobs{queue="orders"`},
		{"/api/v1/status", adminToken, known, 200, `"http":"` + url + `"`},
	} {
		store, err := certs.Open(c.with, nil)
		must(t, err)
		status, body := ask(t, url+c.path, c.token, store.ClientConfig())
		if status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s with token %q: got %d %s, want %d %s", c.path, c.token, status, body, c.status, c.says)
		}
	}
	if status, _ := ask(t, strings.Replace(url, "https", "http", 1)+"/healthz", "", nil); status != 400 {
		t.Errorf("plain HTTP: got %d, want 400", status)
	}
	stop()
	free, err := redistest.Listen(address)
	must(t, err)
	must(t, free.Close())
}

func ask(t *testing.T, url, token string, config *tls.Config) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}).Do(r)
	must(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(body)
}

// TestLogDefault checks that an API without a configured logger still logs errors.
func TestLogDefault(t *testing.T) {
	t.Parallel()
	cfg, err := Config{}.withDefaults()
	must(t, err)
	if !cfg.Log.Enabled(t.Context(), slog.LevelError) {
		t.Error("an error is not logged")
	}
}

// An API that listens everywhere tells others an address that they can use.
func TestServeEverywhere(t *testing.T) {
	t.Parallel()
	cfg, err := Config{Address: ":0", Insecure: true}.withDefaults()
	if own, none := hosts.OutwardAddress(); none == nil {
		must(t, err)
		listener, err := net.Listen("tcp", cfg.Address)
		must(t, err)
		defer listener.Close()
		a := &attached{cfg: cfg, listener: listener}
		if host, _, err := net.SplitHostPort(strings.TrimPrefix(a.url(), "http://")); err != nil || host != own {
			t.Errorf("got %s, %v, want the host %s", a.url(), err, own)
		}
	}
}
