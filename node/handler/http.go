package handler

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
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
	"github.com/lowkiq/lowkiq/internal/process/condition"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/wire"
)

const (
	maxIdle    = 1024             // connections that are kept
	maxAnswer  = 1 << 20          // bytes of an answer without results and states; see answerLimit
	quoted     = 512              // bytes of a response that an error quotes
	pingAfter  = 15 * time.Second // of silence on an HTTP/2 connection
	pongWithin = 2 * time.Minute  // long, because an endpoint with a single thread answers no ping while it works
	dialWithin = 5 * time.Second  // a host that answers nothing for so long is out of reach
)

// answerLimit returns how many bytes the answer of an endpoint or a child to a batch may have. Twice
// the longest result and state of each job leave room for base64 and for white space between tokens.
// The limit keeps an endpoint or a child from filling the node's memory.
func answerLimit(b *lowkiq.Batch) int {
	return maxAnswer + len(b.Jobs)*2*(lowkiq.MaxResultBytes+lowkiq.MaxStateBytes)
}

// HTTPConfig says where to post batches.
type HTTPConfig struct {
	URL     string        // http:// or https://
	Timeout time.Duration // for a request with its body; 0 for the context's limit alone
	Token   string        // sent as "Authorization: Bearer …" unless empty
	Header  http.Header   // sent with every request
	Client  *http.Client  // nil for a client that keeps connections and follows no redirect
	Log     *slog.Logger  // default slog.Default(); nothing waits for it, as for node.Config.Log
}

// Validate returns an error that names the first wrong field.
func (c HTTPConfig) Validate() error {
	u, err := url.Parse(c.URL)
	if err != nil {
		return errors.New("url: not a URL")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("url: %q, want http://host/path or https://host/path", hideSecrets(u))
	}
	if c.Timeout < 0 {
		return fmt.Errorf("timeout: %s, want 0 or more", c.Timeout)
	}
	return nil
}

// HTTP is a handler that posts each batch to an endpoint. A request has the headers Lowkiq-Queue,
// Lowkiq-Shard, Lowkiq-Fence and Lowkiq-Flight. It has traceparent and tracestate if the batch has
// a single payload, and that payload has them.
//
// A 2xx response means done. If its body looks like JSON, it is read as an answer of package wire. An HTML page is a failure.
// A 429 or 503 postpones the batch by its Retry-After, by at least a second and at most a day. Without
// a readable Retry-After it postpones by a second at first and by 30 s later, until the endpoint answers
// something else. If it has the header Lowkiq-Limit, which names a group as in acme:, it postpones the
// whole group ([lowkiq.Throttle]). Any other response is a failure.
//
// While the endpoint is out of reach, batches are postponed as well, by a second at first and by 30 s
// later. An endpoint is out of reach if it refuses connections, if its host does not answer for 5 s or
// for the whole Timeout, if its name is not found, or if the TLS handshake fails.
type HTTP struct {
	cfg  HTTPConfig
	url  string                      // as errors show it
	dial func(context.Context) error // opens and closes a connection as a request would; nil if unknown
	down outage
	busy outage // while the endpoint answers nothing but 429 and 503 without Retry-After
}

// NewHTTP validates cfg. Nothing is sent yet.
func NewHTTP(cfg HTTPConfig) (*HTTP, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("http handler: %w", err)
	}
	u, _ := url.Parse(cfg.URL)
	if cfg.Client == nil {
		cfg.Client = newClient()
	}
	cfg.Log = logbuf.Logger(cmp.Or(cfg.Log, slog.Default()))
	h := &HTTP{cfg: cfg, url: hideSecrets(u), down: outage{news: make(chan struct{}, 1)}}
	h.dial = h.newDialer(u)
	return h, nil
}

