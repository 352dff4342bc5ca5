package queue

import (
	"context"

	"github.com/lowkiq/lowkiq/internal/redisdb"
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
	var cmds []redisdb.Cmd
	for _, s := range q.shards {
		cmds = append(cmds, redisdb.Cmd{"LRANGE", s.keys.Flight, 0, -1})
	}
	replies, err := q.c.db.Pipeline(ctx, "list flights of "+q.Name, cmds...)
	if err != nil {
		return nil, err
	}
	for i, reply := range replies {
		for _, id := range redisdb.Texts(reply) {
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
	var cmds []redisdb.Cmd
	for _, s := range shards {
		if query.State == "" && query.By == ByID {
			cmds = append(cmds, redisdb.Cmd{"HLEN", s.keys.Jobs})
			continue
		}
		for _, state := range statesOf(query.State) {
			if state != Ready {
				cmds = append(cmds, redisdb.Cmd{"ZCARD", timedKey(&s.keys, state)})
				continue
			}
			cmds = append(cmds, redisdb.Cmd{"LLEN", s.keys.Ready}, redisdb.Cmd{"LLEN", s.keys.Suspects})
		}
	}
	replies, err := q.c.db.Pipeline(ctx, "count jobs of "+q.Name, cmds...)
	if err != nil {
		return 0, err
	}
	for _, reply := range replies {
		n += int(redisdb.Int(reply))
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
