//go:build unix

package handler

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/wire"
)

// direct posts small batches over HTTP/1.1 without an [http.Transport], whose two goroutines per
// connection are half of what a small request costs the node. The goroutine of the batch writes the
// request, which the socket takes as a whole, and reads the response itself. Requests and verdicts
// are those of the transport: what it would do differently is left to it (newDirect, errLarge). Why:
// docs/adr/0016-small-batches-without-a-transport.md.
type direct struct {
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	address string
	head    []byte      // of a request, up to the value of Content-Length
	middle  []byte      // from there to the value of Lowkiq-Fence
	expire  *time.Timer // closes links that were idle for idleFor

	mu     sync.Mutex
	idle   []*link // that of the last request is the last; guarded by mu
	closed bool    // Close was called: no link is kept; guarded by mu
}

const (
	maxIdle     = 1024             // connections that are kept to an endpoint
	idleFor     = 90 * time.Second // and for how long
	directLimit = 8 << 10          // bytes of a request; the buffer of an idle socket takes more
	maxHeader   = 10 << 20         // bytes of a response but for its body, as a transport has it
)

// errLarge means that a request is for the transport: an endpoint may answer a large one before it
// has read it, and only two goroutines can see that.
var errLarge = errors.New("request is too large to be written at once")

// newDirect returns nil for an endpoint that is the transport's.
func newDirect(u *url.URL, cfg *HTTPConfig) *direct {
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u})
	if u.Scheme != "http" || proxy != nil || err != nil || len(cfg.Header) > 0 || !plain(u.Host) || !plain(cfg.Token) || strings.HasSuffix(u.Host, ":") || strings.Contains(u.Host, "%") {
		return nil
	}
	authorization := ""
	if cfg.Token != "" {
		authorization = "\r\nAuthorization: Bearer " + cfg.Token
	} else if u.User != nil {
		password, _ := u.User.Password()
		authorization = "\r\nAuthorization: Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
	}
	d := &direct{dial: dialEndpoint, address: addressOf(u)}
	d.head = fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: ", u.RequestURI(), u.Host)
	d.middle = []byte(authorization + "\r\nContent-Type: application/json\r\nLowkiq-Fence: ")
	d.expire = time.AfterFunc(idleFor, d.tidy)
	d.expire.Stop()
	return d
}

// close closes idle connections, and those that become idle.
func (d *direct) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.expire.Stop()
	for _, l := range d.idle {
		l.conn.Close()
	}
	d.idle = nil
}

// link is a connection, which one request has at a time.
type link struct {
	conn  net.Conn
	end   *end
	in    *bufio.Reader
	most  int64 // bytes that the response may have but for its head
	left  int64 // bytes that it may still have
	body  []byte
	out   []byte
	used  bool // for a request before
	since time.Time
}

// Read bounds what a response may have. It is called by in alone.
func (l *link) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("response is longer than %d bytes", maxHeader+l.most)
	}
	n, err := l.conn.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// unanswered reports whether no byte of a response to the last request has come.
func (l *link) unanswered() bool { return l.left == maxHeader+l.most }

// abort ends what the link's goroutine waits for.
func (l *link) abort() { _ = l.conn.SetDeadline(time.Unix(1, 0)) }

// take returns an idle link whose other end is there, or a new one. With fresh it returns a new one.
func (d *direct) take(ctx context.Context, fresh bool) (*link, error) {
	for !fresh {
		l := d.last()
		if l == nil {
			break
		}
		if readable, ended, err := l.end.news(); !readable && !ended && err == nil {
			return l, nil
		}
		l.conn.Close() // by the endpoint, or it said something to which nobody has asked it
	}
	conn, err := d.dial(undated{ctx}, "tcp", d.address)
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, end: newEnd(conn.(syscall.Conn))} // of TCP: it is one
	l.in = bufio.NewReader(l)
	return l, nil
}

// undated is a context without its deadline, by which a dial would end a moment before the context:
// that the handler is to stop would look as if the endpoint were out of reach.
type undated struct{ context.Context }

func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

func (d *direct) last() *link {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.idle) == 0 {
		return nil
	}
	last := len(d.idle) - 1
	l := d.idle[last]
	d.idle[last] = nil
	d.idle = d.idle[:last]
	return l
}

// put keeps a link for the next request.
func (d *direct) put(l *link) {
	l.used, l.since = true, time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.idle) >= maxIdle {
		l.conn.Close()
		return
	}
	if d.idle = append(d.idle, l); len(d.idle) == 1 {
		d.expire.Reset(idleFor)
	}
}

