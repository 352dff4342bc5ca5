package status

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Cluster answers questions about the cluster as a whole. See [Of].
type Cluster interface {
	// Status is what the node knows of the cluster and its nodes, without the queues.
	Status(context.Context) (Status, error)
	// Shards lists the shards of all queues, ordered by queue and index.
	Shards(context.Context) ([]Shard, error)
	// Owners reads the leases once, for as many shards as are to be judged by them.
	Owners(context.Context) (Owners, error)
	// Handled are the instances that have a lease now: who handles which queue, and what keeps it.
	Handled(context.Context) (Handled, error)
	Pausing
	// Members lists what gossip says. ErrNoCluster: the node does not gossip.
	Members() ([]Member, error)
	// Plan says what would move if nodes came and went; it moves nothing. ErrNoCluster,
	// ErrUnknownNode, ErrNodeExists.
	Plan(ctx context.Context, add, remove []string) ([]Move, error)
	// Why explains why an id of a queue is not with a handler now.
	Why(ctx context.Context, q *protocol.Queue, id string) (Why, error)
	// Cancel ends the handler call that an id is in. ErrNotRunning, ErrNoAnswer.
	Cancel(ctx context.Context, q *protocol.Queue, id string, why protocol.Cancellation) error
	// Drain asks a node to give its shards away (on), or to take some again, and returns
	// the instance that has got the request. ErrUnknownNode, ErrNotHeard.
	Drain(ctx context.Context, node string, on bool) (instance string, err error)
	Drainer
	// RedisRefuses is why Redis refuses the node's lease, "" if it does not.
	RedisRefuses() string
}

// Drainer says how far an instance is that was asked to give its shards away.
type Drainer interface {
	DrainProgress(ctx context.Context, instance string) (DrainProgress, error)
}

// DrainProgress is how far it is, as its lease says.
type DrainProgress struct {
	Ended  bool // its lease is gone
	Drains bool // it has noticed
	Shards int  // that it still owns
}

// drainPatience is how long an answer to a drain waits. Batches in flight may take longer.
const drainPatience = 30 * time.Second

// AwaitDrain waits, after an instance was asked to give its shards away (on) or to take some again, until it has noticed, and has none
// left. If that takes too long or the context ends, it returns how far the instance is. noticed: its lease says that it does as asked.
func AwaitDrain(ctx context.Context, in Drainer, instance string, on bool) (now DrainProgress, noticed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second/2) {
		next, err := in.DrainProgress(ctx, instance)
		if err != nil {
			if ctx.Err() != nil {
				err = nil
			}
			return now, noticed, err
		}
		now, noticed = next, next.Ended || next.Drains == on
		if next.Ended || noticed && (!on || next.Shards == 0) || sleep.For(ctx, wait) != nil {
			return now, noticed, nil
		}
	}
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
// have by then goes on. late are the instances that may still begin a job, if it has taken too long or
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
		if sleep.For(ctx, wait) != nil {
			return late, nil
		}
	}
}

// StillMayBegin returns the error of a pause that instances have not noticed.
func StillMayBegin(queue string, instances []string) error {
	return fmt.Errorf("queue %s is paused, but what has not noticed yet may still begin jobs of it, until it does or its lease ends: %s; pause it again to wait for that",
		queue, strings.Join(instances, ", "))
}
