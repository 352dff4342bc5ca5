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

	"github.com/lowkiq/lowkiq/internal/network/certs"
	"github.com/lowkiq/lowkiq/internal/network/connlimit"
	"github.com/lowkiq/lowkiq/internal/network/hosts"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
)

// TLS names PEM files, which are read again when they change. The zero value means no TLS.
type TLS struct {
	CertFile string // of the server
	KeyFile  string
	// CAFile holds the authorities of clients. With ClientAuth every request needs a certificate of
	// such an authority, except for /healthz and /readyz. If there are tokens, a request needs both.
	CAFile     string
	ClientAuth bool
}

// Validate returns an error if a field is missing. It reads no file.
func (t TLS) Validate() error { return t.certFiles().ValidateServer(t.ClientAuth) }

func (t TLS) certFiles() certs.Files {
	return certs.Files{Cert: t.CertFile, Key: t.KeyFile, CA: t.CAFile}
}

// Serve makes a node serve its API, its metrics and the pages, if there are any, from before its first lease
// until it has handed its shards back. It must be called before the node's Run.
func Serve(n Node, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}
	s := &attached{node: n, cfg: cfg}
	if cfg.TLS.CertFile != "" {
		s.certs, err = certs.Open(cfg.TLS.certFiles(), cfg.Log)
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
	certs    *certs.Store // nil without TLS
	pages    Pages        // nil if there are none
	server   *http.Server
	listener net.Listener
}

// listen opens the port. The node's name is known by now. The URL is part of the first lease, so the port is open
// before any other node can read the URL.
func (s *attached) listen() (url string, err error) {
	s.cfg.Log = s.cfg.Log.With("node", s.node.Name())
	for _, line := range s.cfg.listWarnings() {
		s.cfg.Log.Warn("reachable from other hosts", "detail", line)
	}
	handler, pages, err := buildHandler(s.node, s.cfg)
	if err != nil {
		return "", err
	}
	s.pages, s.server = pages, newServer(s.cfg.Address, handler, 0)
	s.server.ErrorLog = slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug) // such as scanners' handshakes
	if s.certs != nil {
		s.server.TLSConfig = s.certs.ServerConfig(s.cfg.TLS.ClientAuth)
	}
	if s.listener, err = net.Listen("tcp", s.cfg.Address); err != nil {
		return "", fmt.Errorf("http: %w", err)
	}
	return s.url(), nil
}

// url returns the URL where others reach the API.
func (s *attached) url() string {
	address := s.listener.Addr().String()
	if _, port, err := net.SplitHostPort(address); err == nil && hosts.IsEverywhere(address) {
		address = net.JoinHostPort(s.cfg.Advertise, port)
	}
	if s.certs != nil {
		return "https://" + address
	}
	return "http://" + address
}

// serve answers until ctx ends. The streams of the pages end with the pages' Run, and the streams of the API with
// the shutdown of the server.
func (s *attached) serve(ctx context.Context) error {
	defer logbuf.Flush(s.cfg.Log, time.Second)
	group, ctx := errgroup.WithContext(ctx)
	if s.pages != nil {
		group.Go(func() error { return s.pages.Run(ctx) })
	}
	group.Go(func() error { <-ctx.Done(); shutDown(s.server); return nil })
	group.Go(func() error {
		serve := s.server.Serve
		if s.server.TLSConfig != nil {
			serve = func(l net.Listener) error { return s.server.ServeTLS(l, "", "") }
		}
		if err := serve(boundConns(s.listener, 0)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("http: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// shutDown ends a server. It cuts off requests that take longer than a second. Calls and streams of events end
// at once, because newServer ends their context at the beginning of the shutdown.
func shutDown(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		server.Close() //nolint:errcheck // nothing is left to be saved
	}
}

// checkExposure returns an error if other hosts can reach the API and it is not secured.
func (cfg Config) checkExposure() error {
	if cfg.Address == "" || hosts.IsLoopback(cfg.Address) || !cfg.Tokens.Empty() || cfg.TLS.ClientAuth {
		return nil
	}
	return fmt.Errorf("http %s is reachable from other hosts: set a token (node.token_file), ask for client certificates (node.tls.client_auth: require), "+
		"listen on 127.0.0.1, or accept it with --insecure", cfg.Address)
}

// listWarnings returns the warnings about an accepted configuration.
func (cfg Config) listWarnings() (lines []string) {
	if err := cfg.checkExposure(); err != nil {
		lines = append(lines, "insecure: "+err.Error())
	}
	if !hosts.IsLoopback(cfg.Address) && !cfg.Tokens.Empty() && cfg.TLS.CertFile == "" {
		lines = append(lines, "http "+cfg.Address+" takes tokens unencrypted: set node.tls, unless a proxy in front of it ends TLS")
	}
	return lines
}

// ownNames returns the configured host names of the API, which are Names, Advertise and the host of Address.
func (cfg Config) ownNames() []string {
	names := append(slices.Clone(cfg.Names), cfg.Advertise)
	if host, _, err := net.SplitHostPort(cfg.Address); err == nil {
		names = append(names, host)
	}
	return names
}

// maxConnections bounds the open connections of a node's clients. Connections cost memory and file descriptors,
// which the node needs for Redis and the other nodes.
const maxConnections = 1024

// maxHeader bounds the bytes of a request's header. Any client that reaches the port may send that many on each
// of its connections.
const maxHeader = 16 << 10

// newServer returns a server that does not wait without end for slow or silent clients. It does not listen.
// Answers may take any time, because profiles and bulk actions do.
//
// n bounds the connections; 0 stands for maxConnections. If more than three quarters of n connections are open,
// each answer ends its connection, so that clients with idle connections do not keep out others. At most seven
// eighths of n requests are admitted at once. The server can then always close a connection without an admitted
// request to accept a health check.
func newServer(addr string, handler http.Handler, n int) *http.Server {
	var open atomic.Int64
	n = cmp.Or(n, maxConnections)
	near := int64(n) * 3 / 4
	all := &admissions{max: int64(n - max(1, n/8))}
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
		// The bytes that HTTP/2 buffers for a client before a handler reads them count for each connection.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100, MaxReceiveBufferPerConnection: 128 << 10, MaxReceiveBufferPerStream: 64 << 10},
	}
	s.RegisterOnShutdown(end)
	return s
}

// boundConns returns a listener with at most n open connections; 0 stands for maxConnections. A further
// connection closes an open connection without an admitted request. A client that accepts no bytes of its answer
// for writePatience loses its connection.
func boundConns(l net.Listener, n int) net.Listener {
	return patientListener{connlimit.Listener{Listener: l, Set: connlimit.New(connlimit.Limit{Total: cmp.Or(n, maxConnections)})}}
}
