package handler

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// An endpoint that closes a kept-alive connection while the node sends a request has not seen it: the request is
// repeated over a new connection, and no retry is spent. What happens to a request over a new connection counts.
func TestClosedIdleConnectionIsNoFailure(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"small": 10, "large": 20 << 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			requests := map[string]int{} // by the client's address
			broken := false              // all connections are closed, new ones, too
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				requests[r.RemoteAddr]++
				closes := broken || requests[r.RemoteAddr] > 1
				mu.Unlock()
				if closes {
					panic(http.ErrAbortHandler)
				}
			}))
			t.Cleanup(server.Close)
			h, err := NewHTTP(HTTPConfig{URL: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { h.Close() })
			b := &lowkiq.Batch{Shard: lowkiq.Shard{Queue: "q"}, Jobs: []lowkiq.Job{{ID: "a", Payloads: []lowkiq.Payload{{Data: bytes.Repeat([]byte("x"), size)}}}}}
			for range 3 {
				if err := h.Handle(t.Context(), b); err != nil {
					t.Fatal(err)
				}
			}
			mu.Lock()
			broken = true
			before := len(requests)
			mu.Unlock()
			if err := h.Handle(t.Context(), b); err == nil {
				t.Error("an endpoint that closes new connections has failed nothing")
			}
			mu.Lock()
			defer mu.Unlock()
			if got := len(requests) - before; got > 1 {
				t.Errorf("got %d new connections for a request that fails, want 1 at most", got)
			}
		})
	}
}
