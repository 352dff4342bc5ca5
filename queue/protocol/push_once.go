package protocol

import (
	"context"
	"errors"
	"fmt"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
)

// Delivery identifies a push that must be stored exactly once.
type Delivery struct {
	Source string // who sends it, 1 to 255 bytes
	Number int64  // from 1 to 2^53; grows with each delivery of the source to a shard
}

// ErrDelivered means that the delivery, or a later delivery of its source, was stored before. Nothing was done.
var ErrDelivered = errors.New("delivered before")

// deliveryKey is the key of the Delivery in the context of its push.
type deliveryKey struct{}

// Deliver stores a job unless the same delivery was stored before (ErrDelivered), by this or by another
// process. The shard keeps the last number of each source for this. If there is no answer, repeat Deliver with
// the same delivery. Like [Queue.Push] it goes through middlewares and the codec, and the job may be refused.
// If Redis has replicas, Deliver waits a moment for one of them.
func (q *Queue) Deliver(ctx context.Context, d Delivery, job lowkiq.Push) (Result, error) {
	if d.Source == "" || len(d.Source) > 255 || d.Number < 1 || d.Number > 1<<53 {
		return Result{}, fmt.Errorf("delivery %d of source %.300q: the source must have 1 to 255 bytes, and the number must be between 1 and 2^53", d.Number, d.Source)
	}
	q.refreshEntry(ctx)
	results, err := (*q.deliver.Load())(context.WithValue(ctx, deliveryKey{}, d), []lowkiq.Push{job})
	if len(results) != 1 {
		return Result{}, errors.Join(err, fmt.Errorf("queue %q: a middleware answered with %d results to one job", q.Name, len(results)))
	}
	return results[0], results[0].Err
}

// storeDelivery stores the job of a delivery, after middlewares and codec. It is the counterpart of
// storeJobs.
func (q *Queue) storeDelivery(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	if into, ok := ctx.Value(collectKey{}).(*collector); ok {
		return q.collect(into, jobs)
	}
	results := make([]Result, len(jobs))
	d, ok := ctx.Value(deliveryKey{}).(Delivery)
	if !ok || len(jobs) > 1 {
		for i := range results {
			results[i].Err = fmt.Errorf("queue %q: a middleware made %d jobs of a delivery, or dropped its context", q.Name, len(jobs))
		}
		return results, firstError(results)
	}
	if len(jobs) == 1 && jobs[0].Urgent {
		results[0].Err = fmt.Errorf("queue %q, job %.300q: a delivery must not be urgent", q.Name, jobs[0].ID)
		return results, results[0].Err
	}
	jobs = envelope.All(jobs)
	for _, ch := range q.cutChunks(jobs, results) {
		db, rules := q.registry.db, q.rules.Load()
		ch.Script, ch.Keys = db.Scripts.Deliver, q.shards[ch.shard].keys.For(db.Scripts.Deliver)
		ch.Args[0], ch.Args[1], ch.Args[2] = "m", rules.Payloads, rules.IDPayload
		q.fillMixedArgs(ch, jobs)
		ch.Args = append(ch.Args, d.Source, d.Number)
		ch.Reply, _, ch.Err = db.RunReplicated(ctx, ch.Script, ch.Keys, ch.Args...)
		q.retryIfUnmarked(ctx, ch)
		if ch.Err == nil && ch.Reply == "d" {
			results[0].Err = fmt.Errorf("queue %q, job %q: %w: number %d of %s", q.Name, jobs[0].ID, ErrDelivered, d.Number, d.Source)
			continue
		}
		q.readAnswer(ch, jobs, results)
	}
	q.countStored(results)
	return results, firstError(results)
}
