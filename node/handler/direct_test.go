//go:build unix

package handler

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
)

// raw listens, and has serve handle each connection, which it closes after.
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

// readRequest returns the bytes of a request, or nil if there is none any more.
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

// posting is a handler that posts directly, or one by the transport alone.
func posting(t *testing.T, url string, cfg HTTPConfig, directly bool) *HTTP {
	t.Helper()
	cfg.URL = url
	if !directly {
		cfg.Client = newClient()
	}
	h, err := NewHTTP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	if (h.direct != nil) != directly {
		t.Fatalf("%s: direct is %v, want that it is there: %v", url, h.direct, directly)
	}
	return h
}

// An endpoint cannot tell which of the two has sent a request.
func TestDirectSendsWhatATransportSends(t *testing.T) {
	t.Parallel()
	requests := make(chan []byte, 1)
	address := raw(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for request := readRequest(in); request != nil; request = readRequest(in) {
			requests <- request
			io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	for path, cfg := range map[string]HTTPConfig{
		address:                          {},
		address + "/":                    {},
		address + "/a%20b/c?key=%41&x#y": {},
		"user@" + address + "/":          {},
		"us%20er:pass@" + address + "/":  {},
		"user:pass@" + address + "/?":    {Token: "sesame"},
		address + "//double/../dots":     {Token: "se same"},
		"localhost" + address[strings.Index(address, ":"):] + "/": {}, // a name
	} {
		var sent [2][]byte
		for i, directly := range []bool{true, false} {
			h := posting(t, "http://"+path, cfg, directly)
			for _, header := range []lowkiq.Header{"", `{"tag":"vip"}`, `{"traceparent":"00-1"}`, `{"traceparent":"00-1","tracestate":"a=1"}`, `{"tracestate":"a=1"}`, `{"traceparent":"a\r\nb: c"}`} {
				b := batch()
				b.Jobs = b.Jobs[:1]
				b.Jobs[0].Payloads = []lowkiq.Payload{{Data: []byte("1"), Header: header}}
				if err := h.Handle(t.Context(), b); err != nil {
					t.Fatalf("%s: got %v", path, err)
				}
				request := <-requests
				if traced := bytes.Contains(request, []byte("\r\nTraceparent: 00-1\r\n")); traced != strings.Contains(string(header), `"00-1"`) {
					t.Errorf("%s, headers %s: got\n%s", path, header, request)
				}
				sent[i] = append(sent[i], request...)
			}
		}
		if !bytes.Equal(sent[0], sent[1]) {
			t.Errorf("%s: got\n%s\nwant\n%s", path, sent[0], sent[1])
		}
	}
}

// What is not certain to be the same is the transport's.
func TestDirectLeavesAlone(t *testing.T) {
	t.Parallel()
	for url, cfg := range map[string]HTTPConfig{
		"https://endpoint/":           {},
		"http://b\u00fccher.example/": {},
		"http://endpoint:/":           {},
		"http://[fe80::1%25eth0]/":    {},
		"http://endpoint/x":           {Header: http.Header{"Host": {"other"}}},
		"http://endpoint/y":           {Token: "se\nsame"},
		"http://endpoint/z":           {Client: http.DefaultClient},
	} {
		cfg.URL = url
		h, err := NewHTTP(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if h.direct != nil {
			t.Errorf("%s: is direct, want the transport", url)
		}
	}
}

// Whatever a response looks like, both understand it in the same way, and the next batch gets its
// own.
func TestDirectReadsWhatATransportReads(t *testing.T) {
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
		"one more":          {"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 500 Not asked\r\nContent-Length: 0\r\n\r\n", false, ""},
		"one more, cut":     {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOKHTTP/1.1 500 Not asked\r\n", false, ""},
		"long":              {"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + strings.Repeat(" ", 2_000_000), true, "longer than 1703936 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, directly := range []bool{true, false} {
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
				h := posting(t, "http://"+address+"/", HTTPConfig{}, directly)
				if err := h.Handle(t.Context(), batch()); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("directly: %v: got %v, want %q", directly, err, c.want)
				}
				if !directly && strings.HasPrefix(name, "one more") {
					continue // a transport may take it for the next answer, if the next request is quick
				}
				if err := h.Handle(t.Context(), batch()); err != nil {
					t.Errorf("directly: %v: got %v for the next batch", directly, err)
				}
			}
		})
	}
}

// A connection that the endpoint has closed while it was idle costs no batch.
func TestDirectKeepsConnections(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	end, ended := make(chan struct{}), make(chan struct{})
	address := raw(t, func(conn net.Conn) {
		number := conns.Add(1)
		in := bufio.NewReader(conn)
		for range 3 {
			if readRequest(in) == nil {
				return
			}
			io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		}
		if number == 1 {
			<-end
			conn.Close()
			close(ended)
		}
	})
	h := posting(t, "http://"+address+"/", HTTPConfig{}, true)
	for i := range 6 {
		if i == 3 {
			close(end)
			<-ended
		}
		if err := h.Handle(t.Context(), batch()); err != nil {
			t.Errorf("batch %d: got %v", i+1, err)
		}
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("got %d connections, want 2", n)
	}
}

// Many batches at once: each gets its own answer, on no more connections than there are at once.
func TestDirectAtOnce(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, `{"ok":true,"flight":%d}`, decode(t, body).Flight)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	h := posting(t, server.URL, HTTPConfig{}, true)
	const atOnce = 20
	var group sync.WaitGroup
	for i := range atOnce {
		group.Go(func() {
			for j := range 50 {
				b := batch()
				b.Flight = int64(100*i + j)
				if j%10 == 9 { // one for the transport
					b.Jobs[0].Payloads = []lowkiq.Payload{{Data: bytes.Repeat([]byte("x"), 2*directLimit)}}
				}
				if err := h.Handle(t.Context(), b); err != nil {
					t.Errorf("got %v", err)
				}
			}
		})
	}
	group.Wait()
	if n := conns.Load(); n > 2*atOnce {
		t.Errorf("got %d connections, want %d at most", n, 2*atOnce)
	}
}

