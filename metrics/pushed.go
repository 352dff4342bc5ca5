package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

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
