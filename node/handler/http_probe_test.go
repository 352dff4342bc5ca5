package handler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
)

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

// probed runs a handler whose connections are the lock's.
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

// An endpoint that cannot be connected to for more than 10 s makes its handler not ready, without any
// batch if it was so at the start; it is ready again soon after the endpoint is back, without any batch.
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
				time.Sleep(time.Hour)
				if n := l.tries.Load() - before; n > 1 {
					t.Errorf("%d connections in an hour without an outage, want none but one perhaps", n)
				}
			})
		})
	}
}

// The probe goes where requests go.
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

// Of a client that connects in its own way nobody can tell that its endpoint is back: it never says that it is
// not ready, or it would be so for ever.
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
		h.down.failed(errors.New("gone"), time.Now().Add(-time.Hour))
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
