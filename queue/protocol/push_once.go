package protocol

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
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
	if err := CheckNotReserved(q.Name); err != nil {
		return Result{}, err
	}
	q = q.Latest()
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
	q.deliverOnce(ctx, d, envelope.All(jobs), results)
	return results, firstError(results)
}

// SourceAge is the time for which a new layout refuses the numbers of sources that a former layout has taken. The numbers
// stay in the shards of the former layout.
const SourceAge = 30 * 24 * time.Hour

// checkFormer returns ErrDelivered if a shard of a former layout has taken the delivery. It may read these shards before
// the delivery is sent, because they are frozen and take no delivery in between.
func (q *Queue) checkFormer(ctx context.Context, d Delivery, id string) error {
	shards := q.FormerShards(id, SourceAge)
	if len(shards) == 0 {
		return nil
	}
	cmds := make([]redisdb.Cmd, len(shards))
	for i, s := range shards {
		cmds[i] = redisdb.Cmd{"HGET", s.keys.From, d.Source}
	}
	taken, err := q.registry.db.Pipeline(ctx, "read the numbers of deliveries", cmds...)
	if err != nil {
		return fmt.Errorf("queue %q, job %q: %w", q.Name, id, err)
	}
	for i, n := range taken {
		if redisdb.Int(n) >= d.Number {
			return fmt.Errorf("queue %q, job %q: %w: number %d of %s, by shard %d of layout %d", q.Name, id, ErrDelivered, d.Number, d.Source, shards[i].Index, shards[i].layout)
		}
	}
	return nil
}

// deliverOnce stores the job of a delivery. jobs is empty if a middleware has dropped the job.
func (q *Queue) deliverOnce(ctx context.Context, d Delivery, jobs []lowkiq.Push, results []Result) {
	for _, ch := range q.cutChunks(jobs, results) {
		if results[0].Err = q.checkFormer(ctx, d, jobs[0].ID); results[0].Err != nil {
			return
		}
		db, rules := q.registry.db, q.rules.Load()
		ch.Script, ch.Keys = db.Scripts.Deliver, q.shards[ch.shard].keys.For(db.Scripts.Deliver)
		ch.Args[0], ch.Args[1], ch.Args[2] = "m", rules.Payloads, rules.IDPayload
		q.fillMixedArgs(ch, jobs)
		ch.Args = append(ch.Args, d.Source, d.Number)
		ch.Reply, _, ch.Err = db.RunReplicated(ctx, ch.Script, ch.Keys, ch.Args...)
		if q.settleChunk(ctx, ch, q.newFlipWait()); ch.Err == errLeft { //nolint:errorlint // it is not wrapped
			next, err := q.successor(ctx)
			if results[0].Err = err; err == nil {
				next.deliverOnce(ctx, d, jobs, results)
			}
			return
		}
		if ch.Err == nil && ch.Reply == "d" {
			results[0].Err = fmt.Errorf("queue %q, job %q: %w: number %d of %s", q.Name, jobs[0].ID, ErrDelivered, d.Number, d.Source)
			continue
		}
		q.readAnswer(ch, jobs, results)
	}
	q.countStored(results)
}
