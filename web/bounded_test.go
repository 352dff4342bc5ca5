package web

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// crowd is a server whose answers wait to be let go, and how many connections it has.
type crowd struct {
	*http.Server
	letGo      chan struct{} // one answer per value
	open, most atomic.Int64
}

func newCrowd() *crowd {
	c := &crowd{letGo: make(chan struct{})}
	c.Server = Server("", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-c.letGo:
		case <-r.Context().Done():
		}
	}), 0)
	c.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if n := c.open.Add(1); n > c.most.Load() {
				c.most.Store(n) // connections are accepted one after the other
			}
		case http.StateClosed:
			c.open.Add(-1)
		}
	}
	return c
}

// However many connect, a server has no more connections than its bound; all are served in the
// end, and those that wait do not keep it from ending.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	const bound, clients = 3, 8
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			c, served := newCrowd(), make(chan error, 1)
			c.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // of handshakes that are cut off
			serve := c.Serve
			if secure {
				c.TLSConfig = &tls.Config{Certificates: certificates(t)}
				serve = func(l net.Listener) error { return c.ServeTLS(l, "", "") }
			}
			answers := make(chan error, clients+1)
			ask := func() {
				conn, err := net.Dial("tcp", listener.Addr().String())
				must(t, err)
				must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
				go func() { answers <- askOnce(conn, secure) }()
			}
			for range clients {
				ask()
			}
			go func() { served <- serve(Bounded(listener, bound)) }()
			for range clients {
				c.letGo <- struct{}{}
				must(t, <-answers)
			}
			if got := c.most.Load(); got != bound {
				t.Errorf("got %d connections at once, want %d", got, bound)
			}
			for range bound + 1 {
				ask()
			}
			for deadline := time.Now().Add(time.Minute); c.open.Load() < bound; {
				if time.Now().After(deadline) {
					t.Fatal("the connections never came")
				}
				time.Sleep(time.Millisecond)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_ = c.Shutdown(ctx) // it does not wait: answers are outstanding
			must(t, c.Close())
			if err := <-served; err != http.ErrServerClosed {
				t.Errorf("got %v, want the end of the server", err)
			}
		})
	}
}

// TestIdleConnectionsKeepNobodyOut: clients that never close theirs leave room for others.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	const bound, clients = 8, 20
	s := httptest.NewUnstartedServer(nil)
	s.Config = Server("", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }), bound) //nolint:errcheck // the client sees it
	s.Listener = Bounded(s.Listener, bound)
	s.Start()
	defer s.Close()
	for i := range clients {
		keeps := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
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

// askOnce asks over a connection and closes it.
func askOnce(conn net.Conn, secure bool) error {
	defer conn.Close()
	if secure {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // the test looks at counts
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// certificates are those of the standard library's test server.
func certificates(t *testing.T) []tls.Certificate {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	return server.TLS.Certificates
}
