package handler

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// deaf is a connection that loses what is written once it is told so, as one does that a firewall
// has forgotten: nobody closes it.
type deaf struct {
	net.Conn
	lost atomic.Bool
}

func (d *deaf) Write(text []byte) (int, error) {
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

// All batches of an HTTP/2 endpoint share a connection: a dead one must not keep them for the
// whole of their handlers' time, one after the other.
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
		var last *deaf
		h, err := NewHTTP(HTTPConfig{URL: "https://endpoint/"})
		if err != nil {
			t.Fatal(err)
		}
		transport := h.cfg.Client.Transport.(*http.Transport)
		transport.Proxy = nil
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // it is about what comes after
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			last = &deaf{Conn: ours}
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
