package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/oklog/run"
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
