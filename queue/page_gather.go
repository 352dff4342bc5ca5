package queue

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// gather reads the ids of a whole list if it is short enough to be sorted.
func (q *Queue) gather(ctx context.Context, query Query) (all []candidate, small bool, err error) {
	if query.State == InFlight {
		all, err = q.flying(ctx)
		return all, true, err
	}
	n, err := q.size(ctx, query)
	if err != nil || n > query.most() {
		return nil, false, err
	}
	walk := query
	walk.Reverse = false
	w := q.walk(walk, &spot{})
	for {
		batch, err := w.next(ctx, maxPage)
		if err != nil || len(batch) == 0 || len(all) > 2*MaxExamined {
			return all, len(all) <= 2*MaxExamined, err
		}
		for _, c := range batch {
			w.advance(c)
		}
		all = append(all, batch...)
	}
}

// flying lists what handlers have: never more than the nodes take at once.
func (q *Queue) flying(ctx context.Context) (all []candidate, err error) {
	pipe := q.c.rdb.Pipeline()
	for _, s := range q.shards {
		pipe.LRange(ctx, s.keys.flight, 0, -1)
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return nil, q.c.explain("list flights of "+q.Name, err)
	}
	for i, cmd := range cmds {
		for _, id := range cmd.(*redis.StringSliceCmd).Val() {
			all = append(all, candidate{shard: i, id: id, state: InFlight})
		}
	}
	return all, nil
}

// size is about how many entries the lists of a query's state have.
func (q *Queue) size(ctx context.Context, query Query) (n int, err error) {
	return q.sizeIn(ctx, q.shards, query)
}

func (q *Queue) sizeIn(ctx context.Context, shards []*Shard, query Query) (n int, err error) {
	pipe := q.c.rdb.Pipeline()
	for _, s := range shards {
		if query.State == "" && query.By == ByID {
			pipe.HLen(ctx, s.keys.jobs)
			continue
		}
		for _, state := range statesOf(query.State) {
			if state != Ready {
				pipe.ZCard(ctx, s.keys.timed(state))
				continue
			}
			pipe.LLen(ctx, s.keys.ready)
			pipe.LLen(ctx, s.keys.suspects)
		}
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return 0, q.c.explain("count jobs of "+q.Name, err)
	}
	for _, cmd := range cmds {
		n += int(cmd.(*redis.IntCmd).Val())
	}
	return n, nil
}

// statesOf are the states that a query's state stands for.
func statesOf(state State) []State {
	switch state {
	case "":
		return []State{Ready, Scheduled, Retrying}
	case Failed:
		return []State{Ready, Retrying}
	}
	return []State{state}
}