// hideSecrets returns a URL for errors, which are logged and stored with jobs. It leaves out user,
// password and query, because each of them may be a secret.
func hideSecrets(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// newClient returns a client that keeps a connection for each batch that may run at once. It follows
// no redirect, because a POST that becomes a GET would lose its batch.
func newClient() *http.Client {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialEndpoint,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		// Batches of an endpoint with HTTP/2 share a connection. Without pings, a connection that a
		// firewall has forgotten would hold these batches, and later batches, until their handlers' timeout.
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pongWithin},
	}
	return &http.Client{
		Transport:     resender{transport, resendWithin},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// resendWithin is how soon a connection must close for the batch to be sent again. If an endpoint
// closed an idle connection before it saw the request, the node learns of that within a round trip.
// Later the endpoint may be working on the batch, or another node may have the shard.
const resendWithin = time.Second

// resender lets the transport send a request once more if the endpoint closed the kept connection.
// It does so only once, because an endpoint that dies of the request looks the same.
type resender struct {
	*http.Transport
	within time.Duration // resendWithin
}

func (r resender) RoundTrip(req *http.Request) (*http.Response, error) {
	body, sent, resent := req.GetBody, time.Now(), false
	req = req.WithContext(req.Context()) // a copy, because a RoundTripper must not change its request
	req.Header = req.Header.Clone()
	req.Header["Idempotency-Key"] = nil // sends no header; tells the transport that it may send the request again
	req.GetBody = func() (io.ReadCloser, error) {
		if resent || time.Since(sent) > r.within {
			return nil, errors.New("the connection was closed without an answer")
		}
		resent = true
		return body()
	}
	return r.Transport.RoundTrip(req)
}

var dialEndpoint = (&net.Dialer{Timeout: dialWithin}).DialContext

// Close closes idle connections.
func (h *HTTP) Close() error {
	h.cfg.Client.CloseIdleConnections()
	return nil
}

// Handle posts the batch. A cancelled ctx aborts the request, and the error then wraps its cause.
func (h *HTTP) Handle(ctx context.Context, b *lowkiq.Batch) error {
	whole := ctx // without the request's own timeout
	if h.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, h.cfg.Timeout, fmt.Errorf("no answer within %s", h.cfg.Timeout))
		defer cancel()
	}
	res, body, reached, err := h.sendBatch(ctx, b)
	if res != nil {
		h.down.end()
	}
	if err != nil {
		if whole.Err() == nil && !reached {
			return h.down.postpone(h.cfg.Log, h.url, h.failureOf(ctx, err), time.Now())
		}
		return h.failureOf(ctx, err)
	}
	return h.verdictOf(res, body, b)
}

// sendBatch posts the batch and reads the response. If it cannot read the whole body, it returns the
// response and an error. reached is false if the endpoint does not have the batch because no connection
// was possible.
func (h *HTTP) sendBatch(ctx context.Context, b *lowkiq.Batch) (res *http.Response, body []byte, reached bool, err error) {
	var dialed, connected atomic.Bool
	res, err = h.postBatch(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { dialed.Store(true) }, // the request itself is sound
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}), b)
	if err != nil {
		unreached := !connected.Load() && (dialed.Load() || ctx.Err() != nil || isUnreached(err))
		return nil, nil, !unreached, err
	}
	defer res.Body.Close()
	if body, err = io.ReadAll(io.LimitReader(res.Body, int64(answerLimit(b))+1)); err != nil {
		err = fmt.Errorf("read response: %w", err)
	}
	return res, body, true, err
}

func (h *HTTP) postBatch(ctx context.Context, b *lowkiq.Batch) (*http.Response, error) {
	req, err := h.newRequest(ctx, b.Shard, wire.AppendBatch(nil, b))
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

// Event implements [lowkiq.Hook]. It posts an event, with its kind in the header Lowkiq-Event. Any 2xx
// response without an error in its body is good.
func (h *HTTP) Event(ctx context.Context, e *lowkiq.Event) error {
	req, err := h.newRequest(ctx, e.Shard, wire.AppendEvent(nil, e))
	if err != nil {
		return err
	}
	req.Header.Set("Lowkiq-Event", string(e.Kind))
	res, err := h.cfg.Client.Do(req)
	if err != nil {
		return h.failureOf(ctx, err)
	}
	defer res.Body.Close()
	none := &lowkiq.Batch{Shard: e.Shard} // an answer to an event names no jobs
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(answerLimit(none))+1))
	if err != nil {
		return h.failureOf(ctx, fmt.Errorf("read response: %w", err))
	}
	return h.answerOf(res, body, none)
}

