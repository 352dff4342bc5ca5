package status

import (
	"context"

	"github.com/lowkiq/lowkiq/queue"
)

// Cluster answers what is asked of the cluster as a whole. node.Node.Cluster is the node's.
type Cluster interface {
	// Status is what the node knows of the cluster and its nodes, without the queues.
	Status(context.Context) (Status, error)
	// Shards lists the shards of all queues, ordered by queue and index.
	Shards(context.Context) ([]Shard, error)
	// Owners reads the leases once, for as many shards as are to be judged by them.
	Owners(context.Context) (Owners, error)
	// Handled says who handles which queue, by the leases of now.
	Handled(context.Context) (Handled, error)
	// Members lists what gossip says. ErrNoCluster: the node does not gossip.
	Members() ([]Member, error)
	// Plan says what would move if nodes came and went; it moves nothing. ErrNoCluster,
	// ErrUnknownNode, ErrNodeExists.
	Plan(ctx context.Context, add, remove []string) ([]Move, error)
	// Why explains why an id of a queue is not with a handler now.
	Why(ctx context.Context, q *queue.Queue, id string) (Why, error)
	// Cancel ends the handler call that an id is in. ErrNotRunning, ErrNoAnswer.
	Cancel(ctx context.Context, q *queue.Queue, id string, why queue.Cancellation) error
	// Drain asks a node to give its shards away (on), or to take some again, and returns
	// the instance that has got the request. ErrUnknownNode, ErrNotHeard.
	Drain(ctx context.Context, node string, on bool) (instance string, err error)
}
