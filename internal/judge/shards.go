package judge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// judgeShards checks I1 per shard: fences never go back, each is of one process, and with
// concurrency > 0 no more batches than that run at once. A batch is the calls of one process with
// one start.
func (t *table) judgeShards(v *Verdict, concurrency int) {
	order := t.sorted(func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.start, b.start), cmp.Compare(a.process, b.process))
	})
	var s shardState
	for n, i := range order {
		c := &t.calls[i]
		switch {
		case n == 0 || t.calls[order[n-1]].shard != c.shard:
			s = shardState{highest: i, running: s.running[:0]}
		case sameBatch(&t.calls[order[n-1]], c):
			s.stretch(t, i)
			continue
		}
		s.fence(t, v, i)
		s.enter(t, v, i, concurrency)
	}
}

func sameBatch(a, b *call) bool { return a.process == b.process && a.start == b.start }

// shardState is one shard at the start of a batch. Batches are named by one of
// their calls.
type shardState struct {
	highest int32   // the batch with the highest fence so far
	running []int32 // batches that have not ended
}

func (s *shardState) fence(t *table, v *Verdict, i int32) {
	c, h := &t.calls[i], &t.calls[s.highest]
	if c.fence == h.fence && !t.related(c.process, h.process) {
		v.fault(StaleFence, func() (string, []string) {
			return fmt.Sprintf("two processes had fence %d", c.fence), []string{t.describe(s.highest), t.describe(i)}
		})
	}
	if c.fence >= h.fence {
		s.highest = i
		return
	}
	if c.start == h.start {
		return // which was first is not known
	}
	v.fault(StaleFence, func() (string, []string) {
		return fmt.Sprintf("a batch began with fence %d after one with fence %d", c.fence, h.fence),
			[]string{t.describe(s.highest), t.describe(i)}
	})
}

// related: a process and its exec children, who have their fences from it.
func (t *table) related(a, b int32) bool {
	parent := func(process int32) string {
		name, _, _ := strings.Cut(t.processes.list[process], "/")
		return name
	}
	return a == b || parent(a) == parent(b)
}

func (s *shardState) enter(t *table, v *Verdict, i int32, concurrency int) {
	s.crowd(t, v, i, concurrency, "batches of shard "+t.shards.list[t.calls[i].shard])
}

// crowd objects to a batch that is one too many.
func (s *shardState) crowd(t *table, v *Verdict, i int32, concurrency int, what string) {
	if concurrency == 0 {
		return
	}
	c := &t.calls[i]
	s.running = slices.DeleteFunc(s.running, func(r int32) bool { return t.calls[r].end <= c.start })
	if len(s.running) >= concurrency {
		other := s.running[0]
		v.fault(Crowd, func() (string, []string) {
			return fmt.Sprintf("more than %d %s at once", concurrency, what),
				[]string{t.describe(other), t.describe(i)}
		})
	}
	s.running = append(s.running, i)
}

// stretch lets the running batch last as long as its longest call.
func (s *shardState) stretch(t *table, i int32) {
	if n := len(s.running); n > 0 && t.calls[s.running[n-1]].end < t.calls[i].end {
		s.running[n-1] = i
	}
}

// measureBusy adds up what all batches took.
func (t *table) measureBusy(v *Verdict) {
	order := t.batches()
	for n, i := range order {
		c := &t.calls[i]
		if n > 0 && sameBatch(&t.calls[order[n-1]], c) && t.calls[order[n-1]].shard == c.shard {
			continue // the call that ends last comes first
		}
		if c.outcome != running {
			v.Busy += time.Duration(c.end - c.start)
		}
	}
}
