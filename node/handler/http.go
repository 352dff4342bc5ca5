package handler

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/logbuf"
	"github.com/lowkiq/lowkiq/wire"
)

const (
	maxAnswer  = 1 << 20          // longest answer without results and states, bytes; see answerLimit
	quoted     = 512              // bytes of a response that an error quotes
	pingAfter  = 15 * time.Second // of silence on a connection with HTTP/2
	pongWithin = 2 * time.Minute  // an endpoint with one thread answers no ping while it works
	dialWithin = 5 * time.Second  // a host that answers nothing is out of reach, long before a handler's timeout
)

// answerLimit is how long the answer to a batch may be, of an endpoint or a child, bytes: twice the
// longest result and state of each job are room for base64, and for white space between tokens. What
// is longer is not read, so that an endpoint or a child cannot fill the node's memory.
func answerLimit(b *lowkiq.Batch) int {
	return maxAnswer + len(b.Jobs)*2*(lowkiq.MaxResultBytes+lowkiq.MaxStateBytes)
}

// HTTPConfig says where to post batches.
type HTTPConfig struct {
	URL     string        // http:// or https://
	Timeout time.Duration // of one request, its body included; 0 = only the context's
	Token   string        // sent as "Authorization: Bearer …" unless empty
	Header  http.Header   // sent with every request
	Client  *http.Client  // nil = one that keeps connections and follows no redirect
	Log     *slog.Logger  // default: slog.Default(). As for node.Config.Log, nothing waits for it
}

// Validate names the field that is wrong.
func (c HTTPConfig) Validate() error {
	u, err := url.Parse(c.URL)
	if err != nil {
		return errors.New("url: not a URL")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("url: %q, want http://host/path or https://host/path", shown(u))
	}
	if c.Timeout < 0 {
		return fmt.Errorf("timeout: %s, want 0 or more", c.Timeout)
	}
	return nil
}

// HTTP is a handler that posts each batch to an endpoint, with the headers Lowkiq-Queue,
// Lowkiq-Shard, Lowkiq-Fence and Lowkiq-Flight, and traceparent and tracestate of a batch with one
// payload that has them. A 2xx response means done; its body may be an
// answer of package wire, and is read as one if it looks like JSON. 429 and 503 with Retry-After
// postpone the batch, by a second at least and a day at most; with Lowkiq-Limit, which names a group
// as in acme:, all of that group ([lowkiq.Limit]). While the endpoint refuses connections, its host does not answer for 5 s or for the whole Timeout, or its name is not found,
// batches are postponed, too: by a second at first and by 30 s in the end. Anything else is a
// failure.
type HTTP struct {
	cfg  HTTPConfig
	url  string                      // as errors show it
	dial func(context.Context) error // opens and closes a connection as a request would have it; nil: not known how

	direct *direct // posts small batches; nil: Client posts all
	down   outage
}

// NewHTTP validates cfg. Nothing is sent yet.
func NewHTTP(cfg HTTPConfig) (*HTTP, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("http handler: %w", err)
	}
	u, _ := url.Parse(cfg.URL)
	var direct *direct
	if cfg.Client == nil {
		cfg.Client, direct = newClient(), newDirect(u, &cfg)
	}
	cfg.Log = logbuf.Logger(cmp.Or(cfg.Log, slog.Default()))
	h := &HTTP{cfg: cfg, url: shown(u), direct: direct, down: outage{news: make(chan struct{}, 1)}}
	h.dial = h.dialer(u)
	return h, nil
}

