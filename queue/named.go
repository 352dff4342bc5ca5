package queue

import (
	"context"
	"fmt"
)

// Jobs finds many ids in few round trips, in the order asked for: in the morgue if in is Dead, and
// among what waits or is in flight if it is "". One that is not there has no State. Of payloads
// it tells number and size, no data. ErrQuery: in is another state.
func (q *Queue) Jobs(ctx context.Context, in State, ids ...string) ([]Listed, error) {
	if in != "" && in != Dead {
		return nil, fmt.Errorf("%w: jobs by id in state %q: want morgue, or none for all others", ErrQuery, in)
	}
	found := make([]candidate, len(ids))
	for i, id := range ids {
		found[i] = candidate{id: id, shard: q.Of(id).Index}
	}
	return q.show(ctx, in, 0, found)
}
