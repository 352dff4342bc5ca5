package rebalance

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/internal/connlimit"
)

const (
	streamTimeout = 2 * time.Second // for a dial, a greeting, one Raft request
	greetingLimit = 1 << 10         // bytes
)

// greeting opens every Raft connection. A connection that is not for exactly the
// server at hand is closed, so that two histories cannot write into each other.
type greeting struct {
	Cluster string `json:"cluster"`
	Record  uint64 `json:"record"`
	Target  string `json:"target"` // server id
}

// DialFunc opens a connection to host:port.
type DialFunc func(ctx context.Context, hostPort string) (net.Conn, error)

// ListenerConfig says where and for whom a Listener listens.
type ListenerConfig struct {
	Cluster   string       // the cluster's name; connections of another one are closed
	Listener  net.Listener // required; closed at the end of Run
	Advertise string       // host:port at which the other processes reach it; "" = the listener's address
	Dial      DialFunc     // nil = plain TCP; for TLS wrap both Listener and Dial
	Log       *slog.Logger // nil = discard

	timeout time.Duration // for tests; 0 = streamTimeout
}

// Listener takes Raft connections for the process's server, whichever it is at the
// moment.
type Listener struct {
	cfg   ListenerConfig
	reach reach

	mu     sync.Mutex // guards stream
	stream *stream    // of the current server; nil while there is none
}

// NewListener fills in the defaults.
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
		cfg.timeout = streamTimeout
	}
	if cfg.Advertise == "" {
		cfg.Advertise = cfg.Listener.Addr().String()
	}
	return &Listener{cfg: cfg}
}

// Address returns where the other processes reach it.
func (l *Listener) Address() string { return l.cfg.Advertise }

// Transport opens the Raft transport of a server; it fits Config.Transport. The
// transport of the server before must be closed first. A server's address holds its
// id, and neither outlives the process, so no address is ever looked up.
func (l *Listener) Transport(server string) (raft.Transport, error) {
	s := &stream{
		listener: l,
		greeting: greeting{l.cfg.Cluster, recordOf(server), server},
		address:  streamAddr(Address(server, l.cfg.Advertise)),
		accepted: make(chan net.Conn),
		closed:   make(chan struct{}),
		conns:    map[net.Conn]struct{}{},
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream != nil {
		return nil, fmt.Errorf("raft transport of %s: that of %s is still open", server, l.stream.greeting.Target)
	}
	l.stream = s
	return guard(raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, MaxPool: 2, Timeout: l.cfg.timeout, Logger: raftLogger(l.cfg.Log),
	})), nil
}

// Run accepts connections until ctx is done, then closes the listener.
func (l *Listener) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.cfg.Listener.Close() })
	defer stop()
	var greetings sync.WaitGroup
	defer greetings.Wait()
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
		case err != nil: // such as too many open files: it passes
			l.cfg.Log.Warn("raft accept", "err", err)
			wait(ctx, 100*time.Millisecond)
			continue
		}
		greetings.Go(func() { l.greet(ctx, conn) })
	}
}

// greet reads the greeting and passes the connection on if it is for the server. Of a listener with a bound, only
// those that have greeted are held.
func (l *Listener) greet(ctx context.Context, conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(l.cfg.timeout))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	got, err := readGreeting(conn)
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	l.mu.Lock()
	s := l.stream
	l.mu.Unlock()
	if bounded := connlimit.Of(conn); bounded != nil && err == nil && s != nil && got == s.greeting {
		bounded.Hold() // not to be closed for strangers
	}
	if err != nil || s == nil || got != s.greeting || !s.pass(conn) {
		l.cfg.Log.Debug("raft connection refused", "from", conn.RemoteAddr(), "greeting", got, "err", err)
		_ = conn.Close()
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func writeGreeting(w io.Writer, g greeting) error {
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(data))), data...))
	return err
}

func readGreeting(r io.Reader) (greeting, error) {
	var size [2]byte
	var g greeting
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return g, err
	}
	n := binary.BigEndian.Uint16(size[:])
	if n > greetingLimit {
		return g, fmt.Errorf("greeting of %d bytes, the limit is %d", n, greetingLimit)
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

// stream is the raft.StreamLayer of one server.
type stream struct {
	listener *Listener
	greeting greeting
	address  streamAddr
	accepted chan net.Conn
	closed   chan struct{}

	mu    sync.Mutex // guards conns and the closing of closed
	conns map[net.Conn]struct{}
}

var _ raft.StreamLayer = (*stream)(nil)

// pass gives the server a connection; false if it is closed meanwhile.
func (s *stream) pass(conn net.Conn) bool {
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
	case s.accepted <- &budget{Conn: acceptedConn{conn, s}}:
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

// Close frees the listener for the next server and closes what was accepted.
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

// Dial connects to another server and greets it.
func (s *stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	target, hostPort, ok := splitAddress(address)
	if !ok {
		return nil, fmt.Errorf("dial raft server %q: want id@host:port", address)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout) // Raft gives no context
	defer cancel()
	began := time.Now()
	conn, err := s.listener.cfg.Dial(ctx, hostPort)
	s.listener.reach.note(hostPort, began, time.Now(), err)
	if err != nil {
		return nil, fmt.Errorf("dial raft server %s: %w", address, err)
	}
	_ = conn.SetWriteDeadline(time.Now().Add(timeout))
	if err := writeGreeting(conn, greeting{s.greeting.Cluster, s.greeting.Record, target}); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("greet raft server %s: %w", address, err)
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return conn, nil
}

// acceptedConn forgets itself when it is closed.
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