// tidy closes links that were idle for long. Those used last are at the end.
func (d *direct) tidy() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	old := 0
	for old < len(d.idle) && now.Sub(d.idle[old].since) >= idleFor {
		d.idle[old].conn.Close()
		old++
	}
	d.idle = slices.Delete(d.idle, 0, old)
	if len(d.idle) > 0 && !d.closed {
		d.expire.Reset(max(idleFor-now.Sub(d.idle[0].since), time.Second))
	}
}

// large reports whether a batch is for the transport, without writing it.
func large(b *lowkiq.Batch) bool {
	size := 0
	for i := range b.Jobs {
		size += len(b.Jobs[i].ID) + len(b.Jobs[i].State) + 64
		for _, p := range b.Jobs[i].Payloads {
			size += len(p.Data) + len(p.Header) + 32
		}
	}
	return size > directLimit
}

// post sends the batch and returns the response with its body, of which it reads no more than tells
// that it is longer than answerLimit. connected says whether the endpoint may have seen the request.
func (d *direct) post(ctx context.Context, b *lowkiq.Batch) (res *http.Response, body []byte, connected bool, err error) {
	if large(b) {
		return nil, nil, false, errLarge
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, false, err
	}
	for again := false; ; again = true {
		l, err := d.take(ctx, again)
		if err != nil {
			return nil, nil, connected, err
		}
		if d.write(l, b); len(l.out) > directLimit {
			d.put(l)
			return nil, nil, connected, errLarge
		}
		connected = true
		l.most = int64(answerLimit(b))
		l.left = maxHeader + l.most
		unhook := context.AfterFunc(ctx, l.abort)
		_, err = l.conn.Write(l.out)
		reusable := false
		if err == nil {
			res, body, reusable, err = l.response()
		}
		if unhook() && reusable && err == nil {
			d.put(l)
		} else {
			l.conn.Close()
		}
		if err == nil || !l.used || !l.unanswered() || ctx.Err() != nil {
			return res, body, connected, err
		}
		// The endpoint closed an idle connection before it saw the request: no failure of the batch. A new
		// connection has no such excuse.
	}
}

// write writes the request to the link's buffer.
func (d *direct) write(l *link, b *lowkiq.Batch) {
	l.body = wire.AppendBatch(l.body[:0], b)
	out := append(l.out[:0], d.head...)
	out = strconv.AppendInt(out, int64(len(l.body)), 10)
	out = append(out, d.middle...)
	out = strconv.AppendInt(out, b.Fence, 10)
	out = append(out, "\r\nLowkiq-Flight: "...)
	out = strconv.AppendInt(out, b.Flight, 10)
	out = append(out, "\r\nLowkiq-Queue: "...)
	out = append(out, b.Shard.Queue...) // queue.CheckName: plain
	out = append(out, "\r\nLowkiq-Shard: "...)
	out = strconv.AppendInt(out, int64(b.Shard.Index), 10)
	if parent, state := traceOf(b); parent != "" {
		out = append(append(out, "\r\nTraceparent: "...), parent...)
		if state != "" {
			out = append(append(out, "\r\nTracestate: "...), state...)
		}
	}
	out = append(out, "\r\nAccept-Encoding: gzip\r\n\r\n"...)
	l.out = append(out, l.body...)
}

// posted is the request as the reader of responses wants it.
var posted = &http.Request{Method: http.MethodPost}

// response reads the response, whose body may have l.most bytes. reusable: the connection can have
// another request.
func (l *link) response() (res *http.Response, body []byte, reusable bool, err error) {
	for res == nil || res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols {
		if _, err := l.in.Peek(1); err != nil {
			return nil, nil, false, err
		}
		if res, err = http.ReadResponse(l.in, posted); err != nil {
			return nil, nil, false, err
		}
	}
	if res.Body != http.NoBody {
		if body, err = readAnswer(res, l.most); err != nil {
			return res, nil, false, fmt.Errorf("read response: %w", err)
		}
	}
	reusable = !res.Close && res.StatusCode >= 200 && int64(len(body)) <= l.most && l.in.Buffered() == 0
	return res, body, reusable, nil
}

// readAnswer reads a body to its end, or one byte more than an answer may have.
func readAnswer(res *http.Response, most int64) ([]byte, error) {
	if !strings.EqualFold(res.Header.Get("Content-Encoding"), "gzip") {
		return io.ReadAll(io.LimitReader(res.Body, most+1))
	}
	unzipped, err := gzip.NewReader(res.Body)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(unzipped, most+1))
	if err == nil && int64(len(body)) <= most {
		_, err = io.Copy(io.Discard, res.Body) // to the end, for the next response
	}
	return body, err
}
