package metrics

import (
	"context"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Figures has a queue's figures on this node.
type Figures struct {
	Lag    time.Duration  // age of the oldest due job; 0 if none
	Jobs   map[string]int // by state: ready, scheduled, retry, held, in_flight, blocked
	Failed int            // jobs in ready and retry with a retry count
	Morgue int            // payloads in the morgue
	// Outgoing is the number of follow-ups that wait to be delivered.
	Outgoing int
	// Unlogged is the number of lines that were never written to journals because Redis was out of
	// memory.
	Unlogged int64
}

// Shards exports the figures of the owned shards, and on the leader also of shards without an
// owner. It calls Read for every scrape. All fields are required.
type Shards struct {
	Read    func(ctx context.Context) (map[string]Figures, error) // by queue
	Timeout time.Duration                                         // of a read
	Failed  func(error)                                           // called when a read fails; its series are then left out
}

// Describe implements prometheus.Collector.
func (s *Shards) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range []*Metric{lag, jobs, jobsFailed, morgue, outgoing, journalDropped} {
		ch <- m.newDesc()
	}
}

// Collect implements prometheus.Collector.
func (s *Shards) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	queues, err := s.Read(ctx)
	if err != nil {
		s.Failed(err)
		return
	}
	gauge := func(m *Metric, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.newDesc(), prometheus.GaugeValue, v, labels...)
	}
	for name, f := range queues {
		gauge(lag, f.Lag.Seconds(), name)
		gauge(jobsFailed, float64(f.Failed), name)
		gauge(morgue, float64(f.Morgue), name)
		gauge(outgoing, float64(f.Outgoing), name)
		gauge(journalDropped, float64(f.Unlogged), name)
		for state, n := range f.Jobs {
			gauge(jobs, float64(n), name, state)
		}
	}
}

// Pushed counts the pushes of a program. Put it first in the Middlewares of [queue.Config]. A node
// does so itself. Redis does not count pushes, so each producer has to export its own.
func Pushed(registry prometheus.Registerer) queue.Middleware {
	stores := prometheus.NewCounterVec(prometheus.CounterOpts{Name: pushed.Name, Help: pushed.Help}, pushed.Labels)
	registry.MustRegister(stores)
	return func(name string, next queue.Pusher) queue.Pusher {
		count := stores.WithLabelValues(name)
		return func(ctx context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
			results, err := next(ctx, jobs)
			stored := 0
			for i := range results {
				if results[i].Err == nil {
					stored++
				}
			}
			count.Add(float64(stored))
			return results, err
		}
	}
}

// Working exports what a node is busy with when it is scraped.
type Working struct {
	Slots    func() Use            // for handler calls
	Children func() map[string]Use // processes that exec handlers run, by queue
	Calls    func() int            // pushes that wait for replies
	Unlogged func() int64          // lines of the log that were dropped
}

// Use is the total number of something and how many of it are busy.
type Use struct{ Total, Busy int }

// Describe implements prometheus.Collector.
func (w *Working) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range []*Metric{slots, slotsBusy, children, childrenBusy, callsWaiting, logDropped} {
		ch <- m.newDesc()
	}
}

// Collect implements prometheus.Collector.
func (w *Working) Collect(ch chan<- prometheus.Metric) {
	gauge := func(m *Metric, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.newDesc(), prometheus.GaugeValue, float64(n), labels...)
	}
	use := w.Slots()
	gauge(slots, use.Total)
	gauge(slotsBusy, use.Busy)
	gauge(callsWaiting, w.Calls())
	ch <- prometheus.MustNewConstMetric(logDropped.newDesc(), prometheus.CounterValue, float64(w.Unlogged()))
	for queue, of := range w.Children() {
		gauge(children, of.Total, queue)
		gauge(childrenBusy, of.Busy, queue)
	}
}

// Build exports the release as labels of a gauge that is 1.
func Build(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: buildInfo.Name, Help: buildInfo.Help,
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}
