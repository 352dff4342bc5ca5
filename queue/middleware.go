package queue

import (
	"context"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// PushRules are what holds for the payloads of one queue, from any client: one value
// for the program that pushes ([Client.SetRules]) and for the node that handles
// (node.QueueConfig.Push), which needs it for what comes in by its API and to decode. The
// zero value of a field is its default.
type PushRules struct {
	Codec Codec
	// Middlewares wrap every push, the first one outermost. They see payloads as they are
	// pushed, before Codec encodes them.
	Middlewares []Middleware

	// Limits of this client's pushes, where they are stricter than those of the registry, which
	// hold for every client that pushes: see Limits. Register and Registry.Publish write these
	// there.
	PayloadBytes int // longest payload as stored, bytes. Default 1 MiB
	Payloads     int // most payloads waiting for one id. Default 10,000
	IDPayload    int // most bytes of payloads waiting for one id. Default 16 MiB

	// Coalesce says what becomes of a payload that is pushed while others wait for its id, Debounce how long pushes put ids
	// off. Those of the registry hold where nothing is said; they are written there as limits are.
	Coalesce string // rules.CoalesceAll (the default), CoalesceLatest or CoalesceOnce
	Debounce rules.Debounce
}

// Codec turns payloads into what Redis stores, to compress or encrypt them, and back. Equal
// payloads must become equal bytes, or they do not merge. Without one they are stored as they are.
// Headers are stored as they are, with every codec: they are no place for secrets.
// The registry keeps the name: who pushes without the codec of that name is refused (ErrCodec).
type Codec struct {
	Name   string // of the form in which payloads are stored, as in "aes-gcm"
	Encode func([]byte) ([]byte, error)
	Decode func([]byte) ([]byte, error)
}

// Pusher stores jobs in a queue; see [Queue.Push].
type Pusher func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error)

// Middleware wraps the pushes of a queue: it may look at jobs, change them, refuse them,
// or note what became of them. It must answer with one Result per job it was given. Jobs may share
// one map of headers: give a job another one rather than change it.
type Middleware func(queue string, next Pusher) Pusher

// SetRules sets the rules of a queue for this client's pushes from now on. Every client
// that pushes to the queue needs them, that of a node included: there,
// node.QueueConfig.Push sets them. A node that takes pushes for a queue that it does not
// handle needs them by Node.Client().SetRules.
func (c *Client) SetRules(queue string, push PushRules) error {
	if err := CheckName("queue", queue); err != nil {
		return err
	}
	if err := push.limits().validate(); err != nil {
		return fmt.Errorf("queue %q: %w", queue, err)
	}
	if push.Codec.Decode != nil && push.Codec.Encode == nil {
		return fmt.Errorf("queue %q: the codec decodes and does not encode", queue)
	}
	if push.Codec.Name != "" && push.Codec.Encode == nil {
		return fmt.Errorf("queue %q: codec %q does not encode", queue, push.Codec.Name)
	}
	if push.Codec.Encode != nil {
		if err := CheckName("codec", push.Codec.Name); err != nil {
			return fmt.Errorf("queue %q: %w; the registry keeps it, as in \"aes-gcm\"", queue, err)
		}
	}
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.registry.rules[queue] = push
	if q := c.registry.queues[queue]; q != nil {
		q.obey(push)
	}
	return nil
}

// obey makes the queue's pushes go by rules and by its entry: through the middlewares of the client
// and of the queue, the first one outermost, then the encoder, then to Redis. The caller holds
// g.mu.
func (q *Queue) obey(r PushRules) {
	limits := q.registry.live[q.Name].or(q.entry.Limits.with(r.limits()))
	r.PayloadBytes, r.Payloads, r.IDPayload, r.Coalesce, r.Debounce = limits.PayloadBytes, limits.Payloads, limits.IDPayload, limits.Coalesce, limits.Debounce
	push, deliver := q.way(r, q.store), q.way(r, q.takeIn)
	q.rules.Store(&r)
	q.push.Store(&push)
	q.deliver.Store(&deliver)
}

// way is what pushes by rules go through before they are stored.
func (q *Queue) way(r PushRules, store Pusher) Pusher {
	push := store
	if refusal := q.refuses(r); refusal != nil {
		push = refused(refusal)
	} else if r.Codec.Encode != nil {
		push = encoded(r.Codec.Encode, push)
	}
	for _, m := range slices.Backward(slices.Concat(q.registry.cfg.Middlewares, r.Middlewares)) {
		push = m(q.Name, push)
	}
	return push
}

// encoded encodes payloads on their way. One that cannot be encoded refuses its job, and
// the later ones of the same id, which would be stored before it if it can be next time.
func encoded(encode func([]byte) ([]byte, error), next Pusher) Pusher {
	return func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
		results := make([]Result, len(jobs))
		good, places := make([]lowkiq.Push, 0, len(jobs)), make([]int, 0, len(jobs))
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
			good, places = append(good, job), append(places, i)
		}
		stored, err := next(ctx, good)
		if stored == nil && err != nil {
			return nil, err
		}
		for k, i := range places {
			results[i] = stored[k]
		}
		return results, firstError(results)
	}
}
