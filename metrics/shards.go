package metrics

import (
	"context"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Figures are a queue's share on this node.
type Figures struct {
	Lag    time.Duration  // age of the oldest due job; 0 if none
	Jobs   map[string]int // by state: ready, scheduled, retry, held, in_flight, blocked
	Failed int            // of ready and retry: with a retry count
	Morgue int            // payloads in the morgue
	// Unlogged are the lines that journals lack, ever, as Redis was out of memory.
	Unlogged int64
}

// Shards exports the figures of the owned shards, and, on the leader, of those without an owner.
// Read is called for every scrape. All fields are needed.
type Shards struct {
	Read    func(ctx context.Context) (map[string]Figures, error) // by queue
	Timeout time.Duration                                         // of one read
	Failed  func(error)                                           // told when a read failed; the series are left out then
}

var (
	lagDesc     = prometheus.NewDesc("lowkiq_queue_lag_seconds", "For how long the due job has waited that has waited longest in this node's shards, also of those that were put off; 0 if none. The leader adds the shards that nobody owns.", []string{"queue"}, nil)
	jobsDesc    = prometheus.NewDesc("lowkiq_queue_jobs", "Jobs of this node's shards by state: ready, scheduled, retry, held, in_flight or blocked. The leader adds the shards that nobody owns.", []string{"queue", "state"}, nil)
	failedDesc  = prometheus.NewDesc("lowkiq_queue_jobs_failed", "Failed jobs of this node's shards that wait for an attempt: those of state retry, and those of state ready that have failed. The leader adds the shards that nobody owns.", []string{"queue"}, nil)
	morgueDesc  = prometheus.NewDesc("lowkiq_morgue_payloads", "Payloads of this node's shards that ran out of retries. The leader adds the shards that nobody owns.", []string{"queue"}, nil)
	droppedDesc = prometheus.NewDesc("lowkiq_journal_dropped_lines", "Lines that the journals of this node's shards lack, ever, as Redis was out of memory. The leader adds the shards that nobody owns.", []string{"queue"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Shards) Describe(ch chan<- *prometheus.Desc) {
	ch <- lagDesc
	ch <- jobsDesc
	ch <- failedDesc
	ch <- morgueDesc
	ch <- droppedDesc
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
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	for name, f := range queues {
		gauge(lagDesc, f.Lag.Seconds(), name)
		gauge(failedDesc, float64(f.Failed), name)
		gauge(morgueDesc, float64(f.Morgue), name)
		gauge(droppedDesc, float64(f.Unlogged), name)
		for state, n := range f.Jobs {
			gauge(jobsDesc, float64(n), name, state)
		}
	}
}

// Pushed counts what a program pushes: give it to [queue.Config], first of its Middlewares. A
// node does so itself. Redis does not count pushes, so each producer has to export its own.
func Pushed(registry prometheus.Registerer) queue.Middleware {
	pushed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lowkiq_jobs_pushed_total", Help: "Jobs that this process has pushed and Redis has stored.",
	}, []string{"queue"})
	registry.MustRegister(pushed)
	return func(name string, next queue.Pusher) queue.Pusher {
		count := pushed.WithLabelValues(name)
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
	Calls    func() int            // pushes that wait for the ends of their payloads
	Unlogged func() int64          // lines of the log that were dropped
}

// Use is how much of something there is, and how much of it is in use.
type Use struct{ Total, Busy int }

var (
	slotsDesc        = prometheus.NewDesc("lowkiq_slots", "Handler calls that this node may run at once.", nil, nil)
	slotsBusyDesc    = prometheus.NewDesc("lowkiq_slots_busy", "Slots of this node that handler calls hold.", nil, nil)
	childrenDesc     = prometheus.NewDesc("lowkiq_children", "Processes of the queue's exec handler that run.", []string{"queue"}, nil)
	childrenBusyDesc = prometheus.NewDesc("lowkiq_children_busy", "Processes of the queue's exec handler that have a batch.", []string{"queue"}, nil)
	callsDesc        = prometheus.NewDesc("lowkiq_calls_waiting", "Payloads pushed through this node whose callers wait for their ends.", nil, nil)
	unloggedDesc     = prometheus.NewDesc("lowkiq_log_dropped_lines_total", "Lines of this node's log that were dropped, because they came faster than they were written, or could not be written.", nil, nil)
)

// Describe implements prometheus.Collector.
func (w *Working) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{slotsDesc, slotsBusyDesc, childrenDesc, childrenBusyDesc, callsDesc, unloggedDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (w *Working) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
	}
	slots := w.Slots()
	gauge(slotsDesc, slots.Total)
	gauge(slotsBusyDesc, slots.Busy)
	gauge(callsDesc, w.Calls())
	ch <- prometheus.MustNewConstMetric(unloggedDesc, prometheus.CounterValue, float64(w.Unlogged()))
	for queue, children := range w.Children() {
		gauge(childrenDesc, children.Total, queue)
		gauge(childrenBusyDesc, children.Busy, queue)
	}
}

// Build exports which release runs, as labels of a gauge that is 1.
func Build(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lowkiq_build_info", Help: "1; the labels say which release this node is, and the Go version it was built with.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}