// An endpoint may answer a large batch without reading it.
func TestDirectLeavesLargeBatches(t *testing.T) {
	t.Parallel()
	address := raw(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		io.WriteString(conn, "HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	})
	h := posting(t, "http://"+address+"/", HTTPConfig{}, true)
	b := batch()
	b.Jobs[0].Payloads = append(b.Jobs[0].Payloads, lowkiq.Payload{Score: 2, Data: bytes.Repeat([]byte("x"), 16<<20)})
	if err := h.Handle(t.Context(), b); err == nil || !strings.Contains(err.Error(), "413 Too large") {
		t.Errorf("got %v, want the answer", err)
	}
	h = posting(t, "http://"+address+"/", HTTPConfig{}, true)
	b = batch() // a small payload whose text is long
	b.Jobs[0].ID = strings.Repeat("\x01", 2000)
	if err := h.Handle(t.Context(), b); err == nil || !strings.Contains(err.Error(), "413 Too large") {
		t.Errorf("got %v, want the answer", err)
	}
}

// Idle connections are closed after idleFor, whether there are requests or not.
func TestDirectTidies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, err := NewHTTP(HTTPConfig{URL: "http://endpoint/"})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		var ends []net.Conn
		for range 3 {
			ours, theirs := net.Pipe()
			ends = append(ends, theirs)
			h.direct.put(&link{conn: ours})
			time.Sleep(idleFor / 2)
		}
		time.Sleep(10 * time.Second) // the first two are over idleFor
		for i, want := range []int{0, 0, 1} {
			_ = ends[i].SetReadDeadline(time.Now().Add(time.Second))
			if _, err := ends[i].Read(make([]byte, 1)); (err == io.EOF) != (want == 0) {
				t.Errorf("connection %d: got %v, want it closed: %v", i, err, want == 0)
			}
		}
		h.direct.mu.Lock()
		if n := len(h.direct.idle); n != 1 {
			t.Errorf("got %d idle connections, want 1", n)
		}
		h.direct.mu.Unlock()
		time.Sleep(2 * idleFor)
		if _, err := ends[2].Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the last connection: got %v, want it closed", err)
		}
	})
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
		response, request := []byte("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"ok\":true}"), make([]byte, directLimit)
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
