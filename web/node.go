package web

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
)

// Node is what the API and the pages ask of a node.
type Node interface {
	// Name is the node's. It is settled before listen is called, see Attach.
	Name() string
	Client() *queue.Client
	// Cluster answers questions about the cluster as a whole.
	Cluster() status.Cluster
	Metrics() prometheus.Gatherer
	// Ready says why the node does not serve all its shards; nil if it does.
	Ready() error
	// Rules are those of a queue in the node's configuration, by key; nil if it does not handle the queue.
	Rules(queue string) map[string]rules.Base
	// Attach gives the node a server to run: listen is called before the first lease, which tells
	// the URL, and serve once, until the node has handed back all its shards.
	Attach(listen func() (url string, err error), serve func(context.Context) error) error
}
