package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
)

// server is what Attach was given.
type server struct {
	listen func() (url string, err error)
	serve  func(context.Context) error
}

// Attach makes Run run a server, such as the API: see web.Serve. listen is called once the node has
// its name, and before the first lease, which tells the URL that it returns. Then serve is called,
// once, until the node has handed back all its shards; it ends, and closes what listen has opened,
// when its context does. An error of either ends Run.
func (n *Node) Attach(listen func() (url string, err error), serve func(context.Context) error) error {
	switch {
	case n.started.Load():
		return errors.New("node: Attach was called after Run")
	case n.server.serve != nil:
		return errors.New("node: a server is attached already")
	}
	n.server = server{listen, serve}
	return nil
}

// addServer opens the attached server and runs it after the instances' end.
func (n *Node) addServer(group *run.Group) error {
	if n.server.serve == nil {
		return nil
	}
	url, err := n.server.listen()
	if err != nil {
		return err
	}
	n.url.Store(&url)
	ctx, cancel := context.WithCancel(context.Background())
	group.Add(func() error {
		if err := n.server.serve(ctx); err != nil {
			return fmt.Errorf("node: %w", err)
		}
		<-ctx.Done()
		return nil
	}, func(error) { <-n.stopped; cancel() })
	return nil
}

// closeServer frees the port of a node that does not get to serve.
func (n *Node) closeServer() error {
	if n.server.serve == nil {
		return nil
	}
	ended, end := context.WithCancel(context.Background())
	end()
	return n.server.serve(ended)
}

// URL is where the attached server is reached, "" while there is none.
func (n *Node) URL() string {
	if url := n.url.Load(); url != nil {
		return *url
	}
	return ""
}

// Metrics are what the node exports, and what else is in Config.Registry.
func (n *Node) Metrics() prometheus.Gatherer { return n.cfg.Registry }

// Ready says why the node does not serve all its shards yet, or any more: nil if it
// does. A rolling update waits for it.
func (n *Node) Ready() error {
	in := n.current.Load()
	switch {
	case in == nil:
		return errors.New("no lease yet")
	case in.leaves():
		return errors.New("draining")
	case n.cluster != nil && n.cluster.Superseded():
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

func (n *Node) nodeStatus(other queue.Instance, left time.Duration) status.Node {
	if other.Lease == nil {
		return status.Node{Name: identity.NodeOf(other.Name), Instance: other.Name, State: status.Gone}
	}
	info, err := identity.ParseLease(other.Lease)
	if err != nil {
		return status.Node{Name: identity.NodeOf(other.Name), Instance: other.Name, State: status.Live}
	}
	s := status.Node{Name: info.Node, Instance: info.Instance, State: status.Live, HTTP: info.HTTP}
	s.LeaseAge = max(0, time.Duration(info.TTL)*time.Millisecond-left).Seconds()
	if n.cluster != nil {
		s.Voter = slices.Contains(n.cluster.Status().Voters, info.RaftInfo.Server)
	}
	if info.Draining {
		s.State = status.Draining
	}
	for _, owned := range info.Queues {
		s.Shards += owned
	}
	return s
}
