package judge

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"pgregory.net/rapid"
)

// world is a small model of a queue that keeps the promises: it makes valid runs.
type world struct {
	t       *rapid.T
	run     run
	clock   int64
	score   float64
	boot    int
	merging bool // payloads and scores come again
	waiting map[string][]lowkiq.Payload
	busy    map[string]*did // id -> its call, running or not acked
	ids     []string
}

func (w *world) tick() int64 {
	w.clock += int64(rapid.IntRange(2, 4).Draw(w.t, "tick"))
	return w.clock
}

func (w *world) process() string { return fmt.Sprintf("boot%d", w.boot) }

func (w *world) push(id string) {
	w.score++
	score, content := w.score, w.score
	if w.merging {
		score = float64(rapid.IntRange(1, 4).Draw(w.t, "score"))
		content = float64(rapid.IntRange(1, 4).Draw(w.t, "content"))
	}
	p := lowkiq.Payload{Score: score, Data: data(id, content)}
	w.run.pushed = append(w.run.pushed, Pushed{Queue: queue, ID: id, Score: score, Digest: Digest(p.Data), At: time.Duration(w.tick())})
	w.waiting[id] = merge(w.waiting[id], p)
}

// merge adds a payload to those that wait: equal ones are one, with the smallest score.
func merge(waiting []lowkiq.Payload, p lowkiq.Payload) []lowkiq.Payload {
	same := func(o lowkiq.Payload) bool { return bytes.Equal(o.Data, p.Data) }
	if i := slices.IndexFunc(waiting, same); i >= 0 {
		waiting[i].Score = min(waiting[i].Score, p.Score)
		return waiting
	}
	return append(waiting, p)
}

// step lets one id go on: start, end, or ack.
func (w *world) step(id string, fail bool) {
	c := w.busy[id]
	switch {
	case c == nil && len(w.waiting[id]) > 0:
		c = ok(w.tick(), 0, id).by(w.process(), int64(w.boot))
		c.shard, c.payloads = lowkiq.ShardOf(id, 2), w.waiting[id]
		slices.SortStableFunc(c.payloads, func(a, b lowkiq.Payload) int { return cmp.Compare(a.Score, b.Score) })
		w.run.calls = append(w.run.calls, c)
		w.busy[id], w.waiting[id] = c, nil
	case c == nil:
	case c.end == 0:
		c.end = w.tick()
		if fail {
			c.fails()
			w.putBack(id)
		}
	default:
		delete(w.busy, id) // acked
	}
}

func (w *world) putBack(id string) {
	back := slices.Clone(w.busy[id].payloads)
	for _, p := range w.waiting[id] {
		back = merge(back, p)
	}
	w.waiting[id] = back
	delete(w.busy, id)
}

func (w *world) drain() {
	for _, id := range w.ids {
		for len(w.waiting[id]) > 0 || w.busy[id] != nil {
			w.step(id, false)
		}
	}
}

// crash kills the process: what was not acked is waiting again.
func (w *world) crash() {
	killed := w.tick()
	w.run.deaths = append(w.run.deaths, died{w.process(), killed, w.tick()})
	for _, id := range w.ids {
		if w.busy[id] != nil {
			w.putBack(id)
		}
	}
	w.boot++
}

// validRun draws a run that keeps every promise. It ends with three calls of one id that
// nothing disturbs, the second with two payloads: a place for every mutation.
func validRun(t *rapid.T) run { return (&world{t: t}).play() }

func (w *world) play() run {
	t := w.t
	w.boot, w.waiting, w.busy, w.ids = 1, map[string][]lowkiq.Payload{}, map[string]*did{}, []string{"a", "b", "c d"}
	w.push("a")
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		id := rapid.SampledFrom(w.ids).Draw(t, "id")
		switch rapid.IntRange(0, 9).Draw(t, "op") {
		case 0, 1, 2:
			w.push(id)
		case 3:
			w.crash()
		case 4:
			w.step(id, true)
		default:
			w.step(id, false)
		}
	}
	for _, pushes := range []int{1, 2, 1} {
		for range pushes {
			w.push("a")
		}
		w.drain()
	}
	return w.run
}

var afterCrashes = Config{MaxDuplicates: -1}

func TestValidRunsAreGood(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := validRun(t)
		if v := r.check(t, afterCrashes); !v.OK() {
			t.Fatalf("got %s\n%s", v.Words(), r.text(t))
		}
	})
}

func TestValidRunsWithMergesAreGood(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := (&world{t: t, merging: true}).play()
		if v := r.check(t, afterCrashes); !v.OK() {
			t.Fatalf("got %s\n%v\n%s", v.Words(), r.pushed, r.text(t))
		}
	})
}

