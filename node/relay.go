package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node/internal/relay"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// newRelay returns the relay of an instance.
func (in *instance) newRelay() *relay.Relay {
	return relay.New(relay.Config{
		Redis: in.node.client, Decoder: in.node.queues.decoderOf, Now: sinceBoot, Log: in.log,
		Failed: func(s lowkiq.Shard, err error) {
			if protocol.Transient(err) {
				in.ops.logWarning("deliver follow-ups", s, err)
			} else if left, ok := in.ops.lines.mayLog("follow-ups wait: " + err.Error()); ok && in.io.Err() == nil {
				in.log.Warn("follow-ups wait", "shard", s, "err", err, "left_out", left)
			}
		},
		Dropped: func(s lowkiq.Shard, o *protocol.Outgoing, err error) {
			reason := "invalid"
			switch {
			case errors.Is(err, protocol.ErrHops):
				reason = "hops"
			case errors.Is(err, protocol.ErrPayloadSize), errors.Is(err, protocol.ErrTooManyBytes):
				reason = "size"
			}
			in.node.metrics.RefusedFollowUp(s.Queue, reason)
			if left, ok := in.ops.lines.mayLog(fmt.Sprint("follow-up dropped: ", s.Queue, o.Queue, reason)); ok {
				in.log.Warn("follow-up dropped, as its queue will never take it", "shard", s, "ended", o.EndWord(), "id", o.ID, "to", o.Queue, "err", err, "left_out", left)
			}
		},
	})
}

// decoderOf returns the function that decodes the payloads of a queue, nil if they are stored as they are pushed.
func (q *queues) decoderOf(ctx context.Context, name string) (func([]byte) ([]byte, error), error) {
	if on := q.handled[name]; on != nil {
		return on.rules.Codec.Decode, nil
	}
	of, err := q.client.Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	if codec := of.Codec(); codec != "" {
		return nil, fmt.Errorf("queue %q: %w: codec %q, which is not here; a node that handles the queue delivers its follow-ups", name, protocol.ErrCodec, codec)
	}
	return nil, nil
}

// relayUnowned makes the relay look at shards that no live instance owns. It asks for all of them once per ttl, which is
// cheap, while their claims are read more rarely. A relay needs no claim, because the shard that gets a follow-up refuses
// repetitions.
func (in *instance) relayUnowned() {
	unowned := in.node.orphans.notOwnedBy(in.claims)
	if len(unowned) == 0 {
		return
	}
	some, err := in.node.client.HaveOutgoing(in.io, unowned...)
	if err != nil {
		in.ops.logWarning("look for follow-ups", nil, err)
	}
	for _, s := range some {
		in.relay.Kick(s, false)
	}
}
