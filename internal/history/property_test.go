package history

import (
	"fmt"
	"slices"
	"testing"

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
	waiting map[string][]float64
	busy    map[string]*did // id -> its call, running or not acked
	ids     []string
}

func (w *world) tick() int64 {
	w.clock += int64(rapid.IntRange(1, 3).Draw(w.t, "tick"))
	return w.clock
}

func (w *world) process() string { return fmt.Sprintf("boot%d", w.boot) }

func (w *world) push(id string) {
	w.score++
	p := pushes(id, w.score)[0]
	w.run.pushed = append(w.run.pushed, p)
	w.waiting[id] = append(w.waiting[id], w.score)
}

// step lets one id go on: start, end, or ack.
func (w *world) step(id string, fail bool) {
	c := w.busy[id]
	switch {
	case c == nil && len(w.waiting[id]) > 0:
		c = ok(w.tick(), 0, id, w.waiting[id]...).by(w.process(), int64(w.boot))
		c.shard = lowkiq.ShardOf(id, 2)
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
	var scores []float64
	for _, p := range w.busy[id].payloads {
		scores = append(scores, p.Score)
	}
	w.waiting[id] = append(scores, w.waiting[id]...)
	delete(w.busy, id)
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

// validRun draws a run that keeps every promise.
func validRun(t *rapid.T) run {
	w := &world{t: t, boot: 1, waiting: map[string][]float64{}, busy: map[string]*did{}, ids: []string{"a", "b", "c d"}}
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
	for _, id := range w.ids {
		for len(w.waiting[id]) > 0 || w.busy[id] != nil {
			w.step(id, false)
		}
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

// mutations break one thing; each says false if the run offers no place for it.
var mutations = map[string]struct {
	want Kind
	do   func(*rapid.T, *run) bool
}{
	"a payload loses its successes": {Lost, func(t *rapid.T, r *run) bool {
		p := rapid.SampledFrom(r.pushed).Draw(t, "payload")
		for _, c := range r.calls {
			if slices.ContainsFunc(c.payloads, func(q lowkiq.Payload) bool { return q.Score == p.Score }) {
				c.fails()
			}
		}
		return true
	}},
	"a payload is not the pushed one": {Unknown, func(t *rapid.T, r *run) bool {
		c := rapid.SampledFrom(r.calls).Draw(t, "call")
		c.payloads[rapid.IntRange(0, len(c.payloads)-1).Draw(t, "n")].Data = []byte("forged")
		return true
	}},
	"two payloads change places": {Unsorted, func(t *rapid.T, r *run) bool {
		c := rapid.SampledFrom(r.calls).Draw(t, "call")
		slices.Reverse(c.payloads)
		return len(c.payloads) > 1
	}},
	"an end is forgotten": {Unfinished, func(t *rapid.T, r *run) bool {
		c := rapid.SampledFrom(r.calls).Draw(t, "call")
		c.end, c.process = 0, "nobody"
		return true
	}},
	"a call begins before the one before it ended": {Overlap, func(t *rapid.T, r *run) bool {
		c, next := neighbours(t, r)
		if c == nil || c.end == 0 {
			return false
		}
		next.start = c.end - 1
		return c.start < next.start
	}},
	"a call ends after the next began": {Overlap, func(t *rapid.T, r *run) bool {
		c, next := neighbours(t, r)
		if c == nil {
			return false
		}
		c.end = next.start + 1
		return true
	}},
	"the fence of a call goes back": {StaleFence, func(t *rapid.T, r *run) bool {
		c := rapid.SampledFrom(r.calls).Draw(t, "call")
		c.fence = -1
		return slices.ContainsFunc(r.calls, func(o *did) bool { return o.shard == c.shard && o.start < c.start && o.fence > 0 })
	}},
	"a payload is left out and comes later": {Overtaken, func(t *rapid.T, r *run) bool {
		c, next := neighbours(t, r)
		if c == nil || c.err != nil || c.end == 0 || c.payloads[0].Score >= next.payloads[0].Score {
			return false
		}
		for _, o := range r.calls {
			if o.id == c.id && o.start < c.start && o.err == nil && o.end > 0 && slices.Contains(scoresOf(o), c.payloads[0].Score) {
				return false // c is a repeat: its payloads were handled before
			}
		}
		c.payloads, next.payloads = next.payloads, c.payloads
		return true
	}},
	"an old call comes back": {WentBack, func(t *rapid.T, r *run) bool {
		c, next := neighbours(t, r)
		if c == nil || c.err != nil || c.end == 0 || next.err != nil || next.end == 0 || next.payloads[0].Score == c.payloads[0].Score {
			return false
		}
		last := r.calls[len(r.calls)-1]
		for _, o := range r.calls {
			last.end = max(last.end, o.end)
		}
		again := *c
		again.start, again.end, again.fence = last.end+100, last.end+101, 1000
		r.calls = append(r.calls, &again)
		return true
	}},
}

func scoresOf(c *did) []float64 {
	var scores []float64
	for _, p := range c.payloads {
		scores = append(scores, p.Score)
	}
	return scores
}

// neighbours draws two successive calls of an id.
func neighbours(t *rapid.T, r *run) (c, next *did) {
	n := rapid.IntRange(0, len(r.calls)-1).Draw(t, "call")
	for _, o := range r.calls[n+1:] {
		if o.id == r.calls[n].id {
			return r.calls[n], o
		}
	}
	return nil, nil
}

func TestMutatedRunsAreBad(t *testing.T) {
	for name, m := range mutations {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				r := validRun(t)
				if !m.do(t, &r) {
					t.Skip("no place for it")
				}
				v := r.check(t, Config{MaxDuplicates: -1, MaxUncaused: -1})
				if v.OK() || v.Counts[m.want] == 0 {
					t.Fatalf("got faults %v, want %q among them\n%s", v.Counts, m.want, r.text(t))
				}
			})
		})
	}
}
