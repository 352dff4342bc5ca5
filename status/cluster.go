package status

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/internal/pause"
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
	Pausing
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

// Pausing says who has yet to notice that a queue is paused.
type Pausing interface {
	// MayBegin names the instances that may still begin jobs of a queue although it is paused.
	MayBegin(ctx context.Context, queue string) (instances []string, err error)
}

// pausePatience is longer than any node takes to notice a pause, or to be without its lease, with the
// ttl that it usually has: it looks at each renewal.
const pausePatience = 30 * time.Second

// AwaitPause waits, after a queue was paused, until no node begins a job of it any more. What handlers
// have by then goes on. late are the instances that may still begin one, if it has taken too long or
// the context has ended.
func AwaitPause(ctx context.Context, in Pausing, queue string) (late []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pausePatience)
	defer cancel()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second/2) {
		now, err := in.MayBegin(ctx, queue)
		switch {
		case err != nil && ctx.Err() != nil:
			return late, nil
		case err != nil || len(now) == 0:
			return nil, err
		}
		late = now
		if pause.For(ctx, wait) != nil {
			return late, nil
		}
	}
}
