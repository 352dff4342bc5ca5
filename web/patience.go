package web

import (
	"net"
	"net/http"
	"time"
)

// How long a client may take to send a body. It is set per request, as a ReadTimeout of the server would
// also end long answers.
const (
	bodyTimeout     = 5 * time.Minute  // the whole, of an admitted request
	bodyPause       = 30 * time.Second // until its next part
	strangerTimeout = 5 * time.Second  // the whole, until the guard has admitted the request
)

// withBodyTimeout bounds how long a request's body is waited for before it is admitted, also by the server
// itself, which reads what a handler has left of it.
func withBodyTimeout(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		// Not every ResponseWriter has deadlines; those of a real server have.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(strangerTimeout))
	}
}

// writePatience is how long a client may take to accept a part of its answer. A bound of the
// whole, like a server's WriteTimeout, would end answers that rightly take long.
const (
	writePatience = 30 * time.Second
	writePiece    = 64 << 10 // bytes of a part
)

// patient is a listener whose connections give up on clients that take nothing.
type patient struct{ net.Listener }

func (l patient) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return patientConn{conn}, nil
}

type patientConn struct{ net.Conn }

// NetConn is the connection below.
func (c patientConn) NetConn() net.Conn { return c.Conn }

// Write sets the deadline anew for each part: one of an answer before must not outlive it.
func (c patientConn) Write(text []byte) (n int, err error) {
	for err == nil && n < len(text) {
		if err = c.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
			return n, err
		}
		var some int
		some, err = c.Conn.Write(text[n:min(len(text), n+writePiece)])
		n += some
	}
	return n, err
}
