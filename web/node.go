package web

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/status"
)

// Node is the part of a node that API and pages need.
type Node interface {
	status.Source // its name is settled before listen is called, see Attach
	Metrics() prometheus.Gatherer
	// Ready returns why the node does not serve all its shards, nil if it does.
	Ready() error
	// Attach gives the node a server to run. The node calls listen before its first lease, which publishes
	// the URL. It calls serve once, whose context ends when the node has handed back all its shards.
	Attach(listen func() (url string, err error), serve func(context.Context) error) error
}
