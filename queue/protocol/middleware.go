package protocol

import (
	"context"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
)

// Codec is a queue.Codec.
type Codec struct {
	Name           string // of the form of stored payloads
	Encode, Decode func([]byte) ([]byte, error)
}

// Pusher stores jobs in a queue; see [Queue.Push].
type Pusher = func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error)

// Middleware is a queue.Middleware.
type Middleware = func(queue string, next Pusher) Pusher

// applyRules makes the queue's pushes follow the rules of this client, its registry entry and the limits set
// at run time. A push then goes through the middlewares of the client and of the queue, the first outermost,
// then through the encoder, and then to Redis. The caller holds registry.mu.
func (q *Queue) applyRules(r PushRules) {
	r.Push = q.registry.liveLimits[q.Name].Or(strictestRules(q.entry.Push, r.Push)).WithDefaults()
	push, deliver := q.buildPusher(r, q.storeJobs), q.buildPusher(r, q.storeDelivery)
	q.rules.Store(&r)
	q.push.Store(&push)
	q.deliver.Store(&deliver)
}

// buildPusher puts the encoder and the middlewares before store. If the queue refuses pushes, the middlewares
// get the refusal in place of store. The caller holds registry.mu.
func (q *Queue) buildPusher(r PushRules, store Pusher) Pusher {
	push := store
	if refusal := q.checkPushable(r); refusal != nil {
		push = refuseAll(refusal)
	} else if r.Codec.Encode != nil {
		push = encodePayloads(r.Codec.Encode, push)
	}
	if CheckNotReserved(q.Name) != nil { // middlewares are for jobs of users
		return push
	}
	for _, m := range slices.Backward(slices.Concat(q.registry.cfg.Middlewares, r.Middlewares)) {
		push = m(q.Name, push)
	}
	return push
}

// refuseAll returns a Pusher that refuses every job for the same reason.
func refuseAll(reason error) Pusher {
	return func(_ context.Context, jobs []lowkiq.Push) ([]Result, error) {
		results := make([]Result, len(jobs))
		for i := range results {
			results[i].Err = reason
		}
		return results, firstError(results)
	}
}

// encodePayloads returns a Pusher that encodes payloads for next. A job whose payload cannot be encoded is
// refused, and so are the later jobs of its id (ErrUnsent). Otherwise they would be stored before a payload
// that can perhaps be encoded next time, and the id's payloads would lose their push order (I3).
func encodePayloads(encode func([]byte) ([]byte, error), next Pusher) Pusher {
	return func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
		results := make([]Result, len(jobs))
		good, indexes := make([]lowkiq.Push, 0, len(jobs)), make([]int, 0, len(jobs))
		failed := map[string]error{} // by id
		for i, job := range jobs {
			if cause := failed[job.ID]; cause != nil {
				results[i].Err = &unsentError{cause}
				continue
			}
			payload, err := encode(job.Payload)
			if err != nil {
				err = fmt.Errorf("job %q: encode: %w", job.ID, err)
				failed[job.ID], results[i].Err = err, err
				continue
			}
			job.Payload = payload
			good, indexes = append(good, job), append(indexes, i)
		}
		stored, err := next(ctx, good)
		if stored == nil && err != nil {
			return nil, err
		}
		for k, i := range indexes {
			results[i] = stored[k]
		}
		return results, firstError(results)
	}
}