// mutations break one thing: each finds the places of a run where it could.
var mutations = map[string]struct {
	want   Kind
	places func(*run) []func()
}{
	"a payload loses its successes": {Lost, func(r *run) (places []func()) {
		for _, p := range r.pushed {
			places = append(places, func() { r.failAll(p) })
		}
		return places
	}},
	"a payload is not the pushed one": {Unknown, func(r *run) (places []func()) {
		for _, c := range r.calls {
			for i := range c.payloads {
				places = append(places, func() { c.payloads[i].Data = []byte("forged") })
			}
		}
		return places
	}},
	"two payloads change places": {Unsorted, func(r *run) (places []func()) {
		for _, c := range r.calls {
			if len(c.payloads) > 1 {
				places = append(places, func() { slices.Reverse(c.payloads) })
			}
		}
		return places
	}},
	"a payload comes twice in a call": {Repeated, func(r *run) (places []func()) {
		for _, c := range r.calls {
			places = append(places, func() { c.payloads = slices.Concat(c.payloads[:1], c.payloads) })
		}
		return places
	}},
	"an end is forgotten": {Unfinished, func(r *run) (places []func()) {
		for _, c := range r.calls {
			places = append(places, func() { c.end, c.process = 0, "nobody" })
		}
		return places
	}},
	"a call begins before the one before it ended": {Overlap, func(r *run) (places []func()) {
		for c, next := range r.neighbours() {
			if c.end > 0 {
				places = append(places, func() { next.start = c.end - 1 })
			}
		}
		return places
	}},
	"a call ends after the next began": {Overlap, func(r *run) (places []func()) {
		for c, next := range r.neighbours() {
			places = append(places, func() { c.end = next.start + 1 })
		}
		return places
	}},
	"the fence of a call goes back": {StaleFence, func(r *run) (places []func()) {
		for i, c := range r.calls {
			if slices.ContainsFunc(r.calls[:i], func(o *did) bool { return o.shard == c.shard && o.fence > 0 }) {
				places = append(places, func() { c.fence = -1 })
			}
		}
		return places
	}},
	"a payload is left out and comes later": {Overtaken, func(r *run) (places []func()) {
		for c, next := range r.neighbours() {
			if c.succeeded() && c.payloads[0].Score < next.payloads[0].Score && !r.repeats(c) {
				places = append(places, func() { c.payloads, next.payloads = next.payloads, c.payloads })
			}
		}
		return places
	}},
	"an old call comes back": {WentBack, func(r *run) (places []func()) {
		for c, next := range r.neighbours() {
			if c.succeeded() && next.succeeded() && next.payloads[0].Score != c.payloads[0].Score {
				places = append(places, func() { r.again(c) })
			}
		}
		return places
	}},
}

func (c *did) succeeded() bool { return c.err == nil && c.end > 0 }

func (c *did) has(score float64) bool {
	return slices.ContainsFunc(c.payloads, func(p lowkiq.Payload) bool { return p.Score == score })
}

// neighbours are the pairs of successive calls of an id.
func (r *run) neighbours() iter.Seq2[*did, *did] {
	return func(yield func(c, next *did) bool) {
		last := map[string]*did{}
		for _, c := range r.calls {
			if before := last[c.id]; before != nil && !yield(before, c) {
				return
			}
			last[c.id] = c
		}
	}
}

// repeats says whether the payloads of c had been handled before it.
func (r *run) repeats(c *did) bool {
	return slices.ContainsFunc(r.calls, func(o *did) bool {
		return o.id == c.id && o.start < c.start && o.succeeded() && o.has(c.payloads[0].Score)
	})
}

func (r *run) failAll(p Pushed) {
	for _, c := range r.calls {
		if c.has(p.Score) {
			c.fails()
		}
	}
}

// again adds a copy of c after everything else.
func (r *run) again(c *did) {
	var last int64
	for _, o := range r.calls {
		last = max(last, o.start, o.end)
	}
	copied := *c
	copied.start, copied.end, copied.fence = last+100, last+101, 1000
	r.calls = append(r.calls, &copied)
}

func TestMutatedRunsAreBad(t *testing.T) {
	for name, m := range mutations {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				r := validRun(t)
				rapid.SampledFrom(m.places(&r)).Draw(t, "place")()
				v := r.check(t, Config{MaxDuplicates: -1, MaxUncaused: -1})
				if v.OK() || v.Counts[m.want] == 0 {
					t.Fatalf("got faults %v, want %q among them\n%s", v.Counts, m.want, r.text(t))
				}
			})
		})
	}
}
