package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// BenchmarkLanes measures what shard_concurrency costs and gives: rates in jobs/s, times from push to
// start in ms, medians of rounds in each of which every number has its turn. Run it with -benchtime 1x.
func BenchmarkLanes(b *testing.B) {
	all := []int{1, 2, 4, 10}
	got := samples{}
	for range 3 * b.N {
		for _, lanes := range all {
			note := func(name string, value float64) { got.note(fmt.Sprintf("%s/lanes-%d", name, lanes), value) }
			for _, err := range []error{
				measureDrain(b, Config{Shards: 5, Jobs: 100_000, lanes: lanes}, 1, "drain-1", note),
				measureDrain(b, Config{Shards: 5, Jobs: 200_000, lanes: lanes}, 100, "drain-100", note),
				measureDrain(b, Config{Shards: 5, Jobs: 1000, lanes: lanes, takes: 10 * time.Millisecond}, 1, "10ms-5", note),
				measureDrain(b, Config{Shards: 50, Jobs: 1000, lanes: lanes, takes: 10 * time.Millisecond}, 1, "10ms-50", note),
				measureStream(b, 5, lanes, Saturation, note),
				measureStream(b, 50, lanes, Saturation, note),
				measureStream(b, 50, lanes, besideSlow, note),
			} {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		fmt.Printf("%s: %.4g of %.4g\n", name, got.median(name), got[name])
	}
	b.ReportMetric(0, "ns/op")
}

// onServer calls measure with an empty Redis of its own.
func onServer(b *testing.B, cfg Config, measure func(context.Context, *bench) error) error {
	b.Helper()
	on, err := openServer(b.Context(), "")
	if err != nil {
		return err
	}
	defer on.close()
	cfg = cfg.withDefaults()
	return measure(b.Context(), &bench{cfg: cfg, on: on, got: samples{}, others: samples{}})
}

func measureDrain(b *testing.B, cfg Config, batch int, name string, note func(string, float64)) error {
	b.Helper()
	return onServer(b, cfg, func(ctx context.Context, bench *bench) error {
		if _, _, err := bench.pushAll(ctx, func(string, float64) {}); err != nil {
			return err
		}
		d, err := bench.drainQueue(ctx, node.QueueConfig{Rules: rules.Rules{BatchSize: batch}})
		note(name, d.rate)
		return err
	})
}

func measureStream(b *testing.B, shards, lanes int, load Load, note func(string, float64)) error {
	b.Helper()
	return onServer(b, Config{}, func(ctx context.Context, bench *bench) error {
		return bench.withNode(ctx, node.QueueConfig{Shards: shards, Rules: rules.Rules{ShardConcurrency: lanes}},
			func(ctx context.Context, s *Stream) error {
				f, err := s.Measure(ctx, load, 2*time.Second)
				name := fmt.Sprintf("slow-%d", shards)
				if load == Saturation {
					name = fmt.Sprintf("saturation-%d", shards)
					note(name, f.PerSecond)
				}
				note(name+"-p50", f.P50)
				note(name+"-p99", f.P99)
				return err
			})
	})
}
