package web

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
)

// Node is what the API and the pages ask of a node.
type Node interface {
	Cluster
	// Name is the node's. It is settled before listen is called, see Attach.
	Name() string
	Client() *queue.Client
	Metrics() prometheus.Gatherer
	// Ready says why the node does not serve all its shards; nil if it does.
	Ready() error
	// Attach gives the node a server to run: listen is called before the first lease, which tells
	// the URL, and serve once, until the node has handed back all its shards.
	Attach(listen func() (url string, err error), serve func(context.Context) error) error
}

// Cluster answers what is asked of the cluster as a whole.
type Cluster interface {
	// Status is what the node knows of the cluster and its nodes, without the queues.
	Status(context.Context) (status.Status, error)
	// Shards lists the shards of all queues, ordered by queue and index.
	Shards(context.Context) ([]status.Shard, error)
	// Owners reads the leases once, for as many shards as are to be judged by them.
	Owners(context.Context) (status.Owners, error)
	// Handled says who handles which queue, by the leases of now.
	Handled(context.Context) (status.Handled, error)
	// Members lists what gossip says. ErrNoCluster: the node does not gossip.
	Members() ([]status.Member, error)
	// Plan says what would move if nodes came and went; it moves nothing. ErrNoCluster,
	// ErrUnknownNode, ErrNodeExists.
	Plan(ctx context.Context, add, remove []string) ([]status.Move, error)
	// Why explains why an id of a queue is not with a handler now.
	Why(ctx context.Context, q *queue.Queue, id string) (status.Why, error)
	// Drain asks a node to give its shards away (on), or to take some again, and returns
	// the instance that has got the request. ErrUnknownNode, ErrNotHeard.
	Drain(ctx context.Context, node string, on bool) (instance string, err error)
}
