package queue

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// merge joins lists of several shards into one. Each list keeps its own order; the one whose
// first job is due first goes first.
type merge struct {
	c       *Client
	streams []*stream
	reverse bool
	ask     func(st *stream, n int) *redisdb.Call // the script that reads on in one list
}

// stream is one list of one shard.
type stream struct {
	s     *Shard
	state State
	last  *mark // the last entry read; nil: none
	seen  trail // of a line: the last entries read
	buf   []candidate
	chunk int
	dry   bool // nothing is left in Redis
}

func (m *merge) next(ctx context.Context, n int) (found []candidate, err error) {
	for len(found) < n {
		if err := m.refill(ctx, n); err != nil {
			return nil, err
		}
		first := m.first()
		if first == nil {
			break
		}
		found = append(found, first.buf[0])
		first.buf = first.buf[1:]
	}
	return found, nil
}

// first is the stream whose next candidate is the next of all.
func (m *merge) first() (best *stream) {
	for _, st := range m.streams {
		if len(st.buf) > 0 && (best == nil || m.before(st.buf[0], best.buf[0])) {
			best = st
		}
	}
	return best
}

func (m *merge) before(x, y candidate) bool {
	n := cmp.Or(cmp.Compare(x.at, y.at), x.tie(y))
	return direction(Range{Reverse: m.reverse}, n) < 0
}

// tie orders candidates of one instant: ids, but in lines, which have an order of their own.
func (c candidate) tie(other candidate) int {
	if c.state == Ready {
		return c.shard - other.shard
	}
	return strings.Compare(c.id, other.id)
}

func (m *merge) ended() bool {
	for _, st := range m.streams {
		if len(st.buf) > 0 || !st.dry {
			return false
		}
	}
	return true
}

// refill reads on where a stream has run out, few jobs at first: most shards of many have
// only a few of the next hundred.
func (m *merge) refill(ctx context.Context, n int) error {
	var empty []*stream
	var calls []*redisdb.Call
	for _, st := range m.streams {
		if len(st.buf) > 0 || st.dry {
			continue
		}
		st.chunk = min(maxPage, max(2*st.chunk, 10, 2*n/len(m.streams)))
		empty = append(empty, st)
		calls = append(calls, m.ask(st, st.chunk))
	}
	m.c.runParts(ctx, calls)
	for i, st := range empty {
		if calls[i].Err != nil {
			return calls[i].Err
		}
		if err := st.take(calls[i].Reply); err != nil {
			return err
		}
	}
	return nil
}

// take reads {entries there are, id, time, …}.
func (st *stream) take(reply any) error {
	r, ok := reply.([]any)
	if !ok || len(r)%2 != 1 {
		return fmt.Errorf("list %s: got %v", st.s, reply)
	}
	there, _ := r[0].(int64)
	st.dry = int(there) <= (len(r)-1)/2
	before := int64(0)
	if st.last != nil {
		before = max(0, st.last.At)
	}
	for i := 1; i < len(r); i += 2 {
		c := candidate{shard: st.s.Index, state: st.state, at: before}
		c.id, _ = r[i].(string)
		text, _ := r[i+1].(string)
		at, err := strconv.ParseFloat(text, 64)
		c.gone, c.timed = err != nil, err == nil
		if c.timed {
			c.at = int64(at)
		}
		before = c.at
		st.buf = append(st.buf, c)
	}
	if n := len(st.buf); n > 0 {
		last := st.buf[n-1].mark()
		st.last = &last
		for _, c := range st.buf[max(0, n-trailLength):] {
			st.seen = st.seen.and(c.mark())
		}
	}
	return nil
}

// runParts runs calls in pipelines short enough not to keep Redis from others for long.
func (c *Client) runParts(ctx context.Context, calls []*redisdb.Call) {
	for len(calls) > 0 {
		part := calls[:min(100, len(calls))]
		calls = calls[len(part):]
		c.db.RunAll(ctx, part)
	}
}
