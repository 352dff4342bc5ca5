package web

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A header of any size costs a node no more than its limit.
func TestHeaderLimit(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := server("", guarded(t).handler, 0)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		must(t, server.Shutdown(context.WithoutCancel(t.Context())))
		<-served
	}()
	for size, want := range map[int]int{16 << 10: 200, 128 << 10: 431} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+"/healthz", nil)
		must(t, err)
		r.Header.Set("Authorization", strings.Repeat("x", size))
		r.Close = true
		resp, err := http.DefaultClient.Do(r)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("header of %d bytes: got %d, want %d", size, resp.StatusCode, want)
		}
	}
}
