package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
)

// Delivery says what a push is that has to be stored once: which one of those that a source sends.
type Delivery struct {
	Source string // up to 255 bytes
	Number int64  // rises with each delivery of the source to a shard
}

// ErrDelivered: the delivery, or a later one of its source, was stored before. Nothing was done.
var ErrDelivered = errors.New("delivered before")

// deliveryKey is under which the context of a delivery has it.
type deliveryKey struct{}

// Deliver stores a job unless the same delivery was stored before (ErrDelivered), whoever has sent it.
// It is to be repeated until there is an answer. As a [Queue.Push] it goes through middlewares and
// the codec, and may be refused. It waits a moment for a replica, if there are any.
func (q *Queue) Deliver(ctx context.Context, d Delivery, job lowkiq.Push) (Result, error) {
	if d.Source == "" || len(d.Source) > 255 || d.Number < 1 || d.Number > 1<<53 {
		return Result{}, fmt.Errorf("delivery %d of source %.300q: want 1 to 255 bytes of source, and a number from 1 to 2^53", d.Number, d.Source)
	}
	q.look(ctx)
	results, err := (*q.deliver.Load())(context.WithValue(ctx, deliveryKey{}, d), []lowkiq.Push{job})
	if len(results) != 1 {
		return Result{}, errors.Join(err, fmt.Errorf("queue %q: a middleware answered with %d results to one job", q.Name, len(results)))
	}
	return results[0], results[0].Err
}

// takeIn is the end of a delivery's way.
func (q *Queue) takeIn(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	results := make([]Result, len(jobs))
	d, ok := ctx.Value(deliveryKey{}).(Delivery)
	if !ok || len(jobs) > 1 {
		for i := range results {
			results[i].Err = fmt.Errorf("queue %q: a middleware has made %d jobs of a delivery, or has dropped its context", q.Name, len(jobs))
		}
		return results, firstError(results)
	}
	jobs = envelope.All(jobs)
	for _, ch := range q.cut(jobs, results) {
		db, rules := q.registry.db, q.rules.Load()
		ch.Script, ch.Keys = db.Scripts.Deliver, q.shards[ch.shard].keys.For(db.Scripts.Deliver)
		ch.Args[0], ch.Args[1], ch.Args[2] = "m", rules.Payloads, rules.IDPayload
		q.fillAny(ch, jobs)
		ch.Args = append(ch.Args, d.Source, d.Number)
		ch.Reply, _, ch.Err = db.RunReplicated(ctx, ch.Script, ch.Keys, ch.Args...)
		q.again(ctx, ch)
		if ch.Err == nil && ch.Reply == "d" {
			results[0].Err = fmt.Errorf("queue %q, job %q: %w: number %d of %s", q.Name, jobs[0].ID, ErrDelivered, d.Number, d.Source)
			continue
		}
		q.answer(ch, jobs, results)
	}
	q.count(results)
	return results, firstError(results)
}
