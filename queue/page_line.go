package queue

import (
	"context"
	"strconv"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// lineGroup is how many shards' lines are merged. A queue of more goes through them group by
// group, or a cursor would need a place for each of its shards.
const lineGroup = 64

// lineWalk goes through the ids that are due, in the order in which their shards take them.
type lineWalk struct {
	q       *Queue
	reverse bool
	place   *spot
	now     *merge
}

func (w *lineWalk) groups() int { return lineGroups(w.q) }

func (w *lineWalk) next(ctx context.Context, n int) ([]candidate, error) {
	for ; w.place.Group < w.groups(); w.place.Group++ {
		if w.now == nil {
			w.now = w.group()
		}
		found, err := w.now.next(ctx, n)
		if err != nil || len(found) > 0 {
			return found, err
		}
		w.now, w.place.Line = nil, nil
	}
	return nil, nil
}

// group merges the lines of the group at the place.
func (w *lineWalk) group() *merge {
	g := w.place.Group
	if w.reverse {
		g = w.groups() - 1 - g
	}
	var streams []*stream
	for _, s := range w.q.shards[g*lineGroup : min((g+1)*lineGroup, len(w.q.shards))] {
		st := &stream{s: s, state: Ready}
		if seen := w.place.Line[s.Index]; len(seen) > 0 {
			st.last, st.seen = &seen[0], seen
		}
		streams = append(streams, st)
	}
	return &merge{c: w.q.c, streams: streams, reverse: w.reverse, ask: w.ask}
}

func (w *lineWalk) ask(st *stream, n int) *redisdb.Call {
	args := []any{n, flag(w.reverse), scriptBytes}
	for _, m := range st.seen {
		at := ""
		if m.At >= 0 {
			at = strconv.FormatInt(m.At, 10)
		}
		args = append(args, m.ID, at)
	}
	k := st.s.keys
	return &redisdb.Call{Script: w.q.c.db.Scripts.Line, Keys: []string{k.Jobs, k.Suspects, k.Ready, k.Stale}, Args: args}
}

func (w *lineWalk) advance(c candidate) {
	if w.place.Line == nil {
		w.place.Line = map[int]trail{}
	}
	w.place.Line[c.shard] = w.place.Line[c.shard].and(c.mark())
}

func (c candidate) mark() mark {
	if c.gone {
		return mark{At: -1, ID: []byte(c.id)}
	}
	return mark{At: c.at, ID: []byte(c.id)}
}

func (w *lineWalk) ended() bool {
	last := w.groups() - 1
	return w.place.Group > last || w.place.Group == last && w.now != nil && w.now.ended()
}