// shown is a URL as errors show it, which are stored with jobs, logged, and seen by every reader of
// them: without user, password and query, any of which may be a secret.
func shown(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// newClient keeps a connection per batch that may run at once. It follows no
// redirect: a POST that becomes a GET would lose its batch.
func newClient() *http.Client {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialEndpoint,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		// Batches of an endpoint with HTTP/2 share a connection. One that a firewall has forgotten
		// would keep them until their handlers' timeout, and those after them too.
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pongWithin},
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

var dialEndpoint = (&net.Dialer{Timeout: dialWithin}).DialContext

// Close closes idle connections.
func (h *HTTP) Close() error {
	if h.direct != nil {
		h.direct.close()
	}
	h.cfg.Client.CloseIdleConnections()
	return nil
}

// Handle posts the batch. A cancelled ctx aborts the request; the error then wraps
// its cause.
func (h *HTTP) Handle(ctx context.Context, b *lowkiq.Batch) error {
	whole := ctx // without the request's own timeout
	if h.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, h.cfg.Timeout, fmt.Errorf("no answer within %s", h.cfg.Timeout))
		defer cancel()
	}
	res, body, connected, err := h.exchange(ctx, b)
	if res != nil {
		h.down.over()
	}
	if err != nil {
		if whole.Err() == nil && !connected && (ctx.Err() != nil || unreached(err)) {
			return h.down.postpone(h.cfg.Log, h.url, h.failure(ctx, err), time.Now())
		}
		return h.failure(ctx, err)
	}
	return h.verdict(res, body, b)
}

// exchange posts the batch and reads the response, which is there without its body if that could not
// be read. connected says whether the endpoint may have the batch.
func (h *HTTP) exchange(ctx context.Context, b *lowkiq.Batch) (res *http.Response, body []byte, connected bool, err error) {
	if h.direct != nil {
		if res, body, connected, err = h.direct.post(ctx, b); err != errLarge {
			return res, body, connected, err
		}
	}
	var got atomic.Bool
	res, err = h.post(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { got.Store(true) }}), b)
	if err != nil {
		return nil, nil, got.Load(), err
	}
	defer res.Body.Close()
	if body, err = io.ReadAll(io.LimitReader(res.Body, int64(answerLimit(b))+1)); err != nil {
		err = fmt.Errorf("read response: %w", err)
	}
	return res, body, true, err
}

func (h *HTTP) post(ctx context.Context, b *lowkiq.Batch) (*http.Response, error) {
	req, err := h.request(ctx, b.Shard, wire.AppendBatch(nil, b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Lowkiq-Fence", strconv.FormatInt(b.Fence, 10))
	req.Header.Set("Lowkiq-Flight", strconv.FormatInt(b.Flight, 10))
	parent, state := traceOf(b)
	if parent != "" {
		req.Header.Set("Traceparent", parent)
	}
	if state != "" {
		req.Header.Set("Tracestate", state)
	}
	return h.cfg.Client.Do(req)
}

// Event posts an event, with the header Lowkiq-Event, which has its kind: it is a [lowkiq.Hook]. Any 2xx response without
// an error in its body is good.
func (h *HTTP) Event(ctx context.Context, e *lowkiq.Event) error {
	req, err := h.request(ctx, e.Shard, wire.AppendEvent(nil, e))
	if err != nil {
		return err
	}
	req.Header.Set("Lowkiq-Event", string(e.Kind))
	res, err := h.cfg.Client.Do(req)
	if err != nil {
		return h.failure(ctx, err)
	}
	defer res.Body.Close()
	none := &lowkiq.Batch{Shard: e.Shard} // there are no jobs to say anything of
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(answerLimit(none))+1))
	if err != nil {
		return h.failure(ctx, fmt.Errorf("read response: %w", err))
	}
	return h.verdict(res, body, none)
}

// request is one to the endpoint about a shard.
func (h *HTTP) request(ctx context.Context, s lowkiq.Shard, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header["Idempotency-Key"] = nil // not sent: it lets the transport repeat what a closed idle connection has lost
	for name, values := range h.cfg.Header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	if h.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.cfg.Token)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Lowkiq-Queue", s.Queue)
	req.Header.Set("Lowkiq-Shard", strconv.Itoa(s.Index))
	return req, nil
}

// traceOf returns the trace of a batch that has one payload, as headers of HTTP can carry it.
func traceOf(b *lowkiq.Batch) (parent, state string) {
	if len(b.Jobs) != 1 || len(b.Jobs[0].Payloads) != 1 || b.Jobs[0].Payloads[0].Header == "" {
		return "", ""
	}
	all := b.Jobs[0].Payloads[0].Header.Map()
	if parent = all["traceparent"]; parent == "" || !plain(parent) {
		return "", ""
	}
	if state = all["tracestate"]; !plain(state) {
		state = ""
	}
	return parent, state
}

// plain reports whether text can stand in a header as it is.
func plain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= 0x7f {
			return false
		}
	}
	return true
}

