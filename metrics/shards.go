package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Figures are a queue's share on this node.
type Figures struct {
	Lag    time.Duration  // age of the oldest due job; 0 if none
	Jobs   map[string]int // by state: ready, scheduled, retry, in_flight, blocked
	Failed int            // of ready and retry: with a retry count
	Morgue int            // payloads in the morgue
}

// Shards exports the figures of the owned shards, and, on the leader, of those that nobody owns. Read is called for every scrape. All
// fields are needed.
type Shards struct {
	Read    func(ctx context.Context) (map[string]Figures, error) // by queue
	Timeout time.Duration                                         // of one read
	Failed  func(error)                                           // told when a read failed; the series are left out then
}

var (
	lagDesc    = prometheus.NewDesc("lowkiq_queue_lag_seconds", "Age of the oldest due job that waits in this node's shards; 0 if none. The leader adds the shards that nobody owns.", []string{"queue"}, nil)
	jobsDesc   = prometheus.NewDesc("lowkiq_queue_jobs", "Jobs of this node's shards by state: ready, scheduled, retry, in_flight or blocked. The leader adds the shards that nobody owns.", []string{"queue", "state"}, nil)
	failedDesc = prometheus.NewDesc("lowkiq_queue_jobs_failed", "Failed jobs of this node's shards that wait for an attempt: those of state retry, and those of state ready that have failed. The leader adds the shards that nobody owns.", []string{"queue"}, nil)
	morgueDesc = prometheus.NewDesc("lowkiq_morgue_payloads", "Payloads of this node's shards that ran out of retries. The leader adds the shards that nobody owns.", []string{"queue"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Shards) Describe(ch chan<- *prometheus.Desc) {
	ch <- lagDesc
	ch <- jobsDesc
	ch <- failedDesc
	ch <- morgueDesc
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
		for state, n := range f.Jobs {
			gauge(jobsDesc, float64(n), name, state)
		}
	}
}
