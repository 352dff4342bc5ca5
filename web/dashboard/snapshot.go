package dashboard

import (
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
)

// snapshot is the cluster in figures, as far as it has been read. It never changes: all
// pages and streams of a moment share one.
type snapshot struct {
	At      time.Time     // when it was made; zero: nothing has been read yet
	Seen    time.Time     // when reading what stands above the shards began: all but the figures
	Status  status.Status // of the cluster and its nodes; Queues is empty
	Members []status.Member
	Queues  []*figures // all that are registered, by name
	Samples []sample   // the last minutes, oldest first
	Err     error      // why it could not be made anew
	Early   bool       // no figures have been read since somebody looks: they are older, or missing
}

// figures are one queue's. They never change.
type figures struct {
	Name  string
	Entry queue.Entry
	// Unhandled: no living node handles the queue.
	Unhandled bool
	At        time.Time // when reading the last of them began; zero: not yet
	Sum       queue.Stats
	Shards    []shardFigures
	Rate      rate
	Speed     speed
}

// speed is how long handlers took in the last minute, and how long jobs waited for them.
type speed struct {
	Calls         int // of handlers; 0: there were none, and the rest says nothing
	P50, P95, P99 float64
	Wait95        float64
}

func speedOf(t queue.Timing) speed {
	s := speed{Calls: int(t.Handler.Count()), P50: t.Handler.Quantile(.5), P95: t.Handler.Quantile(.95), P99: t.Handler.Quantile(.99)}
	if t.Wait.Count() > 0 {
		s.Wait95 = t.Wait.Quantile(.95)
	}
	return s
}

// shardFigures are one shard's.
type shardFigures struct {
	queue.Stats
	Assigned string // the node that should own it
	State    status.ShardState
}

// rate is how fast counters grow, per second.
type rate struct{ Processed, Failed float64 }

// sample is a point of the chart.
type sample struct {
	At time.Time
	rate
}

// maxRateAge is how far apart two readings may be for a rate between them to say
// something about now.
const maxRateAge = 2 * time.Minute

// rateSince is how fast the counters grew since an earlier reading. Counters that fell
// belong to a Redis that has lost its data.
func (f *figures) rateSince(before *figures) rate {
	if before == nil || before.At.IsZero() || f.At.Sub(before.At) > maxRateAge || !f.At.After(before.At) {
		return rate{}
	}
	seconds := f.At.Sub(before.At).Seconds()
	return rate{
		Processed: max(0, float64(f.Sum.Processed-before.Sum.Processed)) / seconds,
		Failed:    max(0, float64(f.Sum.Failed-before.Sum.Failed)) / seconds,
	}
}

// queue returns the figures of a queue, nil if it is not known.
func (s *snapshot) queue(name string) *figures {
	i, ok := slices.BinarySearchFunc(s.Queues, name, func(f *figures, name string) int {
		switch {
		case f.Name < name:
			return -1
		case f.Name > name:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return s.Queues[i]
}

// with returns a snapshot in which one queue has newer figures.
func (s *snapshot) with(fresh *figures) *snapshot {
	changed := *s
	byName := map[string]*figures{fresh.Name: fresh}
	for _, f := range s.Queues {
		if f.Name != fresh.Name {
			byName[f.Name] = f
		}
	}
	changed.Queues = inOrder(byName)
	return &changed
}

// notBefore returns a snapshot that is nowhere older than what was read of one queue, and
// whether that was needed.
func (s *snapshot) notBefore(fresh *figures) (newer *snapshot, needed bool) {
	known := s.queue(fresh.Name)
	old := s.Seen.Before(fresh.At)
	if known == nil {
		if old {
			return s.with(fresh), true
		}
		return s, false // it is gone since
	}
	if !old && !known.At.Before(fresh.At) {
		return s, false
	}
	merged := *known
	if known.At.Before(fresh.At) {
		merged = *fresh
		merged.Rate, merged.Speed = known.Rate, known.Speed
	}
	merged.Entry = known.Entry
	if old {
		merged.Entry = fresh.Entry
	}
	return s.with(&merged), true
}

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