// newRequest returns a request to the endpoint about a shard.
func (h *HTTP) newRequest(ctx context.Context, s lowkiq.Shard, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
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

// traceOf returns the trace of a batch with a single payload, if an HTTP header can carry it.
func traceOf(b *lowkiq.Batch) (parent, state string) {
	if len(b.Jobs) != 1 || len(b.Jobs[0].Payloads) != 1 || b.Jobs[0].Payloads[0].Header == "" {
		return "", ""
	}
	all := b.Jobs[0].Payloads[0].Header.Map()
	if parent = all["traceparent"]; parent == "" || !isPlain(parent) {
		return "", ""
	}
	if state = all["tracestate"]; !isPlain(state) {
		state = ""
	}
	return parent, state
}

// isPlain reports whether a header can carry text as it is.
func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= 0x7f {
			return false
		}
	}
	return true
}

// isUnreached reports whether the error of a client says that there was no connection. A client from
// HTTPConfig may not report its connections to the trace.
func isUnreached(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") || errors.As(err, &dns)
}

// failureOf returns an error that names the endpoint and the cause. The cause is that of the context if
// the context has ended, and err otherwise.
func (h *HTTP) failureOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var bad *url.Error
	if errors.As(err, &bad) {
		err = bad.Err
	}
	return fmt.Errorf("post %s: %w%s", h.url, err, tlsAdvice(err))
}

// tlsAdvice returns what the URL or the machine must have if the error is one of TLS, or "".
func tlsAdvice(err error) string {
	var plain tls.RecordHeaderError
	var stranger x509.UnknownAuthorityError
	switch {
	case errors.As(err, &plain), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "; it does not speak TLS, so the URL must begin with http://"
	case errors.As(err, &stranger):
		return "; its authority must be among the system's, or in the file that SSL_CERT_FILE names"
	}
	return ""
}

// verdictOf turns a response into the handler's error.
func (h *HTTP) verdictOf(res *http.Response, body []byte, b *lowkiq.Batch) error {
	if res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable {
		return h.postponeBy(res)
	}
	h.busy.end()
	return h.answerOf(res, body, b)
}

// answerOf returns the error in a response. A status other than 2xx is an error.
func (h *HTTP) answerOf(res *http.Response, body []byte, b *lowkiq.Batch) error {
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("post %s: %s%s: %s", h.url, res.Status, redirectAdvice(res), excerptOf(body, quoted))
	}
	if most := answerLimit(b); len(body) > most {
		return fmt.Errorf("post %s: %s, but the response is longer than %d bytes", h.url, res.Status, most)
	}
	body = bytes.TrimSpace(body)
	if isPage(body) {
		return fmt.Errorf("post %s: %s, but the response is a web page; it must be empty, or an answer such as {\"ok\":true}: %s",
			h.url, res.Status, excerptOf(body, quoted))
	}
	if !looksLikeJSON(res.Header, body) {
		return nil
	}
	err := wire.ParseAnswer(body, b)
	var nonsense *wire.Error
	if errors.As(err, &nonsense) {
		return fmt.Errorf("post %s: %s, but the response is no answer: %w: %s", h.url, res.Status, err, excerptOf(body, quoted))
	}
	return err
}

// postponeBy returns the postponement of a batch, or of its group, by a response that says that the endpoint is busy.
func (h *HTTP) postponeBy(res *http.Response) error {
	reason := fmt.Sprintf("%s answered %s", h.url, res.Status)
	after, ok := retryAfter(res.Header, time.Now())
	if ok {
		h.busy.end()
	} else {
		after = h.busy.pause(errors.New(reason), time.Now())
	}
	if group := res.Header.Get("Lowkiq-Limit"); group != "" {
		return lowkiq.Throttle{Prefix: group, For: after}
	}
	return lowkiq.Postpone{After: after, Reason: reason}
}

