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
	"github.com/lowkiq/lowkiq/internal/connlimit"
	"github.com/lowkiq/lowkiq/web/auth"
	"github.com/lowkiq/lowkiq/wire"
)

// A request that may do what it asks is admitted: its connection is held while it lasts, and its
// body has time and memory. All others are answered at once, and their connections are closed for
// others when there are too many: so a node that is flooded answers /healthz.

// admissions counts the requests that a server has admitted.
type admissions struct {
	most   int64
	now    atomic.Int64
	ending context.Context // over when the server is to end
}

// arrival is the connection of a request, and the server's admissions.
type arrival struct {
	admissions *admissions
	conn       *connlimit.Conn // nil if the listener has no bound
	ending     context.Context // over when the server is to end
}

type arrivalKey struct{}

// withArrival notes the connection for the requests that come over it.
func withArrival(ctx context.Context, c net.Conn, all *admissions) context.Context {
	return context.WithValue(ctx, arrivalKey{}, arrival{admissions: all, conn: connlimit.Of(c), ending: all.ending})
}

// enter admits a request, if there is room.
func (a arrival) enter() (leave func(), ok bool) {
	if a.admissions == nil {
		return func() {}, true
	}
	if a.admissions.now.Add(1) > a.admissions.most {
		a.admissions.now.Add(-1)
		return nil, false
	}
	if a.conn != nil {
		a.conn.Hold()
	}
	return func() {
		if a.conn != nil {
			a.conn.Release()
		}
		a.admissions.now.Add(-1)
	}, true
}

// memory is the bytes that all requests may hold at once.
type memory struct {
	most int64
	used atomic.Int64
}

// account is what one request holds of the memory.
type account struct {
	memory *memory
	taken  int64
}

type accountKey struct{}

// errMemory refuses what there is no memory for.
var errMemory = errors.New("the node holds as much for other requests as it may (node.request_memory): try again")

// Busy reports whether an error of reading a request's body means that the node has no memory for
// it now.
func Busy(err error) bool { return errors.Is(err, errMemory) }

// take adds n bytes to what the request holds. One that alone needs all the memory gets it if no
// other holds any, as the sizes of bodies are bounded.
func (a *account) take(n int64) error {
	if a == nil {
		return nil
	}
	n = min(n, a.memory.most-a.taken)
	if a.memory.used.Add(n) > a.memory.most {
		a.memory.used.Add(-n)
		return errMemory
	}
	a.taken += n
	return nil
}

func (a *account) close() {
	a.memory.used.Add(-a.taken)
	a.taken = 0
}

// accountOf is the account of an admitted request.
func accountOf(r *http.Request) *account {
	a, _ := r.Context().Value(accountKey{}).(*account)
	return a
}

// What a request takes besides its answer: a body is there twice, as it came and as what was read
// of it; and each job of a push has its place in lists, commands to Redis and the answer.
const (
	copiesOfBody = 2
	bytesOfJob   = 512
	bytesOfNames = 256      // an object of a job's headers
	bytesOfName  = 64       // a name in it, besides its text
	bytesOfRow   = 16 << 10 // of a list: payloads and an error, both cut, as they came from Redis and as JSON
	bytesOfOne   = 8 << 20  // a job with all that waits for it: seldom more
)

// jobsMemory is what a push needs besides the bytes of its body.
func jobsMemory(body []byte) int64 {
	return int64(min(bytes.Count(body, []byte(`"id`)), wire.MaxJobs)) * bytesOfJob
}

// headersMemory is what jobs with headers take besides: their names, and the payload once more, in
// its envelope.
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

// admit passes on what the guard has let through, as far as there is room. Health and the login
// page need none.
func (a *api) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.wanted(r) <= auth.Anonymous {
			next.ServeHTTP(w, r)
			return
		}
		came, _ := r.Context().Value(arrivalKey{}).(arrival)
		leave, ok := came.enter()
		if !ok {
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "1")
			NewProblem(http.StatusServiceUnavailable, "the node answers as many requests as it may: try again").write(w)
			return
		}
		defer leave()
		mine := &account{memory: a.memory}
		defer mine.close()
		r = r.WithContext(context.WithValue(r.Context(), accountKey{}, mine))
		if r.ContentLength != 0 {
			r.Body = &measuredBody{ReadCloser: r.Body, account: mine, control: http.NewResponseController(w), end: time.Now().Add(bodyTimeout)}
		}
		next.ServeHTTP(w, r)
	})
}

// measuredBody is a body that has to go on arriving, and takes memory as it does.
type measuredBody struct {
	io.ReadCloser
	account *account
	control *http.ResponseController
	end     time.Time
}

// Read lets the client take bodyPause for the next part, and bodyTimeout for the whole.
func (b *measuredBody) Read(p []byte) (int, error) {
	// Not every ResponseWriter has deadlines; those of a real server have.
	_ = b.control.SetReadDeadline(earlier(b.end, time.Now().Add(bodyPause)))
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		// What was read to its end must not end the answer, which may take long; what stopped is
		// not waited for again.
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			_ = b.control.SetReadDeadline(time.Time{})
		}
		return n, err
	}
	if err := b.account.take(int64(n) * copiesOfBody); err != nil {
		return 0, fmt.Errorf("read the body: %w", err)
	}
	return n, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// How long a client may take to send a body. It is set per request, as a ReadTimeout of the server
// would also end long answers.
const (
	bodyTimeout      = 5 * time.Minute  // the whole, of an admitted request
	bodyPause        = 30 * time.Second // until its next part
	anonymousTimeout = 5 * time.Second  // the whole, until the guard has admitted the request
)

// withBodyTimeout bounds how long a request's body is waited for before it is admitted, also by the
// server itself, which reads what a handler has left of it.
func withBodyTimeout(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		// Not every ResponseWriter has deadlines; those of a real server have.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(anonymousTimeout))
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

// CloseWrite lets the server answer a request that it has not read to its end: a connection that is
// closed at once is reset, and its client loses the answer.
func (c patientConn) CloseWrite() error {
	if limited := connlimit.Of(c.Conn); limited != nil {
		if tcp, ok := limited.Conn.(*net.TCPConn); ok {
			return tcp.CloseWrite()
		}
	}
	return nil
}

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
