package web

import (
	"cmp"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
)

// MaxConnections is how many clients a node is connected to at once. Connections cost
// memory and file descriptors, which the node needs for Redis and the other nodes.
const MaxConnections = 1024

// Server returns a server for handler that does not wait for ever for slow or silent
// clients. It does not listen. Answers may take any time: profiles and bulk actions do.
// Near the bound of n connections, MaxConnections if n is 0, answers end their connection:
// clients that keep idle ones must not keep out a probe of the node's health.
func Server(addr string, handler http.Handler, n int) *http.Server {
	var open atomic.Int64
	near := int64(cmp.Or(n, MaxConnections)) * 3 / 4
	return &http.Server{
		Addr: addr,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if open.Load() > near {
				w.Header().Set("Connection", "close")
			}
			withBodyTimeout(w, r)
			handler.ServeHTTP(w, r)
		}),
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
		MaxHeaderBytes:    64 << 10,
	}
}

// Bounded is a listener with at most n connections open at once, MaxConnections if n is 0. Others
// wait in the system's queue until one ends. A client that takes nothing of its answer for half
// a minute loses its connection.
func Bounded(l net.Listener, n int) net.Listener {
	return patient{netutil.LimitListener(l, cmp.Or(n, MaxConnections))}
}
