package rebalance

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/internal/network/connlimit"
)

const (
	dialTimeout    = 2 * time.Second // of a dial, a handshake, and a Raft request
	handshakeLimit = 1 << 10         // bytes
	maxPool        = 2               // idle connections kept per server
)

// handshake opens every Raft connection. A connection to any other server than the current server
// is closed, so that two groups cannot write into each other's log.
type handshake struct {
	Cluster string `json:"cluster"`
	Record  uint64 `json:"record"`
	Target  string `json:"target"` // server id
}

// DialFunc opens a connection to host:port.
type DialFunc func(ctx context.Context, hostPort string) (net.Conn, error)

// ListenerConfig configures a Listener.
type ListenerConfig struct {
	Cluster   string       // name of the cluster; connections of another cluster are closed
	Listener  net.Listener // required; closed at the end of Run
	Advertise string       // host:port where other processes reach it; "" = the listener's address
	Dial      DialFunc     // nil = plain TCP; for TLS wrap both Listener and Dial
	Log       *slog.Logger // nil = discard

	timeout      time.Duration // for tests; 0 = dialTimeout
	requestLimit int64         // for tests; 0 = requestLimit
	patience     time.Duration // for tests; 0 = requestPatience
}

// Listener accepts Raft connections for the process's current server.
type Listener struct {
	cfg      ListenerConfig
	failures dialFailures

	mu     sync.Mutex // guards stream
	stream *stream    // of the current server; nil while there is no server
}

// NewListener returns a listener with the defaults of cfg filled in.
func NewListener(cfg ListenerConfig) *Listener {
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, hostPort string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", hostPort)
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.timeout == 0 {
		cfg.timeout = dialTimeout
	}
	if cfg.requestLimit == 0 {
		cfg.requestLimit = requestLimit
	}
	if cfg.patience == 0 {
		cfg.patience = requestPatience
	}
	if cfg.Advertise == "" {
		cfg.Advertise = cfg.Listener.Addr().String()
	}
	return &Listener{cfg: cfg}
}

// Address returns the host and port where other processes reach it.
func (l *Listener) Address() string { return l.cfg.Advertise }

// Transport opens the Raft transport of a server. It fits Config.Transport. The
// transport of the last server must be closed before. A server's address contains its
// id, and neither outlives the process, so addresses need no lookup.
func (l *Listener) Transport(server string) (raft.Transport, error) {
	s := &stream{
		listener:  l,
		handshake: handshake{l.cfg.Cluster, recordOf(server), server},
		address:   streamAddr(Address(server, l.cfg.Advertise)),
		accepted:  make(chan net.Conn),
		closed:    make(chan struct{}),
		conns:     map[net.Conn]struct{}{},
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream != nil {
		return nil, fmt.Errorf("raft transport of %s: that of %s is still open", server, l.stream.handshake.Target)
	}
	l.stream = s
	return newGuarded(raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, MaxPool: maxPool, Timeout: l.cfg.timeout, Logger: raftLogger(l.cfg.Log),
	})), nil
}

// Run accepts connections until ctx is done, then closes the listener.
func (l *Listener) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.cfg.Listener.Close() })
	defer stop()
	var handshakes sync.WaitGroup
	defer handshakes.Wait()
	for {
		conn, err := l.cfg.Listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("raft listener %s: %w", l.cfg.Listener.Addr(), err)
		case err != nil: // a passing error, such as too many open files
			l.cfg.Log.Warn("raft accept", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		handshakes.Go(func() { l.takeHandshake(ctx, conn) })
	}
}

// takeHandshake reads the handshake and delivers the connection if it is for the current server. If a
// bounded listener has too many connections, it closes those without a completed handshake first.
func (l *Listener) takeHandshake(ctx context.Context, conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(l.cfg.timeout))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	got, err := readHandshake(conn)
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	l.mu.Lock()
	s := l.stream
	l.mu.Unlock()
	if bounded := connlimit.ConnOf(conn); bounded != nil && err == nil && s != nil && got == s.handshake {
		bounded.Hold() // keep it in favour of connections without a handshake
	}
	if err != nil || s == nil || got != s.handshake || !s.deliver(conn) {
		l.cfg.Log.Debug("raft connection refused", "from", conn.RemoteAddr(), "handshake", got, "err", err)
		_ = conn.Close()
	}
}

func writeHandshake(w io.Writer, g handshake) error {
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(data))), data...))
	return err
}

func readHandshake(r io.Reader) (handshake, error) {
	var size [2]byte
	var g handshake
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return g, err
	}
	n := binary.BigEndian.Uint16(size[:])
	if n > handshakeLimit {
		return g, fmt.Errorf("handshake of %d bytes, the limit is %d", n, handshakeLimit)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return g, err
	}
	return g, json.Unmarshal(data, &g)
}

