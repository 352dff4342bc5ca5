package redistest

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy stands between clients and one Redis and breaks things on purpose. A
// request is one command, also inside a pipeline. Its methods may be called from
// any goroutine.
//
// One cut is armed at a time, and is spent by the first request that meets it, on
// whatever connection. Requests that set a connection up (HELLO, AUTH, SELECT,
// CLIENT, READONLY) or subscribe are neither cut nor counted by CutBeforeReply and
// CutBeforeRequest. A reply is waited for before a cut only on connections that do
// not subscribe.
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

// cut is a fault waiting for its request.
type cut struct {
	matches func(words []string) bool
	verdict verdict
}

// verdict says what happens to a request.
type verdict int

const (
	pass        verdict = iota
	loseReply           // it is executed, the connection ends instead of its reply
	loseRequest         // the connection ends instead of its execution
)

// NewProxy serves a proxy for the Redis at addr until the test ends. Redis need
// not be there: a connection ends at once while it is away.
func NewProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	port, err := reserve()
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

// Lead has new connections go to another Redis. Those that are open stay where they are, as when a name gets another
// address.
func (p *Proxy) Lead(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = addr
}

// Addr returns the proxy's host:port.
func (p *Proxy) Addr() string { return p.port.addr() }

// URL returns the address as a Redis URL, database 0.
func (p *Proxy) URL() string { return "redis://" + p.Addr() + "/0" }

// CutReplyOf arms a cut: the first request whose words match is executed by Redis,
// and so are those that came pipelined behind it in one piece; then the connection
// is closed. Replies to earlier requests still arrive, nothing of this one does.
func (p *Proxy) CutReplyOf(matches func(words []string) bool) { p.arm(matches, loseReply) }

// CutRequestOf arms a cut: the first request whose words match never reaches Redis,
// nor do those pipelined behind it. The connection is closed once the replies to
// earlier requests have arrived.
func (p *Proxy) CutRequestOf(matches func(words []string) bool) { p.arm(matches, loseRequest) }

// CutBeforeReply is CutReplyOf the n-th request from now on; 1 is the next one.
func (p *Proxy) CutBeforeReply(n int) { p.arm(nth(n), loseReply) }

// CutBeforeRequest is CutRequestOf the n-th request from now on; 1 is the next one.
func (p *Proxy) CutBeforeRequest(n int) { p.arm(nth(n), loseRequest) }

// Cuts returns how many cuts have been spent.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Requests returns how many requests with this command name came in, whatever
// became of them; the case of letters does not matter.
func (p *Proxy) Requests(command string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[strings.ToUpper(command)]
}

// Delay holds back everything that clients send from now on by d; 0 ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// DropAll closes all connections; new ones are welcome.
func (p *Proxy) DropAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Refuse(true) refuses new connections, as a host without Redis does;
// Refuse(false) accepts them again. Present connections stay: see DropAll.
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
	listener, err := listen(p.Addr())
	if err != nil {
		p.refuse = true
		p.t.Errorf("proxy of %s: %v", p.upstream, err)
		return
	}
	p.listener = listener
	p.work.Go(func() { p.accept(listener) })
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed by Refuse
		}
		p.work.Go(func() { p.serve(conn) })
	}
}

func (p *Proxy) serve(conn net.Conn) {
	p.mu.Lock()
	upstream := p.upstream
	p.mu.Unlock()
	redis, err := net.DialTimeout("tcp", upstream, 5*time.Second)
	if err != nil {
		_ = conn.Close()
		return
	}
	l := newLink(p, conn, redis)
	if !p.admit(l) {
		l.close()
		return
	}
	l.run()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// admit refuses a connection that was accepted just before Refuse.
func (p *Proxy) admit(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.refuse {
		p.links[l] = true
	}
	return !p.refuse
}

func (p *Proxy) arm(matches func([]string) bool, v verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = &cut{matches: matches, verdict: v}
}

// judge counts a request and says what happens to it.
func (p *Proxy) judge(words []string) verdict {
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

// nth matches the n-th request that is not about the connection itself. Its caller
// holds the proxy's mutex at every call.
func nth(n int) func([]string) bool {
	return func(words []string) bool {
		if len(words) == 0 || setsUp(words[0]) || subscribes(words) {
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

// subscribes also holds for the end of a subscription.
func subscribes(words []string) bool {
	return len(words) > 0 && strings.HasSuffix(strings.ToUpper(words[0]), "SUBSCRIBE")
}
