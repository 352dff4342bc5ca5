package handler

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// raw listens and calls serve with each connection, which it closes afterwards.
func raw(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			group.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(group.Wait)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// readRequest returns the bytes of a request, or nil if there are no more requests.
func readRequest(in *bufio.Reader) []byte {
	var all bytes.Buffer
	req, err := http.ReadRequest(bufio.NewReaderSize(io.TeeReader(in, &all), 16)) // a large reader would read ahead
	if err != nil {
		return nil
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return nil
	}
	return all.Bytes()
}

// posting returns a handler that posts to the URL.
func posting(t *testing.T, url string) *HTTP {
	t.Helper()
	h, err := NewHTTP(HTTPConfig{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// A batch with one payload carries the payload's trace if a header can hold it.
func TestTraceHeaders(t *testing.T) {
	t.Parallel()
	requests := make(chan []byte, 1)
	address := raw(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for request := readRequest(in); request != nil; request = readRequest(in) {
			requests <- request
			io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	h := posting(t, "http://"+address+"/")
	for header, want := range map[lowkiq.Header]bool{
		"": false, `{"tag":"vip"}`: false, `{"traceparent":"00-1"}`: true, `{"traceparent":"00-1","tracestate":"a=1"}`: true,
		`{"tracestate":"a=1"}`: false, `{"traceparent":"a\r\nb: c"}`: false,
	} {
		b := batch()
		b.Jobs = b.Jobs[:1]
		b.Jobs[0].Payloads = []lowkiq.Payload{{Data: []byte("1"), Header: header}}
		if err := h.Handle(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		request := <-requests
		if traced := bytes.Contains(request, []byte("\r\nTraceparent: 00-1\r\n")); traced != want || bytes.Contains(request, []byte("Idempotency-Key")) {
			t.Errorf("headers %s: got\n%s", header, request)
		}
	}
}

// Whatever a response looks like, its batch gets its answer, and the next batch gets its own.
func TestResponses(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	io.WriteString(w, `{"ok":false,"error":"zipped"}`)
	w.Close()
	for name, c := range map[string]struct {
		response string
		ends     bool   // the endpoint closes the connection then
		want     string // part of the error; "" = done
	}{
		"nothing in it":     {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, ""},
		"no content":        {"HTTP/1.1 204 No Content\r\n\r\n", false, ""},
		"an answer":         {"HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\n" + `{"ok":false,"error":"why"}`, false, "why"},
		"chunks":            {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + "6\r\n{\"ok\":\r\n5\r\ntrue}\r\n0\r\nX: y\r\n\r\n", false, ""},
		"to the end":        {"HTTP/1.1 200 OK\r\n\r\n" + `{"ok":false,"error":"why"}`, true, "why"},
		"closes":            {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK", true, ""},
		"says close":        {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK", false, ""},
		"HTTP/1.0":          {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nOK", false, ""},
		"continue":          {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, ""},
		"other protocols":   {"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", true, "101 Switching Protocols"},
		"zipped":            {fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", zipped.Len(), zipped.Bytes()), false, "zipped"},
		"zipped, in chunks": {fmt.Sprintf("HTTP/1.1 500 No\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", zipped.Len(), zipped.Bytes()), false, "500 No"},
		"not zipped":        {"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nOK", false, "read response: "},
		"cut short":         {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nOK", true, "read response: unexpected EOF"},
		"cut in the head":   {"HTTP/1.1 200 OK\r\nContent-Le", true, "malformed MIME header"},
		"none":              {"", true, "EOF"},
		"no HTTP":           {"220 mail.example ESMTP\r\n", true, "malformed HTTP"},
		"long":              {"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + strings.Repeat(" ", 2_000_000), true, "longer than 1703936 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var first atomic.Bool
			address := raw(t, func(conn net.Conn) {
				in := bufio.NewReader(conn)
				for readRequest(in) != nil {
					if first.Swap(true) {
						io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
						continue
					}
					if io.WriteString(conn, c.response); c.ends {
						return
					}
				}
			})
			h := posting(t, "http://"+address+"/")
			if err := h.Handle(t.Context(), batch()); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err := h.Handle(t.Context(), batch()); err != nil {
				t.Errorf("got %v for the next batch", err)
			}
		})
	}
}

// An endpoint may answer a large batch without reading it.
func TestAnsweredBeforeItIsRead(t *testing.T) {
	t.Parallel()
	address := raw(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		io.WriteString(conn, "HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	})
	h := posting(t, "http://"+address+"/")
	b := batch()
	b.Jobs[0].Payloads = append(b.Jobs[0].Payloads, lowkiq.Payload{Score: 2, Data: bytes.Repeat([]byte("x"), 16<<20)})
	if err := h.Handle(t.Context(), b); err == nil || !strings.Contains(err.Error(), "413 Too large") {
		t.Errorf("got %v, want the answer", err)
	}
}

func BenchmarkHTTP(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() { // a small request comes in one piece
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		response, request := []byte("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"ok\":true}"), make([]byte, 8<<10)
		for _, err = conn.Read(request); err == nil; _, err = conn.Read(request) {
			if _, err = conn.Write(response); err != nil {
				return
			}
		}
	}()
	h, err := NewHTTP(HTTPConfig{URL: "http://" + l.Addr().String() + "/"})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	one := batch()
	b.ReportAllocs()
	for b.Loop() {
		if err := h.Handle(b.Context(), one); err != nil {
			b.Fatal(err)
		}
	}
}
