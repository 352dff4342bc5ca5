package browse

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// candidate is an id found in a list, with the facts that the list has.
type candidate struct {
	shard    int
	id       string
	state    State  // state of the list
	at       int64  // due time or time of burial, us
	timed    bool   // at is known
	front    string // of a ready job: as entry.Front
	gone     bool   // an entry without a job
	mismatch bool   // the search does not select it
	takenOut bool   // a bulk action has taken it out of the list of suspects
	head     *Listed
}

func (c candidate) sortKey() sortKey {
	k := sortKey{At: c.at, ID: []byte(c.id)}
	if c.head != nil {
		k.Retries, k.At = c.head.RetryCount, c.head.PerformAt.UnixMicro()
	}
	return k
}

// walker reads a list in stored order from a place on.
type walker interface {
	// next returns about n candidates after those that it returned before, none at the end.
	next(ctx context.Context, n int) ([]candidate, error)
	// advance moves the place beyond a candidate. Call it in the order of next.
	advance(candidate)
	// ended reports whether there is nothing after the candidates of next.
	ended() bool
}

// newWalker returns the walker for the state of a query.
func (j *Jobs) newWalker(query Query, p *position) walker {
	line := func() walker { return &lineWalk{jobs: j, reverse: query.Reverse, place: p} }
	timed := func(states ...State) walker { return j.timedWalk(query.Range, p, states...) }
	switch query.State {
	case StateReady:
		return line()
	case StateScheduled, StateRetry, StateHeld, StateBlocked, StateMorgue:
		return timed(query.State)
	}
	if query.By == ByID && query.State == "" {
		return &hashWalk{jobs: j, place: p, count: 16}
	}
	later := slices.DeleteFunc(statesOf(query.State), func(s State) bool { return s == StateReady })
	phases := []func() walker{line, func() walker { return timed(later...) }}
	if query.Reverse {
		phases[0], phases[1] = phases[1], phases[0]
	}
	return &phaseWalk{phases: phases, place: p}
}

