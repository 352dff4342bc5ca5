package judge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// judgeShards checks I1 for each shard. Fences never go back, each fence belongs to one process, and with a positive
// concurrency at most that many batches run at once. A batch consists of the calls of a process with the same start.
func (t *table) judgeShards(v *Verdict, concurrency int) {
	order := t.sortCalls(func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.start, b.start), cmp.Compare(a.process, b.process))
	})
	var s shardState
	for n, i := range order {
		c := &t.calls[i]
		switch {
		case n == 0 || t.calls[order[n-1]].shard != c.shard:
			s = shardState{highest: i, running: s.running[:0]}
		case sameBatch(&t.calls[order[n-1]], c):
			s.extendBatch(t, i)
			continue
		}
		s.checkFence(t, v, i)
		s.enterCall(t, v, i, concurrency)
	}
}

func sameBatch(a, b *call) bool { return a.process == b.process && a.start == b.start }

// shardState is the state of a shard at the start of a batch. The index of any of its calls stands for a batch.
type shardState struct {
	highest int32   // the batch with the highest fence so far
	running []int32 // batches that have not ended
}

// checkFence reports a batch whose fence is lower than an earlier fence, or the fence of an unrelated process.
func (s *shardState) checkFence(t *table, v *Verdict, i int32) {
	c, h := &t.calls[i], &t.calls[s.highest]
	if c.fence == h.fence && !t.areRelated(c.process, h.process) {
		v.addFault(StaleFence, func() (string, []string) {
			return fmt.Sprintf("two processes had fence %d", c.fence), []string{t.describe(s.highest), t.describe(i)}
		})
	}
	if c.fence >= h.fence {
		s.highest = i
		return
	}
	if c.start == h.start {
		return // it is not known which was first
	}
	v.addFault(StaleFence, func() (string, []string) {
		return fmt.Sprintf("a batch began with fence %d after one with fence %d", c.fence, h.fence),
			[]string{t.describe(s.highest), t.describe(i)}
	})
}

// areRelated reports whether two processes share fences, because they are a process and its exec children.
func (t *table) areRelated(a, b int32) bool {
	parent := func(process int32) string {
		name, _, _ := strings.Cut(t.processes.list[process], "/")
		return name
	}
	return a == b || parent(a) == parent(b)
}

func (s *shardState) enterCall(t *table, v *Verdict, i int32, concurrency int) {
	s.reportCrowd(t, v, i, concurrency, "batches of shard "+t.shards.list[t.calls[i].shard])
}

// reportCrowd reports a batch that exceeds the concurrency.
func (s *shardState) reportCrowd(t *table, v *Verdict, i int32, concurrency int, what string) {
	if concurrency == 0 {
		return
	}
	c := &t.calls[i]
	s.running = slices.DeleteFunc(s.running, func(r int32) bool { return t.calls[r].end <= c.start })
	if len(s.running) >= concurrency {
		other := s.running[0]
		v.addFault(Crowd, func() (string, []string) {
			return fmt.Sprintf("more than %d %s at once", concurrency, what),
				[]string{t.describe(other), t.describe(i)}
		})
	}
	s.running = append(s.running, i)
}

// extendBatch extends the running batch to the end of its longest call.
func (s *shardState) extendBatch(t *table, i int32) {
	if n := len(s.running); n > 0 && t.calls[s.running[n-1]].end < t.calls[i].end {
		s.running[n-1] = i
	}
}

// measureBusy adds up the times of all batches.
func (t *table) measureBusy(v *Verdict) {
	order := t.sortBatches()
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
