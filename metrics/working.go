package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// Working exports what a node is busy with when it is scraped.
type Working struct {
	Slots    func() Use            // for handler calls
	Children func() map[string]Use // processes that exec handlers run, by queue
}

// Use is how much of something there is, and how much of it is in use.
type Use struct{ Total, Busy int }

var (
	slotsDesc        = prometheus.NewDesc("lowkiq_slots", "Handler calls that this node may run at once.", nil, nil)
	slotsBusyDesc    = prometheus.NewDesc("lowkiq_slots_busy", "Slots of this node that handler calls hold.", nil, nil)
	childrenDesc     = prometheus.NewDesc("lowkiq_children", "Processes of the queue's exec handler that run.", []string{"queue"}, nil)
	childrenBusyDesc = prometheus.NewDesc("lowkiq_children_busy", "Processes of the queue's exec handler that have a batch.", []string{"queue"}, nil)
)

// Describe implements prometheus.Collector.
func (w *Working) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{slotsDesc, slotsBusyDesc, childrenDesc, childrenBusyDesc} {
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
