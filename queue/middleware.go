package queue

import (
	"context"
	"fmt"

	"github.com/lowkiq/lowkiq"
)

// Pusher stores jobs in a queue; see [Queue.Push].
type Pusher func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error)

// Middleware wraps the pushes of a queue: it may look at jobs, change them, refuse them,
// or note what became of them. It must answer with one Result per job it was given.
type Middleware func(queue string, next Pusher) Pusher

// pusher builds the way of a push: middlewares, the first one outermost, then the
// encoder, then Redis.
func (q *Queue) pusher() Pusher {
	push := Pusher(q.store)
	if encode := q.c.cfg.Encode; encode != nil {
		push = encoded(encode, push)
	}
	for i := len(q.c.cfg.Middlewares) - 1; i >= 0; i-- {
		push = q.c.cfg.Middlewares[i](q.Name, push)
	}
	return push
}

// encoded encodes payloads on their way. One that cannot be encoded refuses its job only.
func encoded(encode func([]byte) ([]byte, error), next Pusher) Pusher {
	return func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
		results := make([]Result, len(jobs))
		good, places := make([]lowkiq.Push, 0, len(jobs)), make([]int, 0, len(jobs))
		for i, job := range jobs {
			payload, err := encode(job.Payload)
			if err != nil {
				results[i].Err = fmt.Errorf("job %q: encode: %w", job.ID, err)
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
