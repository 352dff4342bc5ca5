package web

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// lobby is a listener of pipes, whose time may be a test's.
type lobby struct {
	conns chan net.Conn
	over  chan struct{}
}

func (l *lobby) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}
func (l *lobby) Close() error   { close(l.over); return nil }
func (l *lobby) Addr() net.Addr { return &net.TCPAddr{} }

// served runs a test with a connection to a server of handler, under a clock of its own.
func served(t *testing.T, handler http.Handler, f func(conn net.Conn)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lobby{make(chan net.Conn), make(chan struct{})}
		server := newServer("", handler, 0)
		go server.Serve(boundConns(l, 0)) //nolint:errcheck // it ends with the test
		ours, theirs := net.Pipe()
		l.conns <- theirs
		f(ours)
		must(t, ours.Close())
		must(t, server.Close())
		synctest.Wait()
	})
}

// Who announces a body and never sends it keeps its connection for bodyPause if it has a token,
// else for anonymousTimeout, whatever it asks.
func TestBodyThatNeverComes(t *testing.T) {
	for _, c := range []struct {
		target, token string
		wait          time.Duration
	}{
		{"/login", "", anonymousTimeout}, {"/", "", anonymousTimeout}, {"/nowhere", "", anonymousTimeout}, {"/api/v1/status", "", anonymousTimeout},
		{ordersPath + "jobs", "", anonymousTimeout}, {ordersPath + "jobs", readToken, anonymousTimeout}, {ordersPath + "pause", adminToken, bodyPause},
	} {
		t.Run(c.target+" "+c.token, func(t *testing.T) {
			handler := guarded(t).handler
			served(t, handler, func(conn net.Conn) {
				must(t, conn.SetReadDeadline(time.Now().Add(c.wait+time.Second)))
				_, err := io.WriteString(conn, "POST "+c.target+" HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer "+c.token+"\r\nContent-Length: 10\r\n\r\n")
				must(t, err)
				if _, err := io.Copy(io.Discard, conn); err != nil {
					t.Errorf("got %v, want the connection to end within %s", err, c.wait)
				}
			})
		})
	}
}

// Who takes nothing of its answer keeps its connection for writePatience.
func TestAnswerThatNobodyTakes(t *testing.T) {
	var cut chan time.Duration // of the connection's time
	served(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		began := time.Now()
		_, err := w.Write(make([]byte, 1<<20))
		if err == nil {
			t.Error("got nil, want the answer to be cut off")
		}
		cut <- time.Since(began)
	}), func(conn net.Conn) {
		cut = make(chan time.Duration, 1)
		_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\n\r\n")
		must(t, err)
		select {
		case took := <-cut:
			if took > writePatience {
				t.Errorf("cut off after %s, want %s", took, writePatience)
			}
		case <-time.After(10 * writePatience):
			t.Errorf("the answer still waits for its client")
			must(t, conn.Close())
			<-cut
		}
	})
}

// A slow client gets all of a long answer: its patience is for each part.
func TestAnswerThatIsTakenSlowly(t *testing.T) {
	served(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
	}), func(conn net.Conn) {
		_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
		must(t, err)
		slow := readerFunc(func(p []byte) (int, error) {
			time.Sleep(writePatience / 3)
			return conn.Read(p[:min(len(p), writePiece)])
		})
		answer, err := http.ReadResponse(bufio.NewReaderSize(slow, writePiece), nil)
		must(t, err)
		if n, err := io.Copy(io.Discard, answer.Body); n != 1<<20 || err != nil {
			t.Errorf("got %d bytes, %v, want all", n, err)
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
