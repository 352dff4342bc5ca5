package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// spans are the times of handler calls.
type spans struct {
	mu   sync.Mutex
	all  [][2]time.Time
	work time.Duration // of a call
}

func (s *spans) handle(ctx context.Context, _ *lowkiq.Batch) error {
	began := time.Now()
	select {
	case <-time.After(s.work):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, [2]time.Time{began, time.Now()})
	return context.Cause(ctx)
}

// used is which part of a limit was used while work waited on each node: until three quarters of the calls had begun.
func (s *spans) used(limit int) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.all, func(a, b [2]time.Time) int { return a[0].Compare(b[0]) })
	first, last := s.all[0][0], s.all[len(s.all)*3/4][0]
	var busy time.Duration
	for _, span := range s.all[:len(s.all)*3/4] {
		busy += min(span[1].Sub(span[0]), last.Sub(span[0]))
	}
	return busy.Seconds() / float64(limit) / last.Sub(first).Seconds()
}

// BenchmarkLimit measures the used share of a limit of calls in percent, by three nodes while work waits. Run it with
// -benchtime 1x.
func BenchmarkLimit(b *testing.B) {
	for _, c := range []struct {
		limit int
		work  time.Duration
	}{{1, 5 * time.Millisecond}, {2, 5 * time.Millisecond}, {2, 20 * time.Millisecond}, {4, 20 * time.Millisecond}, {20, 2 * time.Millisecond}, {20, 5 * time.Millisecond}, {20, 50 * time.Millisecond}} {
		b.Run(fmt.Sprintf("queue/%dx%s", c.limit, c.work), func(b *testing.B) {
			benchLimit(b, c.limit, c.work, QueueConfig{Shards: 48, Rules: rules.Rules{Limit: rules.Limit{Concurrency: c.limit}}})
		})
	}
	for _, work := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond} {
		b.Run(fmt.Sprintf("group/2x%s", work), func(b *testing.B) {
			benchLimit(b, 2, work, QueueConfig{Shards: 48, Rules: rules.Rules{ShardConcurrency: 4, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}}})
		})
	}
}

func benchLimit(b *testing.B, limit int, work time.Duration, rules QueueConfig) {
	for range b.N {
		srv := redistest.Start(b)
		p := open(b, srv.URL(), 48)
		calls := &spans{work: work}
		nodes := cluster3(b, srv.URL(), rules, calls.handle)
		p.ids("a:", max(100, int(3*time.Second/work)*limit))
		await(b, "all is done", func() bool { c := p.counts(); return c.Ready+c.InFlight+c.Scheduled == 0 })
		for _, n := range nodes {
			n.stop()
		}
		b.ReportMetric(100*calls.used(limit), "%used")
		b.ReportMetric(0, "ns/op")
	}
}
