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
	// Status returns what the node knows of the cluster and its nodes, without the queues.
	Status(context.Context) (Status, error)
	// Shards returns the shards of all queues, ordered by queue and index.
	Shards(context.Context) ([]Shard, error)
	// Owners reads the leases, and returns a function that judges any number of shards by them.
	Owners(context.Context) (Owners, error)
	// Handled returns the instances that have a lease now, and the state of their queues.
	Handled(context.Context) (Handled, error)
	Pausing
	// Members returns the processes that gossip knows, or ErrNoCluster.
	Members() ([]Member, error)
	// Plan returns the moves of a plan with some nodes added and some removed. It moves nothing. Errors are ErrNoCluster,
	// ErrUnknownNode and ErrNodeExists.
	Plan(ctx context.Context, add, remove []string) ([]Move, error)
	// Why explains why no handler has an id of a queue now.
	Why(ctx context.Context, q *protocol.Queue, id string) (Why, error)
	// Cancel ends the handler call of an id. Errors are ErrNotRunning and ErrNoAnswer.
	Cancel(ctx context.Context, q *protocol.Queue, id string, why protocol.Cancellation) error
	// Drain asks a node to give its shards away (on), or to take shards again. It returns the instance that got the request.
	// Errors are ErrUnknownNode and ErrNotHeard.
	Drain(ctx context.Context, node string, on bool) (instance string, err error)
	Drainer
	// RedisFull says which Redis is full, "" if none is.
	RedisFull() string
	// RedisRefuses returns why Redis refuses the node's lease, "" if it does not.
	RedisRefuses() string
}

// Drainer knows the progress of an instance that was asked to give its shards away.
type Drainer interface {
	DrainProgress(ctx context.Context, instance string) (DrainProgress, error)
}

// DrainProgress is the progress of an instance, from its lease.
type DrainProgress struct {
	Ended  bool // its lease is gone
	Drains bool // it has noticed
	Shards int  // number of shards that it still owns
}

// drainPatience is the maximum time that an answer to a drain waits. Batches in flight may take longer.
const drainPatience = 30 * time.Second

// AwaitDrain waits until an instance has noticed a request to drain (on), or to take shards again, and until a draining instance
// has no shard left. If that takes too long or the context ends, it returns the progress so far. noticed reports whether the lease
// says what was asked.
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

// Pausing knows which instances have not noticed that a queue is paused.
type Pausing interface {
	// MayBegin returns the instances that may still begin jobs of a paused queue.
	MayBegin(ctx context.Context, queue string) (instances []string, err error)
}

// pausePatience is longer than a node with a usual ttl takes to notice a pause or to lose its lease. A node looks at each renewal.
const pausePatience = 30 * time.Second

// AwaitPause waits until no node begins jobs of a paused queue. Handler calls that have begun go on. If that takes too long or the
// context ends, late has the instances that may still begin a job.
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