// unreached reports whether there was no connection, so that the endpoint does not have the batch.
func unreached(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns)
}

// failure names the endpoint and the cause: the context's if it is over, else err.
func (h *HTTP) failure(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var bad *url.Error
	if errors.As(err, &bad) {
		err = bad.Err
	}
	return fmt.Errorf("post %s: %w", h.url, err)
}

// verdict turns a response into the handler's error.
func (h *HTTP) verdict(res *http.Response, body []byte, b *lowkiq.Batch) error {
	busy := res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable
	if after, ok := retryAfter(res.Header, time.Now()); busy && ok {
		if group := res.Header.Get("Lowkiq-Limit"); group != "" {
			return lowkiq.Limit{Prefix: group, For: after}
		}
		return lowkiq.Postpone{After: after, Reason: fmt.Sprintf("%s answered %s", h.url, res.Status)}
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("post %s: %s: %s", h.url, res.Status, excerpt(body, quoted))
	}
	if most := answerLimit(b); len(body) > most {
		return fmt.Errorf("post %s: %s, but the response is longer than %d bytes", h.url, res.Status, most)
	}
	body = bytes.TrimSpace(body)
	if !looksLikeJSON(res.Header, body) {
		return nil
	}
	err := wire.ParseAnswer(body, b)
	var nonsense *wire.Error
	if errors.As(err, &nonsense) {
		return fmt.Errorf("post %s: %s, but the response is no answer: %w: %s", h.url, res.Status, err, excerpt(body, quoted))
	}
	return err
}

// looksLikeJSON reports whether a 2xx response was meant to say something: an
// endpoint of a framework that says "OK" or shows a page was not.
func looksLikeJSON(header http.Header, body []byte) bool {
	if len(body) == 0 {
		return false
	}
	return body[0] == '{' || body[0] == '[' || strings.Contains(header.Get("Content-Type"), "json")
}

// retryAfter reads the header of that name (RFC 9110, section 10.2.3): seconds, or
// a date, which is compared with the endpoint's own clock if it sent its date.
func retryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	text := header.Get("Retry-After")
	seconds, err := strconv.ParseUint(text, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) { // then it is the largest there is
		return wire.RetryAfter(time.Duration(min(seconds, math.MaxInt64/uint64(time.Second))) * time.Second), true
	}
	date, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	if theirs, err := http.ParseTime(header.Get("Date")); err == nil {
		now = theirs
	}
	return wire.RetryAfter(date.Sub(now)), true
}

// excerpt quotes the first n bytes of text for an error.
func excerpt(text []byte, n int) string {
	if len(text) == 0 {
		return "(nothing)"
	}
	if len(text) > n {
		return strconv.Quote(string(text[:n])) + "…"
	}
	return strconv.Quote(string(text))
}

// A node whose endpoint is out of reach is given no batches, which would tell that it is back. So
// the handler looks itself, for as long as an outage lasts, and once when it starts: a connection
// that is opened and closed, no request.

const (
	unreadyAfter  = 10 * time.Second // of an outage: one restart of an endpoint moves no shard
	dialPatience  = 5 * time.Second
	maxProbePause = 5 * time.Second
)

// Ready says why batches would be postponed: there has been no connection to the endpoint for more
// than 10 s. It is nil otherwise, and with a client whose transport is not an [http.Transport].
// Where [HTTP.Run] does not run, only a batch ends an outage.
func (h *HTTP) Ready() error {
	if lasted, why := h.down.lasts(time.Now()); h.dial != nil && lasted > unreadyAfter {
		return why
	}
	return nil
}

// Run tries to connect to the endpoint, once and then during outages, until ctx is done.
func (h *HTTP) Run(ctx context.Context) error {
	if h.dial == nil {
		<-ctx.Done()
		return nil
	}
	for {
		h.probe(ctx)
		for lasted, why := h.down.lasts(time.Now()); why != nil; lasted, why = h.down.lasts(time.Now()) {
			if !sleep(ctx, probePause(lasted, rand.Float64())) {
				return nil
			}
			h.probe(ctx)
		}
		select {
		case <-h.down.news:
		case <-ctx.Done():
			return nil
		}
		if !sleep(ctx, minOutagePause) {
			return nil
		}
	}
}

