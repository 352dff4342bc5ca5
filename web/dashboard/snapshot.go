package dashboard

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/status"
)

// overview is what stands above the shards, and is read before them.
type overview struct {
	At      time.Time     // when reading it began; zero: not yet
	Status  status.Status // Queues is empty
	Members []status.Member
	Entries map[string]queue.Entry
	Owners  status.Owners
	Handled status.Handled // nil: not known
}

// snapshot is the cluster in figures, as far as it has been read. It never changes: all
// pages and streams of a moment share one.
type snapshot struct {
	At      time.Time // when it was made; zero: nothing has been read yet
	Swept   time.Time // when figures of shards were read last
	Status  status.Status
	Members []status.Member
	Queues  []*figures // all that are registered, by name
	Samples []sample   // of the chart, oldest first
	Err     error      // why it could not be made anew
}

// figures are one queue's. They never change.
type figures struct {
	Name      string
	Entry     queue.Entry
	Unhandled bool      // no living node handles the queue
	At        time.Time // when reading them began, the entry first; zero: shards have not been read
	Sum       queue.Stats
	Shards    []shardFigures
	Rate      rate
	Speed     speed
}

// shardFigures are one shard's.
type shardFigures struct {
	queue.Stats
	Assigned string // the node that should own it
	State    status.ShardState
}

// figures judges what was read of a queue's shards after the overview.
func (o overview) figures(name string, stats []queue.Stats) *figures {
	f := &figures{Name: name, Entry: o.Entries[name], Unhandled: o.unhandled(name), At: o.At, Sum: queue.Sum(stats), Shards: make([]shardFigures, len(stats))}
	for i := range stats {
		f.Shards[i].Stats = stats[i]
		f.Shards[i].Assigned, f.Shards[i].State = o.Owners(lowkiq.Shard{Queue: name, Index: i}, stats[i].Owner.Instance)
	}
	return f
}

func (o overview) unhandled(name string) bool {
	return o.Handled != nil && len(o.Handled.By(name)) == 0
}

// speed is how long handlers took in the last minute, and how long jobs waited for them.
type speed struct {
	Calls         int // of handlers; 0: there were none, and the rest says nothing
	P50, P95, P99 float64
	Wait95        float64
}

func speedOf(t browse.Timing) speed {
	s := speed{Calls: int(t.Handler.Count()), P50: t.Handler.Quantile(.5), P95: t.Handler.Quantile(.95), P99: t.Handler.Quantile(.99)}
	if t.Wait.Count() > 0 {
		s.Wait95 = t.Wait.Quantile(.95)
	}
	return s
}

// rate is how fast counters grow, per second.
type rate struct{ Processed, Failed float64 }

// rateOf is how fast counters grew between two readings. Counters that fell belong to a Redis that
// has lost its data.
func rateOf(before, now queue.Stats, between time.Duration) rate {
	return rate{
		Processed: max(0, float64(now.Processed-before.Processed)) / between.Seconds(),
		Failed:    max(0, float64(now.Failed-before.Failed)) / between.Seconds(),
	}
}

// maxRateAge is how far apart two readings may be for a rate between them to say
// something about now.
const maxRateAge = 2 * time.Minute

// rateSince is how fast the counters grew since an earlier reading.
func (f *figures) rateSince(before *figures) rate {
	age := f.At.Sub(before.At)
	if before.At.IsZero() || age > maxRateAge || age <= 0 {
		return rate{}
	}
	return rateOf(before.Sum, f.Sum, age)
}

// sample is a point of the chart.
type sample struct {
	At time.Time // of the first reading
	rate
	of int // readings it is the mean of; 0 = one
}

// thinned keeps an hour: each point of the last minute, and of what is older the mean of a quarter
// of a minute. These are 300 points at most.
func thinned(samples []sample, now time.Time) []sample {
	kept := make([]sample, 0, len(samples))
	for _, s := range samples {
		age := now.Sub(s.At)
		if age > chartSpan {
			continue
		}
		last := len(kept) - 1
		if age < chartFine || last < 0 || !s.At.Truncate(idleInterval).Equal(kept[last].At.Truncate(idleInterval)) {
			kept = append(kept, s)
			continue
		}
		mean, more := &kept[last], max(s.of, 1)
		mean.of = max(mean.of, 1) + more
		part := float64(more) / float64(mean.of)
		mean.Processed += (s.Processed - mean.Processed) * part
		mean.Failed += (s.Failed - mean.Failed) * part
	}
	return kept
}

// queue returns the figures of a queue, nil if it is not known.
func (s *snapshot) queue(name string) *figures {
	i, ok := slices.BinarySearchFunc(s.Queues, name, func(f *figures, name string) int { return strings.Compare(f.Name, name) })
	if !ok {
		return nil
	}
	return s.Queues[i]
}

// inOrder are the figures of all queues, by name.
func inOrder(byName map[string]*figures) []*figures {
	all := make([]*figures, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all
}

// totals are all queues together.
type totals struct {
	queue.Stats
	Rate   rate
	Queues int
	Read   int       // queues whose figures are known
	Oldest time.Time // when the oldest of the figures were read
}

// Complete reports whether every queue has been read.
func (t totals) Complete() bool { return t.Read == t.Queues }

func (s *snapshot) totals() totals {
	t := totals{Queues: len(s.Queues)}
	stats := make([]queue.Stats, 0, len(s.Queues))
	for _, f := range s.Queues {
		if f.At.IsZero() {
			continue
		}
		t.Read++
		t.Rate.Processed += f.Rate.Processed
		t.Rate.Failed += f.Rate.Failed
		stats = append(stats, f.Sum)
		if t.Oldest.IsZero() || f.At.Before(t.Oldest) {
			t.Oldest = f.At
		}
	}
	t.Stats = queue.Sum(stats)
	return t
}
