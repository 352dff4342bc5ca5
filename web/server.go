package web

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/connlimit"
)

// maxConnections is how many clients a node is connected to at once. Connections cost
// memory and file descriptors, which the node needs for Redis and the other nodes.
const maxConnections = 1024

// maxHeader is most bytes of a request's header: whoever can reach the port may send as much on each connection.
const maxHeader = 16 << 10

// server returns a server for handler that does not wait for ever for slow or silent
// clients. It does not listen. Answers may take any time: profiles and bulk actions do.
// Near the bound of n connections, maxConnections if n is 0, answers end their connection:
// clients that keep idle ones must not keep out others. Seven eighths of n requests are admitted at
// once, so that of the connections some can always be closed for a probe of the node's health.
func server(addr string, handler http.Handler, n int) *http.Server {
	var open atomic.Int64
	n = cmp.Or(n, maxConnections)
	near := int64(n) * 3 / 4
	all := &admissions{most: int64(n - max(1, n/8))}
	return &http.Server{
		Addr: addr,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if open.Load() > near {
				w.Header().Set("Connection", "close")
			}
			withBodyTimeout(w, r)
			handler.ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return withArrival(ctx, c, all) },
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed, http.StateHijacked:
				open.Add(-1)
			}
		},
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		// What HTTP/2 takes from a client before anybody reads it counts for each connection.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100, MaxReceiveBufferPerConnection: 128 << 10, MaxReceiveBufferPerStream: 64 << 10},
	}
}

// bounded is a listener with at most n connections open at once, maxConnections if n is 0. One more
// closes one whose client has nothing under way that the server has admitted. A client that takes nothing of its answer for half
// a minute loses its connection.
func bounded(l net.Listener, n int) net.Listener {
	return patient{connlimit.Listener{Listener: l, Set: connlimit.New(connlimit.Limit{Total: cmp.Or(n, maxConnections)})}}
}
