package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/oklog/run"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// What the node tells the world over HTTP.

// addHTTP serves the API, if configured.
func (n *Node) addHTTP(group *run.Group) error {
	if n.cfg.HTTP == "" {
		return nil
	}
	listener, err := net.Listen("tcp", n.cfg.HTTP)
	if err != nil {
		return fmt.Errorf("node: http: %w", err)
	}
	n.listener.Store(&listener)
	pages, err := n.dashboard()
	if err != nil {
		return errors.Join(fmt.Errorf("node: %w", err), n.closeListener())
	}
	server, err := n.server(pages)
	if err != nil {
		return errors.Join(fmt.Errorf("node: %w", err), n.closeListener())
	}
	n.addPages(group, pages)
	group.Add(func() error { return n.serve(server, listener) }, func(error) { <-n.stopped; shut(server) })
	return nil
}

func (n *Node) serve(server *http.Server, listener net.Listener) error {
	serve := server.Serve
	if server.TLSConfig != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(web.Bounded(listener, n.cfg.connections)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("node: http: %w", err)
	}
	return nil
}

// shut ends a server; requests that take longer than a second are cut off.
func shut(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		server.Close() //nolint:errcheck // nothing is left to be saved
	}
}

// closeListener frees the port of a node that does not get to serve.
func (n *Node) closeListener() error {
	if l := n.listener.Load(); l != nil {
		return (*l).Close()
	}
	return nil
}

// URL is where the API is served, "" while it is not.
func (n *Node) URL() string {
	l := n.listener.Load()
	if l == nil {
		return ""
	}
	address := (*l).Addr().String()
	if _, port, err := net.SplitHostPort(address); err == nil && everywhere(address) {
		address = net.JoinHostPort(n.cfg.Advertise, port)
	}
	if n.certs != nil {
		return "https://" + address
	}
	return "http://" + address
}

func (n *Node) server(pages http.Handler) (*http.Server, error) {
	n.cfg.Registry.MustRegister(&metrics.Shards{
		Read: n.figures, Timeout: n.cfg.TTL, // a scrape must not hang longer than a lease
		Failed: func(err error) {
			if !n.outOfReach("read figures for a scrape", err) {
				n.log.Warn("figures not read for a scrape", "err", err)
			}
		},
	})
	handler, err := web.New(web.Config{
		Client: n.client, Status: n.status, Cluster: n.answers(), Ready: n.Ready, Metrics: n.cfg.Registry, Pages: pages,
		Names: n.httpNames(), RequestMemory: n.cfg.RequestMemory,
		Tokens: n.cfg.Tokens, Certificates: n.cfg.TLS.ClientAuth == ClientRequire, Log: n.log, Version: n.cfg.Version,
	})
	if err != nil {
		return nil, err
	}
	server := web.Server(n.cfg.HTTP, handler, n.cfg.connections)
	server.ErrorLog = slog.NewLogLogger(n.log.Handler(), slog.LevelDebug) // such as scanners' handshakes
	if n.certs != nil {
		server.TLSConfig = n.certs.Server(n.cfg.TLS.ClientAuth == ClientRequire)
	}
	return server, nil
}

// httpNames are the host names of the API that are configured in one way or another.
func (n *Node) httpNames() []string {
	names := append(slices.Clone(n.cfg.HTTPNames), n.cfg.Advertise)
	if host, _, err := net.SplitHostPort(n.cfg.HTTP); err == nil {
		names = append(names, host)
	}
	return names
}

// Ready says why the node does not serve all its shards yet, or any more: nil if it
// does. A rolling update waits for it.
func (n *Node) Ready() error {
	in := n.current.Load()
	switch {
	case in == nil:
		return errors.New("no lease yet")
	case in.leaves():
		return errors.New("draining")
	case n.cluster != nil && n.cluster.taken.Load() != nil:
		return fmt.Errorf("name %s is taken by a newer process", n.cfg.Name)
	case !in.mayWork():
		return errors.New("lease lost, taking a new one")
	case n.unready.text() != "":
		return errors.New(n.unready.text())
	case !n.settled.Load():
		return errors.New("shards are not claimed yet")
	}
	return nil
}

// status describes the cluster as Redis shows it.
func (n *Node) status(ctx context.Context) (web.Status, error) {
	status, err := n.peers(ctx)
	if err != nil {
		return status, err
	}
	handled, err := n.handledBy(ctx)
	if err != nil {
		return status, err
	}
	status.Queues, err = web.Queues(ctx, n.client, handled)
	return status, err
}

func (n *Node) nodeStatus(other queue.Instance, left time.Duration) web.NodeStatus {
	if other.Lease == nil {
		return web.NodeStatus{Name: identity.NodeOf(other.Name), Instance: other.Name, State: web.Gone}
	}
	info, err := identity.ParseLease(other.Lease)
	if err != nil {
		return web.NodeStatus{Name: identity.NodeOf(other.Name), Instance: other.Name, State: web.Live}
	}
	s := web.NodeStatus{Name: info.Node, Instance: info.Instance, State: web.Live, HTTP: info.HTTP}
	s.LeaseAge = max(0, time.Duration(info.TTL)*time.Millisecond-left).Seconds()
	if n.cluster != nil {
		s.Voter = slices.Contains(n.cluster.agent.Status().Voters, info.RaftInfo.Server)
	}
	if info.Draining {
		s.State = web.Draining
	}
	for _, owned := range info.Queues {
		s.Shards += owned
	}
	return s
}
