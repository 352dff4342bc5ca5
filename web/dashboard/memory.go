package dashboard

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// memory is what the sampler knows. Only its goroutine touches it.
type memory struct {
	seen    overview
	seenAt  time.Time                 // when reading it began
	have    map[string]*figures       // complete figures, by queue
	parts   map[string][]shardFigures // of queues that are being read
	early   bool                      // nothing has been read since somebody looks
	samples []sample
	counted counts           // the last reading while nobody looked
	speed   map[string]speed // of handlers, by queue
	timed   time.Time        // when speed was read
}

func (m *memory) time(timings map[string]queue.Timing, at time.Time) {
	m.speed, m.timed = make(map[string]speed, len(timings)), at
	for name, timing := range timings {
		m.speed[name] = speedOf(timing)
	}
}

// see takes a new overview: queues that are gone are forgotten.
func (m *memory) see(seen overview, at time.Time) {
	m.seen, m.seenAt = seen, at
	if m.parts == nil {
		m.parts = map[string][]shardFigures{}
	}
	gone := func(name string, shards int) bool {
		entry, ok := seen.Entries[name]
		return !ok || shards > entry.Shards
	}
	maps.DeleteFunc(m.have, func(name string, f *figures) bool { return gone(name, len(f.Shards)) })
	maps.DeleteFunc(m.parts, func(name string, part []shardFigures) bool { return gone(name, len(part)) })
}

// add takes the figures of one shard. A queue counts as read once its last shard is;
// its shards come in order.
func (m *memory) add(shard lowkiq.Shard, stats queue.Stats, at time.Time) {
	entry, ok := m.seen.Entries[shard.Queue]
	if !ok {
		return
	}
	if shard.Index == 0 {
		m.parts[shard.Queue] = make([]shardFigures, 0, entry.Shards)
	}
	part := m.parts[shard.Queue]
	if len(part) != shard.Index {
		return // the queue has been read out of turn meanwhile
	}
	one := shardFigures{Stats: stats}
	one.Assigned, one.State = m.seen.Owners(shard, stats.Owner.Instance)
	part = append(part, one)
	m.parts[shard.Queue] = part
	if len(part) == entry.Shards {
		delete(m.parts, shard.Queue)
		f := newFigures(shard.Queue, entry, part, at, m.have[shard.Queue])
		f.Unhandled = m.seen.unhandled(shard.Queue)
		m.have[shard.Queue] = f
	}
}

func newFigures(name string, entry queue.Entry, shards []shardFigures, at time.Time, before *figures) *figures {
	f := &figures{Name: name, Entry: entry, At: at, Shards: shards}
	stats := make([]queue.Stats, len(shards))
	for i := range shards {
		stats[i] = shards[i].Stats
	}
	f.Sum = queue.Sum(stats)
	f.Rate = f.rateSince(before)
	return f
}

// snapshot makes one of what is known.
func (m *memory) snapshot() *snapshot {
	s := &snapshot{At: time.Now(), Seen: m.seenAt, Status: m.seen.Status, Members: m.seen.Members, Early: m.early}
	for _, name := range slices.Sorted(maps.Keys(m.seen.Entries)) {
		f := figures{Name: name}
		if known := m.have[name]; known != nil {
			f = *known
		}
		f.Entry = m.seen.Entries[name] // it may have been paused since
		f.Unhandled = m.seen.unhandled(name)
		f.Speed = m.speed[name]
		s.Queues = append(s.Queues, &f)
	}
	s.Samples = slices.Clone(m.samples)
	return s
}

// sampled is a snapshot that is a new point of the chart.
func (m *memory) sampled() *snapshot {
	m.early = false
	s := m.snapshot()
	m.sample(s)
	return s
}

func (m *memory) sample(s *snapshot) {
	t := s.totals()
	if t.Read == 0 {
		return
	}
	if n := len(m.samples); n == 0 || s.At.Sub(m.samples[n-1].At) >= interval/2 {
		m.samples = append(m.samples, sample{At: s.At, rate: t.Rate})
	}
	m.samples = thinned(m.samples, s.At)
	s.Samples = slices.Clone(m.samples)
}

// counts are sums over all shards.
type counts struct {
	At                time.Time
	Processed, Failed int64
}

// count makes a point of the chart from two readings. Counters that fell belong to a Redis that
// has lost its data.
func (m *memory) count(now counts) {
	before := m.counted
	m.counted = now
	age := now.At.Sub(before.At)
	if before.At.IsZero() || age <= 0 || age > chartSpan/6 {
		return
	}
	m.samples = thinned(append(m.samples, sample{At: now.At, rate: rate{
		Processed: max(0, float64(now.Processed-before.Processed)) / age.Seconds(),
		Failed:    max(0, float64(now.Failed-before.Failed)) / age.Seconds(),
	}}), now.At)
}

// thinned keeps an hour: each point of the last minutes, and of what is older the mean of a quarter
// of a minute. These are 540 points at most.
func thinned(samples []sample, now time.Time) []sample {
	kept := make([]sample, 0, len(samples))
	in := 0 // points that the last one kept is the mean of
	for _, s := range samples {
		age := now.Sub(s.At)
		if age > chartSpan {
			continue
		}
		last := len(kept) - 1
		if age < chartFine || last < 0 || !s.At.Truncate(idleEvery).Equal(kept[last].At.Truncate(idleEvery)) {
			kept, in = append(kept, s), 1
			continue
		}
		in++
		kept[last].Processed += (s.Processed - kept[last].Processed) / float64(in)
		kept[last].Failed += (s.Failed - kept[last].Failed) / float64(in)
	}
	return kept
}

// failed is what was known before a failure, and the failure.
func (m *memory) failed(err error) *snapshot {
	s := m.snapshot()
	s.Err = err
	return s
}

// chunks are the shards of all queues, in the order of their names.
func chunks(entries map[string]queue.Entry, size int) iter.Seq[[]lowkiq.Shard] {
	return func(yield func([]lowkiq.Shard) bool) {
		chunk := make([]lowkiq.Shard, 0, size)
		for _, name := range slices.Sorted(maps.Keys(entries)) {
			for i := range entries[name].Shards {
				if chunk = append(chunk, lowkiq.Shard{Queue: name, Index: i}); len(chunk) == size {
					if !yield(chunk) {
						return
					}
					chunk = chunk[:0]
				}
			}
		}
		if len(chunk) > 0 {
			yield(chunk)
		}
	}
}
