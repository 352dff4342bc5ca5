package queue

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// candidate is an id found in a list, with what the list tells of it.
type candidate struct {
	shard int
	id    string
	state State // whose list it was in
	at    int64 // us; due time, or time of the burial
	timed bool  // at is known
	gone  bool  // an entry without a job
	head  *Listed
}

func (c candidate) key() key {
	k := key{At: c.at, ID: []byte(c.id)}
	if c.head != nil {
		k.Retries, k.At = c.head.RetryCount, c.head.PerformAt.UnixMicro()
	}
	return k
}

// walker goes through a list in the order in which it is stored, from a place on.
type walker interface {
	// next finds about n candidates beyond those found before; none at the end.
	next(ctx context.Context, n int) ([]candidate, error)
	// advance moves the place beyond a candidate. They come in the order of next.
	advance(candidate)
	// ended reports whether there is nothing beyond what next has found.
	ended() bool
}

// walk is the way through the jobs of a query's state.
func (q *Queue) walk(query Query, p *spot) walker {
	line := func() walker { return &lineWalk{q: q, reverse: query.Reverse, place: p} }
	timed := func(states ...State) walker { return q.timedWalk(query.Range, p, states...) }
	switch query.State {
	case Ready:
		return line()
	case Scheduled, Retrying, Waiting, Dead:
		return timed(query.State)
	}
	if query.By == ByID && query.State == "" {
		return &hashWalk{q: q, place: p, count: 16}
	}
	later := slices.DeleteFunc(statesOf(query.State), func(s State) bool { return s == Ready })
	phases := []func() walker{line, func() walker { return timed(later...) }}
	if query.Reverse {
		phases[0], phases[1] = phases[1], phases[0]
	}
	return &phaseWalk{phases: phases, place: p}
}

// phaseWalk goes through lists one after the other.
type phaseWalk struct {
	phases []func() walker
	place  *spot
	now    walker
}

func (w *phaseWalk) next(ctx context.Context, n int) ([]candidate, error) {
	for ; w.place.Phase < len(w.phases); w.place.Phase++ {
		if w.now == nil {
			w.now = w.phases[w.place.Phase]()
		}
		found, err := w.now.next(ctx, n)
		if err != nil || len(found) > 0 {
			return found, err
		}
		w.now = nil
	}
	return nil, nil
}

func (w *phaseWalk) advance(c candidate) { w.now.advance(c) }

func (w *phaseWalk) ended() bool {
	last := len(w.phases) - 1
	return w.place.Phase > last || w.place.Phase == last && w.now != nil && w.now.ended()
}

// timedWalk goes through sorted sets of all shards, in order of time, then id.
type timedWalk struct {
	*merge
	place *spot
}

func (q *Queue) timedWalk(r Range, p *spot, states ...State) walker {
	var streams []*stream
	for _, s := range q.shards {
		for _, state := range states {
			streams = append(streams, &stream{s: s, state: state, last: p.Timed})
		}
	}
	ask := func(st *stream, n int) *redisdb.Call {
		score, id := "", []byte(nil)
		if st.last != nil {
			score, id = strconv.FormatInt(st.last.At, 10), st.last.ID
		}
		return &redisdb.Call{Script: q.c.db.Scripts.Slice, Keys: []string{timedKey(&st.s.keys, st.state)},
			Args: []any{n, flag(r.Reverse), bound(r.MinTime, "-inf"), bound(r.MaxTime, "+inf"), score, id}}
	}
	return &timedWalk{&merge{c: q.c, streams: streams, reverse: r.Reverse, ask: ask}, p}
}

func (w *timedWalk) advance(c candidate) { w.place.Timed = &mark{At: c.at, ID: []byte(c.id)} }

// timed is the sorted set of a state.
func timedKey(k *redisdb.ShardKeys, state State) string {
	return map[State]string{Scheduled: k.Due, Retrying: k.Retry, Waiting: k.Blocked, Dead: k.Dead}[state]
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

func bound(t time.Time, none string) string {
	if t.IsZero() {
		return none
	}
	return strconv.FormatInt(t.UnixMicro(), 10)
}
