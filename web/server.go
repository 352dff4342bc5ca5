package web

import (
	"net/http"
	"time"
)

// bodyTimeout is how long a client may take to send a body. It is set per request, as
// a ReadTimeout of the server would also end long answers.
const bodyTimeout = 5 * time.Minute

// Server returns a server for handler that does not wait for ever for slow or silent
// clients. It does not listen. Answers may take any time: profiles and bulk actions do.
func Server(addr string, handler http.Handler) *http.Server {
	return &http.Server{
		Addr:              addr,
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}
