package handler

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// resendLate lets a handler send a request again also when the machine stood still meanwhile.
func resendLate(h *HTTP) {
	h.cfg.Client.Transport = resender{h.cfg.Client.Transport.(resender).Transport, time.Minute}
}

// An endpoint that closes a kept connection while the node sends a request has not seen the request. The node sends it again over
// another connection and spends no retry. A failure over a new connection counts.
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
			resendLate(h)
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

// An endpoint that dies of a batch gets it twice at most, however many connections are kept.
func TestDeadlyBatchIsSentTwiceAtMost(t *testing.T) {
	t.Parallel()
	const kept = 8
	var deadly atomic.Int32
	together := make(chan struct{})
	var waiting atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Lowkiq-Queue") == "deadly" {
			deadly.Add(1)
			panic(http.ErrAbortHandler)
		}
		if waiting.Add(1) == kept {
			close(together)
		}
		<-together
	}))
	t.Cleanup(server.Close)
	h := posting(t, server.URL)
	resendLate(h)
	var warm sync.WaitGroup
	for range kept {
		warm.Go(func() {
			if err := h.Handle(t.Context(), batch()); err != nil {
				t.Error(err)
			}
		})
	}
	warm.Wait()
	b := batch()
	b.Shard.Queue = "deadly"
	if err := h.Handle(t.Context(), b); err == nil || !strings.Contains(err.Error(), "closed without an answer") {
		t.Errorf("got %v, want a failure that says how the connection ended", err)
	}
	if n := deadly.Load(); n != 2 {
		t.Errorf("got the batch %d times, want 2", n)
	}
}

// A connection that is closed after a while is a failure: the endpoint may have worked on the batch.
func TestLateCloseIsAFailure(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) > 1 {
			select {
			case <-time.After(resendWithin + 100*time.Millisecond):
			case <-r.Context().Done():
			}
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(server.Close)
	h := posting(t, server.URL)
	for i := range 2 {
		if err := h.Handle(t.Context(), batch()); (err != nil) != (i == 1) {
			t.Errorf("request %d: got %v", i+1, err)
		}
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("got %d requests, want 2", n)
	}
}