// redirectAdvice returns where a redirect leads, "" for another response. The node does not follow it.
func redirectAdvice(res *http.Response) string {
	to, err := res.Location()
	if err != nil || res.StatusCode < 300 || res.StatusCode > 399 {
		return ""
	}
	return " to " + hideSecrets(to) + "; the node follows no redirect, so the handler's URL must be the last address"
}

// isPage reports whether a 2xx response is a page for people, such as a login, or the page for unknown paths. Whoever answers
// so has not handled the batch.
func isPage(body []byte) bool {
	head := bytes.ToLower(body[:min(len(body), len("<!doctype html"))])
	return bytes.HasPrefix(head, []byte("<!doctype html")) || bytes.HasPrefix(head, []byte("<html"))
}

// looksLikeJSON reports whether a 2xx response was meant as an answer. A framework's "OK" was not.
func looksLikeJSON(header http.Header, body []byte) bool {
	if len(body) == 0 {
		return false
	}
	return body[0] == '{' || body[0] == '[' || strings.Contains(header.Get("Content-Type"), "json")
}

// retryAfter reads the header Retry-After (RFC 9110, section 10.2.3). It holds seconds, or a date,
// which is compared with the endpoint's own clock if the response has a Date.
func retryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	text := header.Get("Retry-After")
	seconds, err := strconv.ParseUint(text, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) { // out of range, seconds is the largest uint64
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

// excerptOf quotes the first n bytes of text for an error.
func excerptOf(text []byte, n int) string {
	if len(text) == 0 {
		return "(nothing)"
	}
	if len(text) > n {
		return strconv.Quote(string(text[:n])) + "…"
	}
	return strconv.Quote(string(text))
}

// A node whose endpoint is out of reach gets no batches, so no batch can show that the endpoint is
// back. So the handler tries by itself, more often during an outage. It opens and closes a connection, which
// includes the TLS handshake of https, and sends no request.

const (
	unreadyAfter  = 10 * time.Second // so that a single restart of an endpoint moves no shards
	dialPatience  = 5 * time.Second
	maxProbePause = 5 * time.Second
	// idleProbe is the time between two probes without an outage. A node without batches must notice an outage of
	// an endpoint that all nodes share when the others do, or shards move to it in vain.
	idleProbe = 5 * time.Second
)

// Ready returns the last failure if the endpoint has been out of reach for more than 10 s, else nil. It
// always returns nil if the client's transport is no [http.Transport] or the host's name is not ASCII.
// If [HTTP.Run] does not run, only a batch ends an outage.
func (h *HTTP) Ready() error {
	if lasted, why := h.down.duration(time.Now()); h.dial != nil && lasted > unreadyAfter {
		return why
	}
	return nil
}

// Run tries to connect to the endpoint until ctx is done, every five seconds, and more often during outages.
func (h *HTTP) Run(ctx context.Context) error {
	if h.dial == nil {
		<-ctx.Done()
		return nil
	}
	for {
		h.probeEndpoint(ctx)
		for lasted, why := h.down.duration(time.Now()); why != nil; lasted, why = h.down.duration(time.Now()) {
			if !sleepFor(ctx, probePause(lasted, rand.Float64())) {
				return nil
			}
			h.probeEndpoint(ctx)
		}
		select {
		case <-h.down.news:
		case <-time.After(idleProbe):
			continue
		case <-ctx.Done():
			return nil
		}
		if !sleepFor(ctx, minOutagePause) {
			return nil
		}
	}
}

// probeEndpoint connects once. An endpoint that accepts connections but does not answer passes.
func (h *HTTP) probeEndpoint(ctx context.Context) {
	short, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	err := h.dial(short)
	switch {
	case err == nil:
		h.down.end()
	case ctx.Err() == nil:
		h.down.setFailed(fmt.Errorf("connect to %s: %w%s", h.url, err, tlsAdvice(err)), time.Now())
	}
}

// probePause returns as long a pause as the outage has lasted, from a second to maxProbePause. A
// random part of up to a half is cut off, so that many nodes do not try at the same time.
func probePause(lasted time.Duration, random float64) time.Duration {
	pause := min(max(lasted, minOutagePause), maxProbePause)
	return pause/2 + time.Duration(random*float64(pause/2))
}

// sleepFor waits for d. It returns false if ctx ends first.
func sleepFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// newDialer returns a function that connects to the endpoint, or to its proxy, as the client does. It
// returns nil if it does not know how the client connects. Without a proxy, a connection to an https endpoint
// includes the handshake, because a server that accepts connections may never finish a handshake.
func (h *HTTP) newDialer(endpoint *url.URL) func(context.Context) error {
	tripper := h.cfg.Client.Transport
	switch own := tripper.(type) {
	case nil:
		tripper = http.DefaultTransport
	case resender: // the client of newClient
		tripper = own.Transport
	}
	transport, known := tripper.(*http.Transport)
	if !known || !isASCII(endpoint.Host) {
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
		conn, err := connectTo(ctx, transport, peer, peer == endpoint && endpoint.Scheme == "https")
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// connectTo opens a connection to a server as the transport does, with a TLS handshake if secure is true.
func connectTo(ctx context.Context, transport *http.Transport, to *url.URL, secure bool) (net.Conn, error) {
	if secure && transport.DialTLSContext != nil {
		return transport.DialTLSContext(ctx, "tcp", addressOf(to))
	}
	dial := transport.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(ctx, "tcp", addressOf(to))
	if err != nil || !secure {
		return conn, err
	}
	cfg := transport.TLSClientConfig.Clone()
	if cfg == nil {
		cfg = &tls.Config{}
	}
	if cfg.ServerName == "" {
		cfg.ServerName = to.Hostname()
	}
	if cfg.NextProtos == nil {
		cfg.NextProtos = []string{"h2", "http/1.1"}
	}
	client := tls.Client(conn, cfg)
	if err := client.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return client, nil
}

// addressOf returns the address of a URL's server.
func addressOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// isASCII reports whether a name needs no encoding for DNS.
func isASCII(name string) bool {
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
	warnFirst      = time.Second // between the first two warnings, however many batches are postponed
)

// boot is the start of this process. Times since boot do not go back when the wall clock does.
var boot = time.Now()

// outage records whether and since when an endpoint or process takes no batches. Batches are postponed in
// that time. They did not fail, so no retry is counted and no batch is buried, however long it lasts.
type outage struct {
	news chan struct{} // says that an outage has begun; holds one value; nil if no goroutine waits for it

	mu     sync.Mutex
	began  time.Time // time of the first failure; zero if there is no outage
	why    error     // the last failure
	warned condition.Condition
}

// addFailure records a failure and returns how long the outage has lasted. The caller must hold mu.
func (o *outage) addFailure(err error, now time.Time) (lasted time.Duration) {
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

// pause records a failure and returns for how long a batch is postponed.
func (o *outage) pause(err error, now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return outagePause(o.addFailure(err, now))
}

// setFailed records a failure of an attempt without a batch.
func (o *outage) setFailed(err error, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.addFailure(err, now)
}

// duration returns how long the outage has lasted, and its last failure. It returns nil if there is no
// outage.
func (o *outage) duration(now time.Time) (lasted time.Duration, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() {
		return 0, nil
	}
	return now.Sub(o.began), o.why
}

// postpone returns the answer to a batch that could not be given to the named endpoint or command.
func (o *outage) postpone(log *slog.Logger, name string, err error, now time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	after := outagePause(o.addFailure(err, now))
	if left, ok := o.warned.See(now.Sub(boot), warnFirst); ok {
		log.Warn("handler not reached, batches are postponed", "handler", name, "since", o.began, "retry_in", after, "left_out", left, "err", err)
	}
	return lowkiq.Postpone{After: after, Reason: err.Error()}
}

// end ends the outage, because a batch was taken, or would be taken.
func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.began, o.why = time.Time{}, nil
}

// outagePause returns as long a pause as the outage has lasted. So the pauses of a batch double,
// however many other batches are tried in the meantime.
func outagePause(lasted time.Duration) time.Duration {
	return min(max(lasted, minOutagePause), maxOutagePause)
}
