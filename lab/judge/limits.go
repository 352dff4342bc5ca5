package judge

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Limit bounds the work of the cluster for a queue, or for each group of its ids, during a time. Limits overlap if a limit
// replaces another limit, because nodes learn of the change in turn. Then the highest limit counts. A limit without bounds
// marks a time without a promise.
type Limit struct {
	Queue    string
	By       string        // groups are ids with the same prefix up to and with the first By; "" is the whole queue
	From, To time.Duration // [Now]; To is 0 for the end of the run

	Concurrency int     // concurrent handler calls, in a group ids in calls; 0 is any number
	Rate        float64 // ids handed over per second; 0 is any number
	Burst       int     // ids above the rate over any period, or a larger batch
	// Late is how many ids may have been let go without having begun. Their calls come later than the limit has counted
	// them.
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

// maxOf returns the limit that counts where both hold.
func (l Limit) maxOf(o Limit) Limit {
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

// Hold is a time when no handler may be called for ids of a queue with a prefix. Calls that have begun may continue.
type Hold struct {
	Queue, Prefix string
	From, To      time.Duration // [Now]
}

// phase is a time when the same limit holds.
type phase struct {
	from int64
	of   Limit
}

// cutPhases cuts the run at the beginnings and ends of limits. In each phase the highest of its limits counts. A phase
// without a limit has no bound.
func cutPhases(limits []Limit) (all []phase) {
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
				l = l.maxOf(p.of)
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

// judgeLimits checks the limits of each queue, and of its groups.
func (t *table) judgeLimits(v *Verdict, limits []Limit) {
	type scope struct{ queue, by string }
	scopes := map[scope][]Limit{}
	for _, l := range limits {
		scopes[scope{l.Queue, l.By}] = append(scopes[scope{l.Queue, l.By}], l)
	}
	if len(scopes) == 0 {
		return
	}
	order := t.sortBatches()
	for of, limits := range scopes {
		w := limitWatch{t: t, v: v, queue: of.queue, by: of.by, phases: cutPhases(limits), parts: map[string]*limitState{}}
		for n := 0; n < len(order); {
			end := n + 1
			for end < len(order) && t.calls[order[end]].shard == t.calls[order[n]].shard && sameBatch(&t.calls[order[end]], &t.calls[order[n]]) {
				end++
			}
			w.checkBatch(order[n:end])
			n = end
		}
	}
}

// limitWatch checks the batches of a queue in the order of their starts.
type limitWatch struct {
	t      *table
	v      *Verdict
	queue  string
	by     string
	phases []phase
	at     int                    // the current phase
	parts  map[string]*limitState // by group; "" is the whole queue
}

// limitState is the state of a queue or a group at the start of a batch.
type limitState struct {
	shardState
	level float64 // ids handed over beyond the rate so far
	last  int64   // the time of level
	phase int
}

// checkBatch checks the calls of a batch. The call that ends last comes first.
func (w *limitWatch) checkBatch(calls []int32) {
	first := &w.t.calls[calls[0]]
	if queue, _ := splitKey(w.t.keys.list[first.key]); queue != w.queue {
		return
	}
	for w.at+1 < len(w.phases) && w.phases[w.at+1].from <= first.start {
		w.at++
	}
	if w.by == "" {
		w.enterBatch("", calls[0], len(calls))
		return
	}
	for _, i := range calls { // in a group each id counts
		_, id := splitKey(w.t.keys.list[w.t.calls[i].key])
		if before, _, found := strings.Cut(id, w.by); found {
			w.enterBatch(before+w.by, i, 1)
		}
	}
}

// enterBatch counts a batch of ids. A new phase forgets the count of the old phase.
func (w *limitWatch) enterBatch(group string, i int32, ids int) {
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
	s.reportCrowd(w.t, w.v, i, limit.Concurrency, what)
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
		w.v.addFault(TooFast, func() (string, []string) {
			return fmt.Sprintf("%.2f more %s than %v a second and a burst of %d allow", surplus, strings.Replace(what, "batches", "ids", 1),
					limit.Rate, limit.Burst),
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
				v.addFault(Held, func() (string, []string) {
					return fmt.Sprintf("%s* of queue %s was held from %d to %d", h.Prefix, h.Queue, h.From, h.To), []string{t.describe(int32(i))}
				})
			}
		}
	}
}

// sortBatches returns all calls in the order of their starts. The calls of a batch are next to each other, the call that
// ends last first.
func (t *table) sortBatches() []int32 {
	return t.sortCalls(func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.process, b.process), cmp.Compare(a.shard, b.shard), cmp.Compare(b.end, a.end))
	})
}
