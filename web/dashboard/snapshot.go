package dashboard

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/timings"
	"github.com/lowkiq/lowkiq/status"
)

// overview has the facts about the cluster, which are read before the shards.
type overview struct {
	At      time.Time     // when reading it began; zero if it was not read yet
	Status  status.Status // Queues is empty
	Members []status.Member
	Entries map[string]protocol.RegistryEntry
	Owners  status.Owners
	Handled status.Handled             // nil if it is not known
	Reshard map[string]*status.Reshard // under way, by queue
	Refuses string                     // why Redis refuses leases
	Full    string                     // which Redis is full
}

// snapshot has the figures of the cluster that were read so far. It never changes, so all pages and streams can
// share it.
type snapshot struct {
	At      time.Time // when it was made; zero if nothing has been read yet
	Swept   time.Time // when figures of shards were read last
	Status  status.Status
	Members []status.Member
	Queues  []*figures // all registered queues, by name
	Samples []sample   // of the chart, oldest first
	Err     error      // why the figures could not be read again
}

// figures are the figures of a queue. They never change.
type figures struct {
	Name      string
	Entry     protocol.RegistryEntry
	Unhandled bool      // no living node handles the queue
	At        time.Time // when reading them began, the entry first; zero if shards have not been read
	Sum       protocol.Stats
	Shards    []shardFigures
	Rate      rate
	Past      []sample // of the last hour by minute, oldest first; nil if all rates were 0
	Speed     speed
	Causes    []status.Cause  // what slows the queue down
	Reshard   *status.Reshard // nil if none is under way
}

// shardFigures are the figures of a shard.
type shardFigures struct {
	protocol.Stats
	Assigned string // the node that should own it
	State    status.ShardState
}

// newFigures judges the shards of a queue, which were read after the overview.
//
// The figures have the time of the overview, the earlier of the two. So they never count as newer than they are.
func (o overview) newFigures(name string, stats []protocol.Stats) *figures {
	f := &figures{Name: name, Entry: o.Entries[name], Unhandled: o.isUnhandled(name), At: o.At, Sum: protocol.Sum(stats), Shards: make([]shardFigures, len(stats))}
	f.Causes, f.Reshard = o.findCauses(name, stats), o.Reshard[name]
	for i := range stats {
		f.Shards[i].Stats = stats[i]
		f.Shards[i].Assigned, f.Shards[i].State = o.Owners(lowkiq.Shard{Queue: name, Index: i}, stats[i].Owner.Instance)
	}
	return f
}

// findCauses returns the causes that slow a queue down, nil if they are not known.
func (o overview) findCauses(name string, stats []protocol.Stats) []status.Cause {
	if o.Handled == nil {
		return nil
	}
	facts := status.QueueFacts{Name: name, Paused: o.Entries[name].Paused, Redis: o.Refuses, Full: o.Full, Handled: o.Handled, Shards: stats, Reshard: o.Reshard[name]}
	return facts.Causes()
}

func (o overview) isUnhandled(name string) bool {
	return o.Handled != nil && len(o.Handled.By(name)) == 0
}

// Cause returns the sentence beside the lag, "" if there is none.
func (f *figures) Cause() string {
	cause, _ := status.Slowest(f.Causes)
	return cause.Reason
}

// causeOf returns the sentence beside the lag of a shard, "" if the shard does not lag.
func (f *figures) causeOf(s shardFigures) string {
	switch {
	case lagClass(s.Lag) != lagBad:
		return ""
	case s.holder() == "":
		return "no live node owns it"
	}
	return f.Cause()
}

// slowest returns the queue with the largest lag, nil if no queue lags.
func (s *snapshot) slowest() (most *figures) {
	for _, f := range s.Queues {
		if lagClass(f.Sum.Lag) == lagBad && (most == nil || f.Sum.Lag > most.Sum.Lag) {
			most = f
		}
	}
	return most
}

// speed has the duration of handler calls in the last minute, and the time that jobs waited for them.
type speed struct {
	Calls         int // of handlers; if it is 0 the other fields mean nothing
	P50, P95, P99 float64
	Wait95        float64
}

func speedOf(t timings.Minute) speed {
	s := speed{Calls: int(t.Handler.Count()), P50: t.Handler.Quantile(.5), P95: t.Handler.Quantile(.95), P99: t.Handler.Quantile(.99)}
	if t.Wait.Count() > 0 {
		s.Wait95 = t.Wait.Quantile(.95)
	}
	return s
}

// rate is the growth of counters per second.
type rate struct{ Processed, Failed float64 }

// rateOf returns the growth of counters between two readings, per second. Counters that fell belong to a Redis
// that has lost its data, and give 0.
func rateOf(before, now protocol.Stats, between time.Duration) rate {
	return rate{
		Processed: max(0, float64(now.Processed-before.Processed)) / between.Seconds(),
		Failed:    max(0, float64(now.Failed-before.Failed)) / between.Seconds(),
	}
}

// maxRateAge bounds the time between two readings for a rate. After a longer time the rate would say nothing
// about the present.
const maxRateAge = 2 * time.Minute

// rateSince returns the growth of the counters since an earlier reading, per second.
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
	readings int // number of readings in the mean; 0 stands for 1
}

// remember adds the rate to the rates of an earlier reading.
func (f *figures) remember(before *figures) {
	if f.Rate != (rate{}) || len(before.Past) > 0 {
		f.Past = thinSamples(append(slices.Clip(before.Past), sample{At: f.At, rate: f.Rate}), f.At, 0, time.Minute)
	}
	if !slices.ContainsFunc(f.Past, func(s sample) bool { return s.rate != (rate{}) }) {
		f.Past = nil
	}
}

// thinSamples keeps the samples of an hour. It keeps each point that is not older than fine. Older points become the
// mean of a period each.
func thinSamples(samples []sample, now time.Time, fine, period time.Duration) []sample {
	kept := make([]sample, 0, len(samples))
	for _, s := range samples {
		age := now.Sub(s.At)
		if age > chartSpan {
			continue
		}
		last := len(kept) - 1
		if age < fine || last < 0 || !s.At.Truncate(period).Equal(kept[last].At.Truncate(period)) {
			kept = append(kept, s)
			continue
		}
		mean, more := &kept[last], max(s.readings, 1)
		mean.readings = max(mean.readings, 1) + more
		part := float64(more) / float64(mean.readings)
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

// inOrder returns the figures of all queues, by name.
func inOrder(byName map[string]*figures) []*figures {
	all := make([]*figures, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all
}

// totals has the figures of all queues together.
type totals struct {
	protocol.Stats
	Rate   rate
	Queues int
	Read   int       // queues whose figures are known
	Oldest time.Time // when the oldest of the figures were read
}

// Complete reports whether every queue has been read.
func (t totals) Complete() bool { return t.Read == t.Queues }

func (s *snapshot) sumTotals() totals {
	t := totals{Queues: len(s.Queues)}
	stats := make([]protocol.Stats, 0, len(s.Queues))
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
	t.Stats = protocol.Sum(stats)
	return t
}
