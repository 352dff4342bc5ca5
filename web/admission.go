package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/network/connlimit"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/web/auth"
	"github.com/lowkiq/lowkiq/wire"
)

// A request that the guard allows is admitted. Its connection stays open until the answer is written, and its
// body gets time and memory. All other requests are answered at once. If there are too many connections, those
// without an admitted request are closed first, so that a flooded node still answers /healthz.

// admissions counts the requests that a server has admitted.
type admissions struct {
	max    int64
	count  atomic.Int64
	ending context.Context // ends when the server begins to shut down
}

// arrival is the connection of a request, and the server's admissions.
type arrival struct {
	admissions *admissions
	conn       *connlimit.Conn // nil if the listener has no bound
	ending     context.Context // ends when the server begins to shut down
}

type arrivalKey struct{}

// withArrival puts the connection and the admissions of the server into the context of a connection's requests.
func withArrival(ctx context.Context, c net.Conn, all *admissions) context.Context {
	return context.WithValue(ctx, arrivalKey{}, arrival{admissions: all, conn: connlimit.ConnOf(c), ending: all.ending})
}

// enter admits a request, if there is room. An admitted request holds its connection, so that no new connection closes it. The
// bound on admitted requests keeps connections free for others; see newServer. A request of another server, as in New, has no
// admissions and always enters.
func (a arrival) enter() (leave func(), ok bool) {
	if a.admissions == nil {
		return func() {}, true
	}
	if a.admissions.count.Add(1) > a.admissions.max {
		a.admissions.count.Add(-1)
		return nil, false
	}
	if a.conn != nil {
		a.conn.Hold()
	}
	return func() {
		if a.conn != nil {
			a.conn.Release()
		}
		a.admissions.count.Add(-1)
	}, true
}

// IsBusy reports whether the body of a request could not be read because other requests hold the
// node's memory now.
func IsBusy(err error) bool { return errors.Is(err, memory.ErrBusy) }

// The memory that the body of a request takes. A body is in memory twice, as text and decoded. Each job of a
// push also takes room in lists, in commands to Redis and in the answer.
const (
	copiesOfBody = 2
	bytesOfJob   = 512
	bytesOfNames = 256 // an object of a job's headers
	bytesOfName  = 64  // a name in it, besides its text
)

// jobsMemory returns the bytes that a push needs besides its body.
func jobsMemory(body []byte) int64 {
	return int64(min(bytes.Count(body, []byte(`"id`)), wire.MaxJobs)) * bytesOfJob
}

// headersMemory returns the additional bytes that jobs with headers need, for the names and for a second copy of
// the payload in its envelope.
func headersMemory(jobs []lowkiq.Push) (n int64) {
	for i := range jobs {
		if jobs[i].Header == nil {
			continue
		}
		n += int64(bytesOfNames + len(jobs[i].Payload))
		for name, value := range jobs[i].Header {
			n += int64(bytesOfName + len(name) + len(value))
		}
	}
	return n
}

// admitRequests passes on the requests that the guard allows, unless too many are admitted already. Health
// checks and the login page are not counted, so that they are answered while the node is full. An
// account of the node's request memory goes with each admitted request, and everything that the request has
// reserved is free again when it ends.
func (a *api) admitRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.requiredRole(r) <= auth.Anonymous {
			next.ServeHTTP(w, r)
			return
		}
		came, _ := r.Context().Value(arrivalKey{}).(arrival)
		leave, ok := came.enter()
		if !ok {
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "1")
			NewProblem(http.StatusServiceUnavailable, "the node is answering as many requests as it may; try again").write(w)
			return
		}
		defer leave()
		mine := a.memory.Account()
		defer mine.Close()
		r = r.WithContext(memory.WithAccount(r.Context(), mine))
		if r.ContentLength != 0 {
			r.Body = &measuredBody{ReadCloser: r.Body, account: mine, control: http.NewResponseController(w), end: time.Now().Add(bodyTimeout)}
		}
		next.ServeHTTP(w, r)
	})
}

// measuredBody is a body that must keep arriving. It takes memory for the bytes that have arrived, and not
// for the announced length, so that a client cannot reserve memory without sending anything.
type measuredBody struct {
	io.ReadCloser
	account *memory.Account
	control *http.ResponseController
	end     time.Time
}

// Read lets the client take bodyPause for the next part, and bodyTimeout for the whole.
func (b *measuredBody) Read(p []byte) (int, error) {
	// Not every ResponseWriter has deadlines; those of a real server have.
	_ = b.control.SetReadDeadline(earlierTime(b.end, time.Now().Add(bodyPause)))
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		// A body that was read to its end no longer needs a deadline, and the answer may take long. After a
		// timeout the deadline stays, so that the server does not wait for the rest of the body.
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			_ = b.control.SetReadDeadline(time.Time{})
		}
		return n, err
	}
	if err := b.account.TakeAlone(int64(n) * copiesOfBody); err != nil {
		return 0, fmt.Errorf("read the body: %w", err)
	}
	return n, nil
}

func earlierTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Bounds of the time that a client takes to send a body. They are set per request, because a ReadTimeout of
// the server would also end long answers.
const (
	bodyTimeout      = 5 * time.Minute  // the whole body of an admitted request
	bodyPause        = 30 * time.Second // until its next part
	anonymousTimeout = 5 * time.Second  // the whole body until the guard has admitted the request
)

// withBodyTimeout bounds the wait for the body of a request that is not admitted yet. It also bounds the
// server itself, which reads the rest of a body after its handler.
func withBodyTimeout(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		// Not every ResponseWriter has deadlines; those of a real server have.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(anonymousTimeout))
	}
}

// writePatience is how soon a client must accept a part of its answer. A bound of the whole, like a
// server's WriteTimeout, would end answers that take long for a reason.
const (
	writePatience = 30 * time.Second
	writePiece    = 64 << 10 // bytes of a part
)

// patientListener is a listener whose connections close if a client accepts no bytes for writePatience.
type patientListener struct{ net.Listener }

func (l patientListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return patientConn{conn}, nil
}

type patientConn struct{ net.Conn }

// NetConn is the connection below.
func (c patientConn) NetConn() net.Conn { return c.Conn }

// CloseWrite lets the server answer a request that it has not read to its end. A connection that is
// closed at once is reset, and its client loses the answer.
func (c patientConn) CloseWrite() error {
	if limited := connlimit.ConnOf(c.Conn); limited != nil {
		if tcp, ok := limited.Conn.(*net.TCPConn); ok {
			return tcp.CloseWrite()
		}
	}
	return nil
}

// Write sets a new deadline for each part, because the deadline of an earlier answer may still stand.
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
