package redisdb

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server that is no master any more keeps its connections: it answers READONLY on each, or nothing at all. go-redis
// learns that of each connection alone, by a command that fails. So all connections of such an address are cut together.

// links are the open connections of a DB, and those that are being dialled.
type links struct {
	mu   sync.Mutex
	open map[*link]struct{} // guarded by mu
}

// link is a connection of go-redis.
type link struct {
	net.Conn // nil while it is dialled
	links    *links
	address  string    // of the client, as go-redis has it
	began    time.Time // when it was dialled
	end      func()    // ends it, or its dialling; guarded by links.mu
}

var errCut = errors.New("redis: the connection was cut while it was opened: its server is not the master")

// dial opens a connection and remembers it.
func (l *links) dial(ctx context.Context, address string, next func(context.Context) (net.Conn, error)) (net.Conn, error) {
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

// cut ends the connections of addresses whose dialling began before a moment.
func (l *links) cut(before time.Time, of func(address string) bool) {
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

// SyscallConn lets go-redis see that a connection is closed before it uses it. Of TLS it sees no more than that.
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

// opaque is a connection whose socket cannot be looked at.
type opaque struct{}

func (opaque) Control(func(uintptr)) error    { return nil }
func (opaque) Read(func(uintptr) bool) error  { return nil }
func (opaque) Write(func(uintptr) bool) error { return nil }

// dialer connects, also by TLS, for as long as the context lasts: go-redis's own goes on with a handshake.
func dialer(config *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	// A connection whose peer is silent for 45 s is dead.
	plain := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	if config == nil {
		return plain.DialContext
	}
	return (&tls.Dialer{NetDialer: plain, Config: config}).DialContext
}

// watched sees the connections, commands and answers of a client of go-redis that is for one address.
type watched struct {
	links   *links
	lookout *lookout // nil: no Redis Cluster
	address string
}

func (w watched) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := w.links.dial(ctx, w.address, func(ctx context.Context) (net.Conn, error) { return next(ctx, network, address) })
		w.lookout.failed(w.address, err)
		return conn, err
	}
}

func (w watched) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		began, stop := time.Now(), w.lookout.expect(w.address)
		err := next(ctx, cmd)
		stop()
		if slots, ok := cmd.(*redis.ClusterSlotsCmd); ok {
			err = namesNodes(slots, err)
		}
		if err != nil {
			w.answered(began, err)
		}
		return err
	}
}

func (w watched) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		began, stop := time.Now(), w.lookout.expect(w.address)
		err := next(ctx, cmds)
		stop()
		if err == nil {
			return nil
		}
		w.answered(began, err)
		for _, cmd := range cmds {
			if Says(cmd.Err(), "READONLY") {
				w.answered(began, cmd.Err())
				break
			}
		}
		return err
	}
}

// answered takes in how a command has failed.
func (w watched) answered(began time.Time, err error) {
	if Says(err, "READONLY") { // whoever is the master now is reached by other connections
		w.links.cut(began, func(address string) bool { return address == w.address })
	}
	w.lookout.failed(w.address, err)
}
