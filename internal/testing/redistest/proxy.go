package redistest

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy stands between clients and a Redis and breaks connections on purpose. A request is a command, also within a
// pipeline. Its methods may be called from any goroutine.
//
// At most one cut is armed at a time. The first request that matches spends it, on any connection. Requests that set up a
// connection (HELLO, AUTH, SELECT, CLIENT, READONLY) or subscribe are neither cut nor counted by CutBeforeReply and
// CutBeforeRequest. Before a cut the proxy waits for earlier replies only on connections that do not subscribe.
type Proxy struct {
	t    testing.TB
	port *port
	work sync.WaitGroup

	mu       sync.Mutex // guards the fields below; never held while reading or writing
	upstream string
	listener net.Listener
	refuse   bool
	links    map[*link]bool
	armed    *cut
	cuts     int
	delay    time.Duration
	requests map[string]int
}

// cut is a fault that waits for its request.
type cut struct {
	matches func(words []string) bool
	verdict verdict
}

// verdict says what happens to a request.
type verdict int

const (
	pass        verdict = iota
	loseReply           // it is executed, and the connection ends in place of its reply
	loseRequest         // it is not executed, and the connection ends
)

// NewProxy serves a proxy for the Redis at addr until the test ends. While Redis is away, a connection ends at once.
func NewProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	port, err := reservePort()
	if err != nil {
		t.Fatalf("proxy of %s: %v", addr, err)
	}
	p := &Proxy{
		t: t, upstream: addr, port: port,
		links: make(map[*link]bool), requests: make(map[string]int), refuse: true,
	}
	t.Cleanup(p.close)
	p.Refuse(false)
	return p
}

// Lead sends new connections to another Redis. Open connections stay, as when a name gets another address.
func (p *Proxy) Lead(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = addr
}

// Addr returns the proxy's host:port.
func (p *Proxy) Addr() string { return p.port.addr() }

// URL returns the address as a Redis URL, database 0.
func (p *Proxy) URL() string { return "redis://" + p.Addr() + "/0" }

// CutReplyOf arms a cut. Redis executes the first request whose words match, and the requests that were pipelined behind it
// in the same piece. Then the connection is closed. Replies to earlier requests still arrive, but no part of this reply.
func (p *Proxy) CutReplyOf(matches func(words []string) bool) { p.armVerdict(matches, loseReply) }

// CutRequestOf arms a cut. The first request whose words match does not reach Redis, nor do those that were pipelined behind
// it. The connection is closed once the replies to earlier requests have arrived.
func (p *Proxy) CutRequestOf(matches func(words []string) bool) { p.armVerdict(matches, loseRequest) }

// CutBeforeReply cuts the reply to the n-th request from now on. 1 is the next request.
func (p *Proxy) CutBeforeReply(n int) { p.armVerdict(matchNth(n), loseReply) }

// CutBeforeRequest cuts the n-th request from now on. 1 is the next request.
func (p *Proxy) CutBeforeRequest(n int) { p.armVerdict(matchNth(n), loseRequest) }

// Cuts returns how many cuts have been spent.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Requests returns how many requests with this command name came in, whether they were cut or not. The case of letters does
// not matter.
func (p *Proxy) Requests(command string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[strings.ToUpper(command)]
}

// Delay delays all requests from now on by d. 0 ends the delay.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// DropAll closes all connections. New connections are accepted.
func (p *Proxy) DropAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Refuse(true) refuses new connections, as a host without Redis does. Refuse(false) accepts them again. Open connections
// stay; see DropAll.
func (p *Proxy) Refuse(refuse bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse == refuse {
		return
	}
	p.refuse = refuse
	if refuse {
		_ = p.listener.Close()
		return
	}
	listener, err := Listen(p.Addr())
	if err != nil {
		p.refuse = true
		p.t.Errorf("proxy of %s: %v", p.upstream, err)
		return
	}
	p.listener = listener
	p.work.Go(func() { p.acceptAll(listener) })
}

func (p *Proxy) acceptAll(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed by Refuse
		}
		p.work.Go(func() { p.serveConn(conn) })
	}
}

func (p *Proxy) serveConn(conn net.Conn) {
	p.mu.Lock()
	upstream := p.upstream
	p.mu.Unlock()
	redis, err := net.DialTimeout("tcp", upstream, 5*time.Second)
	if err != nil {
		_ = conn.Close()
		return
	}
	l := newLink(p, conn, redis)
	if !p.admitLink(l) {
		l.close()
		return
	}
	l.forwardBoth()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// admitLink refuses a connection that was accepted just before Refuse.
func (p *Proxy) admitLink(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.refuse {
		p.links[l] = true
	}
	return !p.refuse
}

func (p *Proxy) armVerdict(matches func([]string) bool, v verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = &cut{matches: matches, verdict: v}
}

// judgeRequest counts a request and decides what happens to it.
func (p *Proxy) judgeRequest(words []string) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(words) > 0 {
		p.requests[strings.ToUpper(words[0])]++
	}
	if p.armed == nil || !p.armed.matches(words) {
		return pass
	}
	v := p.armed.verdict
	p.armed = nil
	p.cuts++
	return v
}

func (p *Proxy) currentDelay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

func (p *Proxy) close() {
	p.Refuse(true)
	p.DropAll()
	p.work.Wait()
	p.port.release()
}

// matchNth matches the n-th request, without those about the connection itself. The caller holds the proxy's mutex at every
// call.
func matchNth(n int) func([]string) bool {
	return func(words []string) bool {
		if len(words) == 0 || setsUp(words[0]) || isSubscription(words) {
			return false
		}
		n--
		return n == 0
	}
}

func setsUp(command string) bool {
	switch strings.ToUpper(command) {
	case "HELLO", "AUTH", "SELECT", "CLIENT", "READONLY":
		return true
	}
	return false
}

// isSubscription reports whether a request begins or ends a subscription.
func isSubscription(words []string) bool {
	return len(words) > 0 && strings.HasSuffix(strings.ToUpper(words[0]), "SUBSCRIBE")
}
