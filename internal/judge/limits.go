package judge

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Limit is what the cluster may do for a queue, or for each group of its ids, from a moment to another. Where several hold,
// because one takes the place of another, the highest counts: nodes learn of a change one after the other. So one that bounds
// nothing says when nothing is promised.
type Limit struct {
	Queue    string
	By       string        // groups are ids with the same prefix up to the first By, with it; "": the queue as a whole
	From, To time.Duration // [Now]; To is 0 for the end of the run

	Concurrency int     // handler calls at once; of a group: ids in calls. 0 = any number
	Rate        float64 // ids handed over, a second; 0 = any number
	Burst       int     // so many ids more than the rate allows, over any time, or a batch that is larger
	// Late is how many ids may have been let go and not have begun: their calls come later than they count.
	Late int
}

func (l *Limit) validate() error {
	switch {
	case l.Queue == "":
		return fmt.Errorf("a limit of no queue: %+v", *l)
	case l.Concurrency < 0 || l.Rate < 0 || l.Burst < 0 || l.Late < 0 || l.Rate > 0 && l.Burst == 0:
		return fmt.Errorf("a limit below 0, or a rate without a burst: %+v", *l)
	case l.To != 0 && l.To <= l.From:
		return fmt.Errorf("a limit that ends before it begins: %+v", *l)
	}
	return nil
}

// higher is what counts where both limits hold.
func (l Limit) higher(o Limit) Limit {
	most := func(a, b int) int {
		if a == 0 || b == 0 {
			return 0
		}
		return max(a, b)
	}
	l.Concurrency, l.Burst, l.Late = most(l.Concurrency, o.Concurrency), max(l.Burst, o.Burst), max(l.Late, o.Late)
	if l.Rate == 0 || o.Rate == 0 {
		l.Rate = 0
	} else {
		l.Rate = max(l.Rate, o.Rate)
	}
	return l
}

// Hold is a time in which no handler may be called for ids of a queue with a prefix; what runs when it begins runs on.
type Hold struct {
	Queue, Prefix string
	From, To      time.Duration // [Now]
}

// phase is a time in which the same limit holds.
type phase struct {
	from int64
	of   Limit
}

// phases cuts the run where limits begin and end. In each phase the highest of those that hold counts, none bounds nothing.
func phases(limits []Limit) (all []phase) {
	ends := []int64{math.MinInt64}
	for _, l := range limits {
		ends = append(ends, int64(l.From))
		if l.To > 0 {
			ends = append(ends, int64(l.To))
		}
	}
	slices.Sort(ends)
	for _, at := range slices.Compact(ends) {
		p, some := phase{from: at}, false
		for _, l := range limits {
			if int64(l.From) > at || l.To > 0 && int64(l.To) <= at {
				continue
			}
			if some {
				l = l.higher(p.of)
			}
			l.From, l.To = 0, 0
			p.of, some = l, true
		}
		if len(all) == 0 || all[len(all)-1].of != p.of {
			all = append(all, p)
		}
	}
	return all
}

// judgeLimits checks the limits of each queue, and those of its groups.
func (t *table) judgeLimits(v *Verdict, limits []Limit) {
	type scope struct{ queue, by string }
	scopes := map[scope][]Limit{}
	for _, l := range limits {
		scopes[scope{l.Queue, l.By}] = append(scopes[scope{l.Queue, l.By}], l)
	}
	if len(scopes) == 0 {
		return
	}
	order := t.batches()
	for of, limits := range scopes {
		w := limitWatch{t: t, v: v, queue: of.queue, by: of.by, phases: phases(limits), parts: map[string]*limitState{}}
		for n := 0; n < len(order); {
			end := n + 1
			for end < len(order) && t.calls[order[end]].shard == t.calls[order[n]].shard && sameBatch(&t.calls[order[end]], &t.calls[order[n]]) {
				end++
			}
			w.batch(order[n:end])
			n = end
		}
	}
}

// limitWatch goes through the batches of a queue in the order of their starts.
type limitWatch struct {
	t      *table
	v      *Verdict
	queue  string
	by     string
	phases []phase
	at     int                    // the phase
	parts  map[string]*limitState // by group; "" is the queue as a whole
}

// limitState is a queue or a group at the start of a batch.
type limitState struct {
	shardState
	level float64 // ids handed over that the rate has not worked off
	last  int64   // when that was
	phase int
}

// batch takes calls of one batch, the one that ends last first.
func (w *limitWatch) batch(calls []int32) {
	first := &w.t.calls[calls[0]]
	if queue, _ := splitKey(w.t.keys.list[first.key]); queue != w.queue {
		return
	}
	for w.at+1 < len(w.phases) && w.phases[w.at+1].from <= first.start {
		w.at++
	}
	if w.by == "" {
		w.enter("", calls[0], len(calls))
		return
	}
	for _, i := range calls { // of a group each id counts
		_, id := splitKey(w.t.keys.list[w.t.calls[i].key])
		if before, _, found := strings.Cut(id, w.by); found {
			w.enter(before+w.by, i, 1)
		}
	}
}

// enter lets a batch of ids begin. What a limit has counted is forgotten when another one holds.
func (w *limitWatch) enter(group string, i int32, ids int) {
	s := w.parts[group]
	if s == nil {
		s = &limitState{phase: w.at}
		w.parts[group] = s
	}
	limit, what := w.phases[w.at].of, "batches"
	if w.by != "" {
		what = "ids of group " + group
	}
	what += " of queue " + w.queue
	s.crowd(w.t, w.v, i, limit.Concurrency, what)
	c := &w.t.calls[i]
	if s.phase != w.at {
		s.level, s.phase = 0, w.at
	}
	if limit.Rate == 0 {
		return
	}
	s.level = max(0, s.level-limit.Rate*time.Duration(c.start-s.last).Seconds()) + float64(ids)
	s.last = c.start
	if most := float64(max(limit.Burst, ids) + limit.Late); s.level > most+1e-6 {
		surplus := s.level - most
		w.v.fault(TooFast, func() (string, []string) {
			return fmt.Sprintf("%.2f more %s than %v a second and a burst of %d allow", surplus, strings.Replace(what, "batches", "ids", 1), limit.Rate, limit.Burst),
				[]string{w.t.describe(i)}
		})
		s.level = most
	}
}

// judgeHolds checks that no call of a held id begins.
func (t *table) judgeHolds(v *Verdict, holds []Hold) {
	for _, h := range holds {
		for i := range t.calls {
			c := &t.calls[i]
			if c.start < int64(h.From) || c.start >= int64(h.To) {
				continue
			}
			if queue, id := splitKey(t.keys.list[c.key]); queue == h.Queue && strings.HasPrefix(id, h.Prefix) {
				v.fault(Held, func() (string, []string) {
					return fmt.Sprintf("%s* of queue %s was held from %d to %d", h.Prefix, h.Queue, h.From, h.To), []string{t.describe(int32(i))}
				})
			}
		}
	}
}

// batches are all calls in the order of their starts, those of a batch beside each other, the one that ends last first.
func (t *table) batches() []int32 {
	return t.sorted(func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.process, b.process), cmp.Compare(a.shard, b.shard), cmp.Compare(b.end, a.end))
	})
}
