package node

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Where is an id in flight: does it wait for a process, or has a handler begun? Only the node that
// popped it knows.

func (in *instance) whereabouts(s lowkiq.Shard, id string) queue.Whereabouts {
	if o := in.claims.Get(s); o != nil {
		return o.Runner.Whereabouts(id)
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
