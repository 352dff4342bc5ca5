package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// BenchmarkRules measures what rules cost Redis: us of its CPU per pushed or drained job, and that to what it is without the
// rule, in medians of rounds in each of which every rule has its turn. No limit is reached. Run it with -benchtime 1x.
func BenchmarkRules(b *testing.B) {
	many := rules.Limit{Concurrency: 100_000}
	fast := rules.Limit{Rate: rules.Rate{N: 1_000_000, Per: time.Second}, Burst: 1_000_000}
	cases := []struct {
		name string
		rule node.QueueConfig
		push protocol.PushRules
	}{
		{"none", node.QueueConfig{}, protocol.PushRules{}},
		{"limit.concurrency", node.QueueConfig{Rules: rules.Rules{Limit: many}}, protocol.PushRules{}},
		{"limit.rate", node.QueueConfig{Rules: rules.Rules{Limit: fast}}, protocol.PushRules{}},
		{"groups.concurrency", node.QueueConfig{Rules: rules.Rules{Groups: rules.Groups{By: "-", Limit: many}}}, protocol.PushRules{}},
		{"groups.rate", node.QueueConfig{Rules: rules.Rules{Groups: rules.Groups{By: "-", Limit: fast}}}, protocol.PushRules{}},
		{"expire", node.QueueConfig{Rules: rules.Rules{Expire: rules.Expire{After: time.Hour, To: rules.ExpireDrop}}}, protocol.PushRules{}},
		{"priority", node.QueueConfig{Rules: rules.Rules{Priority: 9}}, protocol.PushRules{}},
		{"stuck_after", node.QueueConfig{Rules: rules.Rules{StuckAfter: time.Hour}}, protocol.PushRules{}},
		{"coalesce", node.QueueConfig{}, protocol.PushRules{Push: rules.Push{Coalesce: rules.CoalesceLatest}}},
		{"debounce", node.QueueConfig{}, protocol.PushRules{Push: rules.Push{Debounce: rules.Debounce{Quiet: time.Millisecond, Most: time.Millisecond}}}},
	}
	for _, batch := range []int{1, 100} {
		got := samples{}
		for range 3 * b.N {
			for _, c := range cases {
				err := onServer(b, Config{Shards: 5, Jobs: 50_000}, func(ctx context.Context, bench *bench) error {
					client, q, err := bench.openProducer(ctx, bench.cfg.Shards)
					if err != nil {
						return err
					}
					defer client.Close()
					if err := client.SetRules(queueName, c.push); err != nil {
						return err
					}
					jobs := makeJobs(0, bench.cfg.Jobs)
					before, err := bench.on.Usage(ctx)
					if err != nil {
						return err
					}
					for from := 0; from < len(jobs); from += 1000 {
						if _, err := q.Push(ctx, jobs[from:from+1000]...); err != nil {
							return err
						}
					}
					after, err := bench.on.Usage(ctx)
					if err != nil {
						return err
					}
					got.note(c.name+" push", bench.usPerJob(after.CPU-before.CPU))
					rule := c.rule
					rule.BatchSize, rule.Push = batch, c.push.Push
					d, err := bench.drainQueue(ctx, rule)
					got.note(c.name+" drain", d.redis)
					got.note(c.name+" rate", d.rate)
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		}
		var table strings.Builder
		for _, c := range cases {
			ratio := func(what string) float64 { return medianRatio(got[c.name+what], got["none"+what]) }
			fmt.Fprintf(&table, "%-20s push %5.2f us (%.2f)  drain %6.2f us (%.2f)  %8.0f jobs/s (%.2f)\n", c.name, got.median(c.name+" push"), ratio(" push"),
				got.median(c.name+" drain"), ratio(" drain"), got.median(c.name+" rate"), ratio(" rate"))
		}
		fmt.Printf("batch %d, median of %d, and ratio to none\n%s", batch, 3*b.N, table.String()) // a benchmark's log has ten lines
	}
}