// streamAddr is a raft.ServerAddress as a net.Addr.
type streamAddr string

func (streamAddr) Network() string  { return "raft" }
func (a streamAddr) String() string { return string(a) }

// stream is the raft.StreamLayer of a server.
type stream struct {
	listener  *Listener
	handshake handshake
	address   streamAddr
	accepted  chan net.Conn
	closed    chan struct{}

	mu    sync.Mutex // guards conns and the closing of closed
	conns map[net.Conn]struct{}
}

var _ raft.StreamLayer = (*stream)(nil)

// deliver passes a connection to the server. It returns false if the stream is closed.
func (s *stream) deliver(conn net.Conn) bool {
	s.mu.Lock()
	select {
	case <-s.closed:
		s.mu.Unlock()
		return false
	default:
	}
	s.conns[conn] = struct{}{}
	s.mu.Unlock()
	select {
	case s.accepted <- newBoundedConn(acceptedConn{conn, s}, s.listener.cfg.requestLimit, s.listener.cfg.patience):
		return true
	case <-s.closed:
		return false
	}
}

// Accept returns the next connection for the server.
func (s *stream) Accept() (net.Conn, error) {
	select {
	case conn := <-s.accepted:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Addr returns the server's id and address.
func (s *stream) Addr() net.Addr { return s.address }

// Close frees the listener for the next server and closes all accepted connections.
func (s *stream) Close() error {
	s.listener.mu.Lock()
	if s.listener.stream == s {
		s.listener.stream = nil
	}
	s.listener.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return nil
	default:
	}
	close(s.closed)
	for conn := range s.conns {
		_ = conn.Close()
	}
	clear(s.conns)
	return nil
}

// Dial connects to another server and sends the handshake.
func (s *stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	target, hostPort, ok := splitAddress(address)
	if !ok {
		return nil, fmt.Errorf("dial raft server %q: its address must be id@host:port", address)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout) // Raft gives no context
	defer cancel()
	began := time.Now()
	conn, err := s.listener.cfg.Dial(ctx, hostPort)
	s.listener.failures.record(hostPort, began, time.Now(), err)
	if err != nil {
		return nil, fmt.Errorf("dial raft server %s: %w", address, err)
	}
	_ = conn.SetWriteDeadline(time.Now().Add(timeout))
	if err := writeHandshake(conn, handshake{s.handshake.Cluster, s.handshake.Record, target}); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("shake hands with raft server %s: %w", address, err)
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return conn, nil
}

// acceptedConn removes itself from its stream when it is closed.
type acceptedConn struct {
	net.Conn
	stream *stream
}

func (c acceptedConn) Close() error {
	c.stream.mu.Lock()
	delete(c.stream.conns, c.Conn)
	c.stream.mu.Unlock()
	return c.Conn.Close()
}

// Raft retries failed connections for ever and reports nothing, and a process that no other process reaches just waits. So the
// listener records addresses that fail, for people.

// Failing is an address whose connections have all failed since a time.
type Failing struct {
	Address string    // host:port
	Since   time.Time // when the first failed attempt began
	Last    time.Time // when the last attempt ended
	Err     error     // error of the last attempt
}

// failingKept is how long an address is remembered after the last attempt.
const failingKept = time.Minute

// dialFailures records failing addresses.
type dialFailures struct {
	mu      sync.Mutex
	failing map[string]Failing // by address; guarded by mu
}

// record records the outcome of an attempt.
func (d *dialFailures) record(address string, began, ended time.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.failing, func(_ string, f Failing) bool { return ended.Sub(f.Last) > failingKept })
	if err == nil {
		delete(d.failing, address)
		return
	}
	if d.failing == nil {
		d.failing = map[string]Failing{}
	}
	f, before := d.failing[address]
	if !before {
		f = Failing{Address: address, Since: began}
	}
	f.Last, f.Err = ended, err
	d.failing[address] = f
}

// Failing returns the failing addresses, ascending.
func (l *Listener) Failing() []Failing {
	l.failures.mu.Lock()
	defer l.failures.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.failures.failing), func(a, b Failing) int { return strings.Compare(a.Address, b.Address) })
}

// Probe connects to an address, closes the connection and records the outcome for Failing. A process that
// waits for the leader never connects to another process by itself.
func (l *Listener) Probe(ctx context.Context, hostPort string) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.timeout)
	defer cancel()
	began := time.Now()
	conn, err := l.cfg.Dial(ctx, hostPort)
	if context.Cause(ctx) == context.Canceled {
		err = nil // the process ends, so the outcome says nothing
	}
	l.failures.record(hostPort, began, time.Now(), err)
	if conn != nil {
		_ = conn.Close()
	}
}

// Called reports whether another process has a connection to this process's server.
func (l *Listener) Called() bool {
	l.mu.Lock()
	s := l.stream
	l.mu.Unlock()
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > 0
}