// probe connects once. It says nothing of an endpoint that takes connections and answers nothing.
func (h *HTTP) probe(ctx context.Context) {
	short, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	err := h.dial(short)
	switch {
	case err == nil:
		h.down.over()
	case ctx.Err() == nil:
		h.down.failed(fmt.Errorf("connect to %s: %w", h.url, err), time.Now())
	}
}

// probePause is as long as the outage has lasted, between a second and maxProbePause; of that, a
// random part between a half and the whole, so that many nodes do not come in step.
func probePause(lasted time.Duration, random float64) time.Duration {
	pause := min(max(lasted, minOutagePause), maxProbePause)
	return pause/2 + time.Duration(random*float64(pause/2))
}

// sleep reports whether ctx lasted.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// dialer knows how the client connects to the endpoint, or to its proxy; nil if it does not.
func (h *HTTP) dialer(endpoint *url.URL) func(context.Context) error {
	tripper := h.cfg.Client.Transport
	if tripper == nil {
		tripper = http.DefaultTransport
	}
	transport, known := tripper.(*http.Transport)
	if !known || !ascii(endpoint.Host) {
		return nil
	}
	return func(ctx context.Context) error {
		peer := endpoint
		if transport.Proxy != nil {
			proxy, err := transport.Proxy((&http.Request{Method: http.MethodPost, URL: endpoint, Header: http.Header{}}).WithContext(ctx))
			if err != nil {
				return errors.New("no proxy: its configuration cannot be read") // it may hold a password
			}
			if proxy != nil {
				peer = proxy
			}
		}
		dial := transport.DialContext
		if dial == nil {
			dial = (&net.Dialer{}).DialContext
		}
		conn, err := dial(ctx, "tcp", addressOf(peer))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// addressOf is where a URL's server listens.
func addressOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// ascii reports whether a name is one that needs no encoding for DNS.
func ascii(name string) bool {
	for i := range len(name) {
		if name[i] >= 0x80 {
			return false
		}
	}
	return true
}

const (
	minOutagePause = time.Second
	maxOutagePause = 30 * time.Second
	warnEvery      = time.Second // of one handler, however many batches it is not given
)

// outage is a time in which no endpoint or process was there to be given a batch. Batches are
// postponed: they did not fail, so that no retry is spent and none is buried however long it lasts.
type outage struct {
	news chan struct{} // one slot: an outage has begun; nil: no goroutine waits for it

	mu    sync.Mutex
	began time.Time // the first batch that was given to none; zero: there is no outage
	why   error     // what the last attempt came to
	said  time.Time // the last warning
	left  int       // batches since that no warning tells of
}

// note notes an attempt that reached none, and says since when that is so. mu is held.
func (o *outage) note(err error, now time.Time) (lasted time.Duration) {
	if o.began.IsZero() {
		o.began = now
		select {
		case o.news <- struct{}{}:
		default:
		}
	}
	o.why = err
	return now.Sub(o.began)
}

// failed notes an attempt without a batch that reached none.
func (o *outage) failed(err error, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note(err, now)
}

// lasts returns for how long there has been an outage, and why; nil: there is none.
func (o *outage) lasts(now time.Time) (lasted time.Duration, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() {
		return 0, nil
	}
	return now.Sub(o.began), o.why
}

// postpone is the answer to a batch that could not be given to the named endpoint or command.
func (o *outage) postpone(log *slog.Logger, name string, err error, now time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	after := outagePause(o.note(err, now))
	if o.said.IsZero() || now.Sub(o.said) >= warnEvery {
		log.Warn("handler not reached, batches are postponed", "handler", name, "since", o.began, "retry_in", after, "left_out", o.left, "err", err)
		o.said, o.left = now, 0
	} else {
		o.left++
	}
	return lowkiq.Postpone{After: after, Reason: err.Error()}
}

// over ends the outage: a batch was taken, or would be.
func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.began, o.why = time.Time{}, nil
}

// outagePause is as long as the outage has lasted, so that the pauses of a batch double, whatever
// the number of batches that are tried meanwhile.
func outagePause(lasted time.Duration) time.Duration {
	return min(max(lasted, minOutagePause), maxOutagePause)
}
