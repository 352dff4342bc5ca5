package redisdb

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server that has stopped being a master keeps its connections. It answers READONLY on each, or
// nothing. go-redis notices that for each connection separately, when a command fails. So all
// connections to such an address are closed together.

// links has the open connections of a DB, and those that are being dialled.
type links struct {
	mu   sync.Mutex
	open map[*link]struct{} // guarded by mu

	answered atomic.Bool // whether a server has answered a command
}

// noteAnswer records that a server has answered if err is nil or an answer.
func (l *links) noteAnswer(err error) {
	if !l.answered.Load() && (err == nil || isAnswer(err)) {
		l.answered.Store(true)
	}
}

// link is a connection of go-redis.
type link struct {
	net.Conn // nil while it is being dialled
	links    *links
	address  string    // address of the client in go-redis
	began    time.Time // when dialling began
	end      func()    // closes it or cancels its dialling; guarded by links.mu
}

var errCut = errors.New("redis: the connection was cut while it was opened: its server is not the master")

// dialTracked opens a connection and adds it to links.
func (l *links) dialTracked(ctx context.Context, address string, next func(context.Context) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	one := &link{links: l, address: address, began: time.Now(), end: cancel}
	l.mu.Lock()
	l.open[one] = struct{}{}
	l.mu.Unlock()
	conn, err := next(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	_, wanted := l.open[one]
	switch {
	case err == nil && wanted:
		one.Conn, one.end = conn, func() { _ = conn.Close() }
		return one, nil
	case err == nil:
		_ = conn.Close()
		err = errCut
	case !wanted:
		err = errCut // not "canceled": the caller's context lasts
	}
	delete(l.open, one)
	return nil, err
}

// closeOlder closes the connections to addresses whose dialling began before a time.
func (l *links) closeOlder(before time.Time, of func(address string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range l.open {
		if one.began.Before(before) && of(one.address) {
			delete(l.open, one)
			one.end()
		}
	}
}

// Close closes the connection.
func (l *link) Close() error {
	l.links.mu.Lock()
	delete(l.links.open, l)
	l.links.mu.Unlock()
	return l.Conn.Close()
}

// SyscallConn lets go-redis notice, before it uses a connection, that the connection is closed. For TLS
// it tells no more than that.
func (l *link) SyscallConn() (syscall.RawConn, error) {
	if inner, ok := l.Conn.(syscall.Conn); ok {
		return inner.SyscallConn()
	}
	l.links.mu.Lock()
	defer l.links.mu.Unlock()
	if _, open := l.links.open[l]; !open {
		return nil, net.ErrClosed
	}
	return opaque{}, nil
}

// opaque is a connection without access to its socket.
type opaque struct{}

func (opaque) Control(func(uintptr)) error    { return nil }
func (opaque) Read(func(uintptr) bool) error  { return nil }
func (opaque) Write(func(uintptr) bool) error { return nil }

// newDialer returns a function that connects, with TLS if config is not nil. A dial and its
// handshake end with the context, and at the latest after the timeout, because go-redis dials for
// subscriptions with a context that may have no end.
func newDialer(config *tls.Config, timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	// A connection counts as dead once its peer has been silent for 45 s.
	plain := &net.Dialer{Timeout: timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	if config == nil {
		return plain.DialContext
	}
	return (&tls.Dialer{NetDialer: plain, Config: config}).DialContext
}

// watchHook observes the connections, commands and answers of a client of go-redis for an address.
type watchHook struct {
	links   *links
	lookout *lookout // nil without a Redis Cluster
	address string
}

func (w watchHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := w.links.dialTracked(ctx, w.address, func(ctx context.Context) (net.Conn, error) { return next(ctx, network, address) })
		w.lookout.suspectFailed(w.address, err)
		return conn, err
	}
}

func (w watchHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		began, stop := time.Now(), w.lookout.watchAnswer(w.address)
		ctx, cancel := w.lookout.boundQuestion(ctx, w.address)
		err := next(ctx, cmd)
		cancel()
		stop()
		w.links.noteAnswer(err)
		if slots, ok := cmd.(*redis.ClusterSlotsCmd); ok {
			return namesNodes(slots, err) // the lookout's own request, whose failure makes no suspect
		}
		if err != nil {
			w.noteOutcome(began, err)
		}
		return err
	}
}

func (w watchHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		began, stop := time.Now(), w.lookout.watchAnswer(w.address)
		err := next(ctx, cmds)
		stop()
		w.links.noteAnswer(err)
		for _, cmd := range cmds { // err belongs to the first command only
			if Says(cmd.Err(), "READONLY") {
				w.noteOutcome(began, cmd.Err())
				return err
			}
		}
		if err != nil {
			w.noteOutcome(began, err)
		}
		return err
	}
}

// noteOutcome handles the error of a command.
func (w watchHook) noteOutcome(began time.Time, err error) {
	if Says(err, "READONLY") { // the new master needs other connections
		w.links.closeOlder(began, func(address string) bool { return address == w.address })
	}
	w.lookout.suspectFailed(w.address, err)
}