// phaseWalk reads lists one after the other.
type phaseWalk struct {
	phases []func() walker
	place  *position
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

// timedWalk reads sorted sets of all shards in order of time, then id.
type timedWalk struct {
	*merge
	place *position
}

func (j *Jobs) timedWalk(r Range, p *position, states ...State) walker {
	var streams []*stream
	for _, s := range j.shards {
		for _, state := range states {
			for _, key := range timedKeys(s.Keys(), state) {
				streams = append(streams, &stream{s: s, state: state, key: key, last: p.Timed})
			}
		}
	}
	ask := func(st *stream, n int) *redisdb.Call {
		score, id := "", []byte(nil)
		if st.last != nil {
			score, id = strconv.FormatInt(st.last.At, 10), st.last.ID
		}
		low, high := timeArg(r.MinTime, "-inf"), timeArg(r.MaxTime, "+inf")
		switch {
		case st.state == StateHeld: // the due time of held jobs is unknown
			low, high = heldAt, "+inf"
		case (st.state == StateScheduled || st.state == StateRetry) && (r.MaxTime.IsZero() || !r.MaxTime.Before(protocol.HeldAt)):
			high = "(" + heldAt
		}
		return &redisdb.Call{Script: j.db.Scripts.Slice, Keys: []string{st.key}, Args: []any{n, boolArg(r.Reverse), low, high, score, id}}
	}
	return &timedWalk{&merge{db: j.db, streams: streams, reverse: r.Reverse, ask: ask}, p}
}

func (w *timedWalk) advance(c candidate) { w.place.Timed = &entry{At: c.at, ID: []byte(c.id)} }

// heldAt is the score of held ids.
var heldAt = timeArg(protocol.HeldAt, "")

// timedKeys returns the sorted sets of a state.
func timedKeys(k *redisdb.ShardKeys, state State) []string {
	return map[State][]string{
		StateScheduled: {k.Due}, StateRetry: {k.Retry}, StateHeld: {k.Due, k.Retry}, StateBlocked: {k.Blocked}, StateMorgue: {k.Dead},
	}[state]
}

func boolArg(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

func timeArg(t time.Time, none string) string {
	if t.IsZero() {
		return none
	}
	return strconv.FormatInt(t.UnixMicro(), 10)
}

// merge joins lists of several shards. Each list keeps its own order, and the list with the
// earliest next job goes first.
type merge struct {
	db      *redisdb.DB
	streams []*stream
	reverse bool
	ask     func(st *stream, n int) *redisdb.Call // returns the script call that reads the next part of a list
}

// stream is a list of a shard.
type stream struct {
	s     *protocol.Shard
	state State
	key   string // key of a sorted set
	last  *entry // the last entry read, nil if none
	seen  recent // the last entries read of a ready list
	buf   []candidate
	chunk int
	dry   bool // Redis has no more entries
}

func (m *merge) next(ctx context.Context, n int) (found []candidate, err error) {
	for len(found) < n {
		if err := m.refillStreams(ctx, n); err != nil {
			return nil, err
		}
		first := m.firstStream()
		if first == nil {
			break
		}
		found = append(found, first.buf[0])
		first.buf = first.buf[1:]
	}
	return found, nil
}

// firstStream returns the stream with the next candidate of all.
func (m *merge) firstStream() (best *stream) {
	for _, st := range m.streams {
		if len(st.buf) > 0 && (best == nil || m.isBefore(st.buf[0], best.buf[0])) {
			best = st
		}
	}
	return best
}

func (m *merge) isBefore(x, y candidate) bool {
	n := cmp.Or(cmp.Compare(x.at, y.at), x.breakTie(y))
	return directed(Range{Reverse: m.reverse}, n) < 0
}

// breakTie orders candidates of the same time by id, or by shard in ready lists, which have an
// order of their own.
func (c candidate) breakTie(other candidate) int {
	if c.state == StateReady {
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

// refillStreams reads on where a stream has run out. It starts with small parts, because in a queue
// of many shards most have only a few of the next hundred jobs.
func (m *merge) refillStreams(ctx context.Context, n int) error {
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
	runInPipelines(ctx, m.db, calls)
	for i, st := range empty {
		if calls[i].Err != nil {
			return calls[i].Err
		}
		if err := st.addReply(calls[i].Reply); err != nil {
			return err
		}
	}
	return nil
}

// addReply decodes {number of entries, id, time, …}. In a reply of line.lua the list and a comma precede each time.
func (st *stream) addReply(reply any) error {
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
		if front, time, ok := strings.Cut(text, ","); ok {
			c.front, text = front, time
		}
		at, err := strconv.ParseFloat(text, 64)
		c.gone, c.timed = err != nil, err == nil
		if c.timed {
			c.at = int64(at)
		}
		before = c.at
		st.buf = append(st.buf, c)
	}
	if n := len(st.buf); n > 0 {
		last := st.buf[n-1].asEntry()
		st.last = &last
		for _, c := range st.buf[max(0, n-recentLength):] {
			st.seen = st.seen.prepend(c.asEntry())
		}
	}
	return nil
}

// runInPipelines runs calls in pipelines that are short enough not to block other clients of Redis.
func runInPipelines(ctx context.Context, db *redisdb.DB, calls []*redisdb.Call) {
	for len(calls) > 0 {
		part := calls[:min(100, len(calls))]
		calls = calls[len(part):]
		db.RunAll(ctx, part)
	}
}

// lineGroup is how many shards' ready lists are merged. A queue with more shards is read group by
// group. Otherwise its cursor would need a place for each shard.
const lineGroup = 64

// lineWalk reads ready ids in the order of their pops.
type lineWalk struct {
	jobs    *Jobs
	reverse bool
	place   *position
	now     *merge
}

func (w *lineWalk) countGroups() int { return lineGroups(w.jobs) }

func (w *lineWalk) next(ctx context.Context, n int) ([]candidate, error) {
	for ; w.place.Group < w.countGroups(); w.place.Group++ {
		if w.now == nil {
			w.now = w.mergeGroup()
		}
		found, err := w.now.next(ctx, n)
		if err != nil || len(found) > 0 {
			return found, err
		}
		w.now, w.place.Line = nil, nil
	}
	return nil, nil
}

// mergeGroup merges the ready lists of the group at the place.
func (w *lineWalk) mergeGroup() *merge {
	g := w.place.Group
	if w.reverse {
		g = w.countGroups() - 1 - g
	}
	var streams []*stream
	for _, s := range w.jobs.shards[g*lineGroup : min((g+1)*lineGroup, len(w.jobs.shards))] {
		st := &stream{s: s, state: StateReady}
		if seen := w.place.Line[s.Index]; len(seen) > 0 {
			st.last, st.seen = &seen[0], seen
		}
		streams = append(streams, st)
	}
	return &merge{db: w.jobs.db, streams: streams, reverse: w.reverse, ask: w.readCall}
}

func (w *lineWalk) readCall(st *stream, n int) *redisdb.Call {
	args := []any{n, boolArg(w.reverse), scriptBytes}
	for _, m := range st.seen {
		at := ""
		if m.At >= 0 {
			at = strconv.FormatInt(m.At, 10)
		}
		args = append(args, m.ID, m.Front, at)
	}
	line := w.jobs.db.Scripts.Line
	return &redisdb.Call{Script: line, Keys: st.s.Keys().For(line), Args: args}
}

func (w *lineWalk) advance(c candidate) {
	if w.place.Line == nil {
		w.place.Line = map[int]recent{}
	}
	w.place.Line[c.shard] = w.place.Line[c.shard].prepend(c.asEntry())
}

func (c candidate) asEntry() entry {
	e := entry{At: c.at, ID: []byte(c.id), Front: c.front}
	if c.gone {
		e.At = -1
	}
	return e
}

func (w *lineWalk) ended() bool {
	last := w.countGroups() - 1
	return w.place.Group > last || w.place.Group == last && w.now != nil && w.now.ended()
}

// hashWalk reads all ids that have a record, in stored order.
type hashWalk struct {
	jobs  *Jobs
	place *position
	count int // how many ids to request; small if records are large
	seen  map[string]bool
}

// hashStep is how many bytes of records a step of a scan should read.
const hashStep = 256 << 10

func (w *hashWalk) next(ctx context.Context, n int) ([]candidate, error) {
	for len(w.place.Rest) == 0 && w.place.Shard < len(w.jobs.shards) {
		if err := w.scanMore(ctx, n); err != nil {
			return nil, err
		}
	}
	found := make([]candidate, min(len(w.place.Rest), max(n, 1))) // a cursor may carry more
	for i, id := range w.place.Rest[:len(found)] {
		found[i] = candidate{shard: lowkiq.ShardOf(string(id), w.jobs.q.Shards), id: string(id)}
	}
	return found, nil
}

func (w *hashWalk) scanMore(ctx context.Context, n int) error {
	s, from := w.jobs.shards[w.place.Shard], w.place.Hash
	if from == "" {
		from = "0"
	}
	reply, err := s.Run(ctx, w.jobs.db.Scripts.Scan, from, min(w.count, max(n, 16)))
	if err != nil {
		return err
	}
	next, bytes, ids := decodeScan(reply)
	if len(ids) > 0 {
		w.count = min(maxPage, max(16, hashStep*len(ids)/max(1, bytes)))
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	for _, id := range ids {
		if !w.seen[id] {
			w.seen[id] = true
			w.place.Rest = append(w.place.Rest, []byte(id))
		}
	}
	w.place.Hash = next
	if next == "0" {
		w.place.Hash = ""
		w.place.Shard++
	}
	return nil
}

func decodeScan(reply any) (next string, bytes int, ids []string) {
	r, _ := reply.([]any)
	if len(r) < 2 {
		return "0", 0, nil
	}
	next, _ = r[0].(string)
	size, _ := r[1].(int64)
	for _, v := range r[2:] {
		id, _ := v.(string)
		ids = append(ids, id)
	}
	return next, int(size), ids
}

func (w *hashWalk) advance(candidate) { w.place.Rest = w.place.Rest[1:] }

func (w *hashWalk) ended() bool { return len(w.place.Rest) == 0 && w.place.Shard >= len(w.jobs.shards) }

// readShortList reads the ids of a whole list if it is short enough to be sorted.
func (j *Jobs) readShortList(ctx context.Context, query Query) (all []candidate, small bool, err error) {
	if query.State == StateInFlight {
		all, err = j.listInFlight(ctx)
		return all, true, err
	}
	n, err := j.countEntries(ctx, query)
	if err != nil || n > query.maxExamined() {
		return nil, false, err
	}
	walk := query
	walk.Reverse = false
	w := j.newWalker(walk, &position{})
	for {
		batch, err := w.next(ctx, maxPage)
		if err != nil || len(batch) == 0 || len(all) > 2*MaxExamined {
			return all, len(all) <= 2*MaxExamined, err
		}
		if err := memory.Take(ctx, int64(len(batch))*bytesOfCandidate); err != nil {
			return nil, false, err
		}
		for _, c := range batch {
			w.advance(c)
		}
		all = append(all, batch...)
	}
}

// bytesOfCandidate is the memory of an id in a list, except for very long ids.
const bytesOfCandidate = 256

// listInFlight returns the ids in flight, which are never more than the nodes handle at once.
func (j *Jobs) listInFlight(ctx context.Context) (all []candidate, err error) {
	var cmds []redisdb.Cmd
	for _, s := range j.shards {
		cmds = append(cmds, redisdb.Cmd{"LRANGE", s.Keys().Flight, 0, -1})
	}
	replies, err := j.db.Pipeline(ctx, "list flights of "+j.q.Name, cmds...)
	if err != nil {
		return nil, err
	}
	for i, reply := range replies {
		for _, id := range redisdb.Texts(reply) {
			all = append(all, candidate{shard: i, id: id, state: StateInFlight})
		}
	}
	return all, nil
}

// countEntries returns about how many entries the lists of a query's state have.
func (j *Jobs) countEntries(ctx context.Context, query Query) (n int, err error) {
	return j.countEntriesIn(ctx, j.shards, query)
}

func (j *Jobs) countEntriesIn(ctx context.Context, shards []*protocol.Shard, query Query) (n int, err error) {
	var cmds []redisdb.Cmd
	for _, s := range shards {
		if query.State == "" && query.By == ByID {
			cmds = append(cmds, redisdb.Cmd{"HLEN", s.Keys().Jobs})
			continue
		}
		for _, state := range statesOf(query.State) {
			for _, key := range timedKeys(s.Keys(), state) {
				low, high := "-inf", "+inf"
				switch state {
				case StateScheduled, StateRetry:
					high = "(" + heldAt
				case StateHeld:
					low = heldAt
				}
				cmds = append(cmds, redisdb.Cmd{"ZCOUNT", key, low, high})
			}
			if state != StateReady {
				continue
			}
			cmds = append(cmds, redisdb.Cmd{"LLEN", s.Keys().Ready}, redisdb.Cmd{"LLEN", s.Keys().Suspects}, redisdb.Cmd{"ZCOUNT", s.Keys().Urgent, 0, "+inf"})
		}
	}
	replies, err := j.db.Pipeline(ctx, "count jobs of "+j.q.Name, cmds...)
	if err != nil {
		return 0, err
	}
	for _, reply := range replies {
		n += int(redisdb.Int(reply))
	}
	return n, nil
}

// statesOf returns the states that a query's state stands for.
func statesOf(state State) []State {
	switch state {
	case "":
		return []State{StateReady, StateScheduled, StateRetry}
	case StateFailed:
		return []State{StateReady, StateRetry}
	}
	return []State{state}
}
