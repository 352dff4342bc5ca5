package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Where is an id in flight: does it wait for a process, or has a handler begun? Only the node that
// popped it knows.

func (in *instance) whereabouts(s lowkiq.Shard, id string) queue.Whereabouts {
	if r := in.runner(s); r != nil {
		return r.run.Whereabouts(id)
	}
	return queue.Whereabouts{}
}

const (
	askPatience    = time.Second            // with the node that is asked
	answerPatience = 250 * time.Millisecond // of the one that answers: news of shards wait behind it
)

// answer tells whoever asks where an id is.
func (in *instance) answer(q *queue.Question) {
	ctx, cancel := context.WithTimeout(in.io, answerPatience)
	defer cancel()
	if err := in.node.client.Answer(ctx, q, in.whereabouts(q.Shard, q.ID)); err != nil {
		in.trouble("answer", q.Shard, err)
	}
}

// ask finds out where the owner of a shard has an id. One that does not answer leaves it open.
func (n *Node) ask(ctx context.Context, s *queue.Shard, owner, id string) (queue.Whereabouts, error) {
	if in := n.current.Load(); in != nil && in.name == owner {
		return in.whereabouts(s.Shard, id), nil
	}
	return n.client.Whereabouts(ctx, owner, s, id, askPatience)
}

// handling says where a living owner has an id in flight.
func (f *facts) handling() string {
	age := ""
	if !f.job.Since.IsZero() {
		age = fmt.Sprintf(" %s ago", f.standing.Now.Sub(f.job.Since).Round(time.Millisecond))
	}
	owner, popped := f.shard.Owner, fmt.Sprintf("popped%s (flight %d)", age, f.job.Flight)
	switch f.where.Stage {
	case queue.Handled:
		return fmt.Sprintf("a handler of %s has it (flight %d) for %s; it was popped%s", owner, f.job.Flight, f.where.For.Round(time.Millisecond), cmp.Or(age, " before"))
	case queue.ForProcess:
		return fmt.Sprintf("%s, it waits for a process of %s: all that handle the queue there are busy", popped, owner)
	case queue.ForCall:
		return fmt.Sprintf("%s, it waits for a handler of %s: the queue is at its concurrency there", popped, owner)
	case queue.ForSlot:
		return fmt.Sprintf("%s, it waits for a handler of %s: the node is at its concurrency", popped, owner)
	case queue.Behind:
		return fmt.Sprintf("%s by %s, it waits for others of its shard that were popped before it", popped, owner)
	}
	return fmt.Sprintf("%s has it, %s, and does not say whether a handler has begun", owner, popped)
}
