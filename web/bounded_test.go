package web

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// flood opens connections to a server, each of which begins with text and never ends it.
func flood(t *testing.T, address, text string, n int, secure bool) {
	t.Helper()
	for range n {
		conn, err := net.Dial("tcp", address)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		if secure {
			conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // the test looks at who is let in
		}
		_, _ = io.WriteString(conn, text) // it may have been closed for a later one by now
	}
}

// started is a server of handler for at most bound connections; 0 = as many as a node's.
func started(t *testing.T, handler http.Handler, bound int, secure bool) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.Config = newServer("", handler, bound)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // of handshakes that are cut off
	s.Listener = boundConns(s.Listener, bound)
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// However many clients send nothing, half a header or half a body, whether they may ask or not: a
// probe of the node's health is answered at once, and so is who has a token if the others have
// none.
func TestHealthIsAnsweredInAFlood(t *testing.T) {
	const bound, clients = 16, 40
	post := "POST " + ordersPath + "jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
	for _, c := range []struct {
		name, text     string
		tokens, secure bool
		admitted       bool // what the flood asks is its right
	}{
		{name: "nothing", tokens: true},
		{name: "half a header", text: "GET /healthz HTTP/1.1\r\nX: ", tokens: true},
		{name: "bodies without a token", text: post + "\r\n{", tokens: true},
		{name: "bodies of logins", text: "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\ntoken=", tokens: true},
		{name: "bodies with a token", text: post + "Authorization: Bearer " + pushToken + "\r\n\r\n{", tokens: true, admitted: true},
		{name: "bodies where nobody is asked for one", text: post + "\r\n{", admitted: true},
		{name: "no request, TLS", tokens: true, secure: true},
		{name: "bodies without a token, TLS", text: post + "\r\n{", tokens: true, secure: true},
		{name: "bodies with a token, TLS", text: post + "Authorization: Bearer " + pushToken + "\r\n\r\n{", tokens: true, secure: true, admitted: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, shared(t), func(cfg *Config) {
				if c.tokens {
					cfg.Tokens = someTokens
				}
			})
			w.fill()
			var err error
			for range 3 { // a busy machine may be too slow for once
				s := started(t, w.handler, bound, c.secure)
				flood(t, s.Listener.Addr().String(), c.text, clients, c.secure)
				if err = flooded(t, s, c.admitted); err == nil {
					return
				}
			}
			t.Error(err)
		})
	}
}

// flooded asks a server that is flooded, and returns what is wrong with its answers. The flood itself is over after some seconds.
func flooded(t *testing.T, s *httptest.Server, admitted bool) error {
	ask := func(path, token string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
		must(t, err)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		r.Close = true
		answer, err := s.Client().Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: got %s, %w, want 200", path, answer.Status, err)
		}
		return nil
	}
	for range 5 {
		if err := ask("/healthz", ""); err != nil {
			return err
		}
	}
	if admitted {
		return nil
	}
	return ask("/api/v1/queues", readToken)
}

// Beyond what may be admitted at once, requests are refused and told to try again; health is not.
func TestAdmittedRequestsAreBounded(t *testing.T) {
	t.Parallel()
	const bound, most = 8, 7
	w := newWorld(t, unreachable, func(cfg *Config) {
		cfg.Pages = pagesOf(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	})
	s := started(t, w.handler, bound, false)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	for range most {
		answer, err := client.Get(s.URL + "/") //nolint:bodyclose // it goes on until the test ends
		must(t, err)
		expectStatus(t, answer, http.StatusOK)
		defer answer.Body.Close()
	}
	for range 3 {
		answer, err := client.Get(s.URL + "/")
		must(t, err)
		expectStatus(t, answer, http.StatusServiceUnavailable)
		if answer.Header.Get("Retry-After") == "" {
			t.Error("got no Retry-After")
		}
		must(t, answer.Body.Close())
		answer, err = client.Get(s.URL + "/healthz")
		must(t, err)
		expectStatus(t, answer, http.StatusOK)
		must(t, answer.Body.Close())
	}
}

func expectStatus(t *testing.T, answer *http.Response, want int) {
	t.Helper()
	if answer.StatusCode != want {
		t.Fatalf("got %s, want %d", answer.Status, want)
	}
}

// TestIdleConnectionsKeepNobodyOut checks that clients that never close their connections leave room for others.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	const bound, clients = 8, 20
	s := started(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }), bound, false)
	for i := range clients {
		keeps := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute} // the server waits for longer
		t.Cleanup(keeps.CloseIdleConnections)
		answer, err := keeps.Get(s.URL)
		if err != nil {
			t.Fatalf("client %d of %d at a server of %d connections: %v", i+1, clients, bound, err)
		}
		_, err = io.Copy(io.Discard, answer.Body)
		must(t, err)
		must(t, answer.Body.Close())
	}
}

// A header of any size costs a node no more than its limit.
func TestHeaderLimit(t *testing.T) {
	t.Parallel()
	s := started(t, guarded(t).handler, 0, false)
	for size, want := range map[int]int{16 << 10: http.StatusOK, 128 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/healthz", nil)
		must(t, err)
		r.Header.Set("Authorization", strings.Repeat("x", size))
		answer, err := s.Client().Do(r)
		must(t, err)
		must(t, answerIs(answer, want))
	}
}
