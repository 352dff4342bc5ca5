package protocol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// A built-in queue gets jobs from lowkiq itself. Its handler is a part of every node.

// maxReadPayloads is the number of payloads of a crowded id that ReadID reads. The rules of a built-in queue bound their bytes.
const maxReadPayloads = 1000

// ReadID reads the state of an id of any queue and the first payloads of the id, in-flight payloads first, in one
// transaction. The state is nil if the handler keeps none. Both are nil if nobody has registered the queue.
func (c *Client) ReadID(ctx context.Context, queue, id string) (state []byte, first []lowkiq.Payload, err error) {
	s, err := c.findShard(ctx, queue, id)
	if s == nil || err != nil {
		return nil, nil, err
	}
	prefix := packed.SpillPrefix("w", id)
	replies, err := c.db.ReadAtomic(ctx, "read an id of "+s.String(),
		redisdb.Cmd{"HGET", s.keys.States, id}, redisdb.Cmd{"HGET", s.keys.Jobs, id}, redisdb.Cmd{"HGET", s.keys.Parked, id},
		redisdb.Cmd{"ZRANGEBYLEX", s.keys.Spill, "[" + prefix, "(" + strings.TrimSuffix(prefix, ":") + ";", "LIMIT", 0, maxReadPayloads})
	if err != nil {
		return nil, nil, err
	}
	for _, reply := range replies[1:3] {
		record := redisdb.Text(reply)
		if record == "" || record == "x" {
			continue
		}
		job, _, err := packed.Decode(id, record, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("shard %s: %w", s, err)
		}
		first = append(first, job.Payloads...)
		if record[0] != 's' {
			continue
		}
		for _, member := range redisdb.Texts(replies[3]) {
			var p lowkiq.Payload
			if of, ok := packed.ParseSpill(member, true); ok {
				if _, err := packed.Open(of.Payload, &p); err != nil {
					return nil, nil, fmt.Errorf("shard %s, id %q: %w", s, id, err)
				}
				first = append(first, p)
			}
		}
	}
	return redisdb.Bytes(replies[0]), first, nil
}

// findShard returns the present shard of an id, nil if nobody has registered the queue.
func (c *Client) findShard(ctx context.Context, queue, id string) (*Shard, error) {
	q, err := c.FindQueue(ctx, queue)
	if q == nil || err != nil {
		return nil, err
	}
	return q.Of(id), nil
}

// FindQueue returns a queue with its present shards, nil if nobody has registered it.
func (c *Client) FindQueue(ctx context.Context, name string) (*Queue, error) {
	text, entry, err := c.registry.Stored(ctx, name)
	switch {
	case errors.Is(err, lowkiq.ErrUnknownQueue) || err == nil && entry.isDeleted():
		return nil, nil
	case err != nil:
		return nil, err
	}
	return c.registry.Adopt(name, text)
}

// FeatureWorkflows means that a process tells workflows how their members have ended.
const FeatureWorkflows = "workflows"

// RegisterWorkflows registers the queue of workflows. It returns an error if a live node is of an older release. The ends of
// members in its shards would be lost, and their workflows would never end.
func (c *Client) RegisterWorkflows(ctx context.Context, shards int) (*Queue, error) {
	if err := c.registry.checkNeeds(ctx, Workflows, nil, []string{FeatureWorkflows}); err != nil {
		return nil, err
	}
	return c.RegisterAny(ctx, lowkiq.Queue{Name: Workflows, Shards: shards})
}

// EncodeMembers returns jobs as their queues store them, in the same order, for the handler of a built-in queue that pushes
// them later. Each goes through the middlewares and the codec of its queue in this process. Its ReplyTo may be the address
// of a member; see envelope.MemberAddress. The errors are those of EncodeFollowUps.
func (c *Client) EncodeMembers(ctx context.Context, all []lowkiq.FollowUp) ([]FollowUp, error) {
	var names []string // in the order of their first jobs
	by, places := map[string][]lowkiq.Push{}, map[string][]int{}
	for i, one := range all {
		if err := CheckNotReserved(one.Queue); err != nil {
			return nil, fmt.Errorf("%w: job %.300q: %w", ErrFollowUp, one.Push.ID, err)
		}
		if one.Push.Urgent {
			return nil, fmt.Errorf("%w: job %.300q of queue %q: it must not be urgent", ErrFollowUp, one.Push.ID, one.Queue)
		}
		if by[one.Queue] == nil {
			names = append(names, one.Queue)
		}
		by[one.Queue], places[one.Queue] = append(by[one.Queue], one.Push), append(places[one.Queue], i)
	}
	stored := make([]FollowUp, len(all))
	for _, name := range names {
		into := collector{members: true}
		q, err := c.openTarget(ctx, name)
		if err == nil {
			err = q.collectAll(ctx, &into, by[name])
		}
		switch {
		case errors.Is(err, lowkiq.ErrUnknownQueue): // it names the queue
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("queue %q: %w", name, err)
		}
		if len(into.all) != len(by[name]) {
			return nil, fmt.Errorf("queue %q: %w: a middleware made %d jobs of %d", name, ErrFollowUp, len(into.all), len(by[name]))
		}
		for k, i := range places[name] {
			stored[i] = into.all[k]
		}
	}
	return stored, nil
}

// openTarget opens a queue with its present rules, for collectAll.
func (c *Client) openTarget(ctx context.Context, name string) (*Queue, error) {
	q, err := c.Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	q = q.Latest()
	q.refreshEntry(ctx)
	return q, nil
}

// collectAll takes pushes through the middlewares and the codec of the queue. It does not ask Redis.
func (q *Queue) collectAll(ctx context.Context, into *collector, pushes []lowkiq.Push) error {
	results, err := (*q.deliver.Load())(context.WithValue(ctx, collectKey{}, into), pushes)
	err = cmp.Or(err, firstError(results))
	retryable := Transient(err) || ctx.Err() != nil
	switch {
	case err == nil || retryable && into.members:
		return err
	case retryable:
		return &userError{err} // middlewares and codec store nothing here, so Redis was not asked
	case q.Pushable() != nil:
		return err
	}
	return fmt.Errorf("%w: %w", ErrFollowUp, err) // the same push would be refused again
}

// storedFollowUps returns the follow-ups of the handler of a built-in queue, whose payloads are stored forms already.
func storedFollowUps(all []lowkiq.FollowUp) []FollowUp {
	stored := make([]FollowUp, len(all))
	for i, one := range all {
		stored[i] = asStored(one.Queue, &one.Push)
	}
	return stored
}

// Member returns a follow-up with the address of a workflow's member in its envelope.
func (f FollowUp) Member(workflow, member string) (FollowUp, error) {
	content, ok := envelope.Open(string(f.Payload))
	if !ok {
		return f, fmt.Errorf("job %.300q of queue %q: %w", f.ID, f.Queue, ErrDamaged)
	}
	f.Payload = envelope.Wrap(content.Header, envelope.MemberAddress(workflow, member, ""), []byte(content.Data))
	return f, nil
}
