package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq/internal/certs"
	"github.com/lowkiq/lowkiq/internal/connlimit"
	"github.com/lowkiq/lowkiq/internal/hosts"
	"github.com/lowkiq/lowkiq/internal/logbuf"
)

// TLS names PEM files; they are read again when they change. The zero value: no TLS.
type TLS struct {
	CertFile string // of the server
	KeyFile  string
	// CAFile holds the authorities of clients. With ClientAuth every caller has a certificate of
	// one of them, but for /healthz and /readyz, whose callers have none. With tokens both are
	// wanted.
	CAFile     string
	ClientAuth bool
}

// Validate says which field is missing; no file is read.
func (t TLS) Validate() error {
	if err := (certs.Files{Cert: t.CertFile, Key: t.KeyFile}).Validate(); err != nil {
		return err
	}
	switch {
	case t.CertFile == "" && (t.CAFile != "" || t.ClientAuth):
		return errors.New("cert_file and key_file are missing")
	case t.CAFile == "" && t.ClientAuth:
		return errors.New("client_auth: require wants ca_file: it says whose clients are let in")
	}
	return nil
}

// Serve makes a node serve its API, its metrics and the pages, if there are any, while it runs:
// from before its first lease until it has handed its shards back. It is called before the node's
// Run.
func Serve(n Node, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}
	s := &attached{node: n, cfg: cfg}
	if cfg.TLS.CertFile != "" {
		s.certs, err = certs.Open(certs.Files{Cert: cfg.TLS.CertFile, Key: cfg.TLS.KeyFile, CA: cfg.TLS.CAFile}, cfg.Log)
		if err != nil {
			return fmt.Errorf("web: tls: %w", err)
		}
	}
	return n.Attach(s.listen, s.serve)
}

// attached is a node's HTTP server.
type attached struct {
	node     Node
	cfg      Config
	certs    *certs.Store // nil: no TLS
	pages    Pages        // nil: none
	server   *http.Server
	listener net.Listener
}

// listen opens the port. The node's name is known by now.
func (s *attached) listen() (url string, err error) {
	s.cfg.Log = s.cfg.Log.With("node", s.node.Name())
	for _, line := range s.cfg.warnings() {
		s.cfg.Log.Warn("reachable from other hosts", "detail", line)
	}
	handler, pages, err := build(s.node, s.cfg)
	if err != nil {
		return "", err
	}
	s.pages, s.server = pages, server(s.cfg.Address, handler, 0)
	s.server.ErrorLog = slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug) // such as scanners' handshakes
	if s.certs != nil {
		s.server.TLSConfig = s.certs.Server(s.cfg.TLS.ClientAuth)
	}
	if s.listener, err = net.Listen("tcp", s.cfg.Address); err != nil {
		return "", fmt.Errorf("http: %w", err)
	}
	return s.url(), nil
}

// url is where others reach the API.
func (s *attached) url() string {
	address := s.listener.Addr().String()
	if _, port, err := net.SplitHostPort(address); err == nil && hosts.Everywhere(address) {
		address = net.JoinHostPort(s.cfg.Advertise, port)
	}
	if s.certs != nil {
		return "https://" + address
	}
	return "http://" + address
}

// serve answers until ctx ends. Streams of events end with the pages' Run: the server does not wait
// for them.
func (s *attached) serve(ctx context.Context) error {
	defer logbuf.Flush(s.cfg.Log, time.Second)
	group, ctx := errgroup.WithContext(ctx)
	if s.pages != nil {
		group.Go(func() error { return s.pages.Run(ctx) })
	}
	group.Go(func() error { <-ctx.Done(); shut(s.server); return nil })
	group.Go(func() error {
		serve := s.server.Serve
		if s.server.TLSConfig != nil {
			serve = func(l net.Listener) error { return s.server.ServeTLS(l, "", "") }
		}
		if err := serve(bounded(s.listener, 0)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("http: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// shut ends a server; requests that take longer than a second are cut off.
func shut(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		server.Close() //nolint:errcheck // nothing is left to be saved
	}
}

// exposed says what other hosts could do to an API that is not secured, and what would be right;
// nil if they cannot.
func (cfg Config) exposed() error {
	if cfg.Address == "" || hosts.Loopback(cfg.Address) || !cfg.Tokens.Empty() || cfg.TLS.ClientAuth {
		return nil
	}
	return fmt.Errorf("http %s is reachable from other hosts: set a token (node.token_file), ask for client certificates (node.tls.client_auth: require), "+
		"listen on 127.0.0.1, or say --insecure", cfg.Address)
}

// warnings are what an operator should know of a configuration that is accepted.
func (cfg Config) warnings() (lines []string) {
	if err := cfg.exposed(); err != nil {
		lines = append(lines, "insecure: "+err.Error())
	}
	if !hosts.Loopback(cfg.Address) && !cfg.Tokens.Empty() && cfg.TLS.CertFile == "" {
		lines = append(lines, "http "+cfg.Address+" takes tokens unencrypted: set node.tls, unless a proxy in front of it ends TLS")
	}
	return lines
}

// ownNames are the host names of the API that are configured in one way or another.
func (cfg Config) ownNames() []string {
	names := append(slices.Clone(cfg.Names), cfg.Advertise)
	if host, _, err := net.SplitHostPort(cfg.Address); err == nil {
		names = append(names, host)
	}
	return names
}

// maxConnections is how many clients a node is connected to at once. Connections cost
// memory and file descriptors, which the node needs for Redis and the other nodes.
const maxConnections = 1024

// maxHeader is most bytes of a request's header. Any client that reaches the port may send as much
// on each of its connections.
const maxHeader = 16 << 10

// server returns a server for handler that does not wait for ever for slow or silent
// clients. It does not listen. Answers may take any time: profiles and bulk actions do.
// Near the bound of n connections, maxConnections if n is 0, answers end their connection:
// clients that keep idle ones must not keep out others. Seven eighths of n requests are admitted at
// once, so that of the connections some can always be closed for a probe of the node's health.
func server(addr string, handler http.Handler, n int) *http.Server {
	var open atomic.Int64
	n = cmp.Or(n, maxConnections)
	near := int64(n) * 3 / 4
	all := &admissions{most: int64(n - max(1, n/8))}
	ending, end := context.WithCancel(context.Background())
	all.ending = ending
	s := &http.Server{
		Addr: addr,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if open.Load() > near {
				w.Header().Set("Connection", "close")
			}
			withBodyTimeout(w, r)
			handler.ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return withArrival(ctx, c, all) },
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed, http.StateHijacked:
				open.Add(-1)
			}
		},
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		// What HTTP/2 takes from a client before anybody reads it counts for each connection.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100, MaxReceiveBufferPerConnection: 128 << 10, MaxReceiveBufferPerStream: 64 << 10},
	}
	s.RegisterOnShutdown(end)
	return s
}

// bounded is a listener with at most n connections open at once, maxConnections if n is 0. One more
// closes one whose client has nothing under way that the server has admitted. A client that takes
// nothing of its answer for half a minute loses its connection.
func bounded(l net.Listener, n int) net.Listener {
	return patient{connlimit.Listener{Listener: l, Set: connlimit.New(connlimit.Limit{Total: cmp.Or(n, maxConnections)})}}
}
