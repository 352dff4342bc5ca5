package bench

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

var (
	deepJobs   = flag.Int("deep", 10_000_000, "how many jobs wait, in BenchmarkDeep")
	deepRounds = flag.Int("deep-rounds", 9, "rounds of BenchmarkDeep")
)

// BenchmarkDeep compares a queue in which ten million jobs wait with one of a hundred thousand, both
// with the floor of their size. All four are in Redis at once, and by turns each gets a hundred
// thousand jobs and hands as many over: a run of ten million for each figure would be compared with
// another minute of the machine. Run it with -benchtime 1x; both floors and queues hold about
// 2.1 GB of data.
func BenchmarkDeep(b *testing.B) {
	const shards, part = 50, 100_000
	ctx := b.Context()
	var all []*depth
	for _, waiting := range []int{part, *deepJobs} {
		on, err := openServer(ctx, "")
		if err != nil {
			b.Fatal(err)
		}
		defer on.close()
		cfg := Config{Jobs: part, Shards: shards}.withDefaults()
		d := &depth{bench: &bench{cfg: cfg, on: on}, waiting: waiting, got: samples{}}
		if err := d.fill(ctx); err != nil {
			b.Fatal(err)
		}
		all = append(all, d)
	}
	for range *deepRounds {
		for _, d := range all {
			if err := d.round(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, d := range all {
		for _, name := range []string{"push", "drain"} {
			us := name + "_redis_us"
			rate := name + "_per_s"
			b.Logf("%d waiting, %s, medians of %d: Redis %.2f us a job, floor %.2f, ratio %.2f; ratio of jobs/s %.2f",
				d.waiting, name, *deepRounds, d.got.median(us), d.got.median(ofFloor+us), d.got.ratio(us), d.got.ratio(rate))
			b.ReportMetric(d.got.ratio(us), fmt.Sprintf("%s_redis_to_floor_at_%d", name, d.waiting))
		}
	}
	b.ReportMetric(0, "ns/op")
}

// depth is a queue, and a floor, in which so many jobs wait.
type depth struct {
	*bench
	floor   *minimal
	waiting int
	pushed  int // ids are used once
	got     samples
}

func (d *depth) fill(ctx context.Context) (err error) {
	if d.floor, err = newMinimal(ctx, d.on.rdb, d.cfg.Shards); err != nil {
		return err
	}
	client, _, err := d.openProducer(ctx, d.cfg.Shards)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Registry().Pause(ctx, queueName); err != nil {
		return err
	}
	for d.pushed < d.waiting {
		if err := d.push(ctx, func(string, float64) {}); err != nil {
			return err
		}
	}
	return nil
}

// push pushes the next jobs to both.
func (d *depth) push(ctx context.Context, note func(string, float64)) error {
	from := d.pushed
	d.pushed += d.cfg.Jobs
	client, q, err := d.openProducer(ctx, d.cfg.Shards)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, to := range []struct {
		name string
		push func(ctx context.Context, jobs []lowkiq.Push) error
	}{
		{ofFloor, d.floor.pushAll},
		{"", func(ctx context.Context, jobs []lowkiq.Push) error { _, err := q.Push(ctx, jobs...); return err }},
	} {
		runtime.GC()
		rate, used, err := d.timed(ctx, func() (int, error) {
			group, ctx := errgroup.WithContext(ctx)
			group.SetLimit(pushers)
			for at := from; at < d.pushed; at += pushBatch {
				group.Go(func() error { return to.push(ctx, makeJobs(at, min(at+pushBatch, d.pushed))) })
			}
			return d.cfg.Jobs, group.Wait()
		})
		if err != nil {
			return err
		}
		note(to.name+"push_per_s", rate)
		note(to.name+"push_redis_us", used)
	}
	return nil
}

// timed returns jobs per second, and Redis's CPU time for each in us.
func (d *depth) timed(ctx context.Context, do func() (jobs int, err error)) (rate, us float64, err error) {
	before, err := d.on.Usage(ctx)
	if err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	jobs, err := do()
	took := time.Since(begun).Seconds()
	if err != nil {
		return 0, 0, err
	}
	after, err := d.on.Usage(ctx)
	if err != nil {
		return 0, 0, err
	}
	return float64(jobs) / took, float64(after.since(before).CPU.Microseconds()) / float64(jobs), nil
}

func (d *depth) round(ctx context.Context) error {
	if err := d.push(ctx, d.got.note); err != nil {
		return err
	}
	runtime.GC()
	rate, us, err := d.timed(ctx, func() (int, error) { return d.drainFloor(ctx) })
	if err != nil {
		return err
	}
	d.got.note(ofFloor+"drain_per_s", rate)
	d.got.note(ofFloor+"drain_redis_us", us)
	return d.drainPart(ctx)
}

// drainFloor pops as many as were pushed.
func (d *depth) drainFloor(ctx context.Context) (int, error) {
	var popped atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for shard := range d.cfg.Shards {
		group.Go(func() error {
			for popped.Load() < int64(d.cfg.Jobs) {
				n, err := d.floor.popSome(ctx, shard)
				if n == 0 || err != nil {
					return err
				}
				popped.Add(int64(n))
			}
			return nil
		})
	}
	err := group.Wait()
	return int(popped.Load()), err
}

// drainPart lets a node handle as many as were pushed, at least, and ends it.
func (d *depth) drainPart(ctx context.Context) error {
	client, err := protocol.Open(protocol.Config{Redis: d.on.URL})
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Registry().Pause(ctx, queueName); err != nil {
		return err
	}
	var handled atomic.Int64
	var first sync.Once
	var begun, ended time.Time
	done := make(chan struct{})
	w, err := d.startWorker(ctx, node.QueueConfig{Shards: d.cfg.Shards, Rules: rules.Rules{BatchSize: 100}}, func(batch *lowkiq.Batch) error {
		first.Do(func() { begun = time.Now() })
		n := int64(len(batch.Jobs))
		if all := handled.Add(n); all >= int64(d.cfg.Jobs) && all-n < int64(d.cfg.Jobs) {
			ended = time.Now()
			close(done)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer w.stop() //nolint:errcheck // it has ended
	if err := w.awaitReady(ctx); err != nil {
		return err
	}
	runtime.GC()
	_, us, err := d.timed(ctx, func() (int, error) {
		if err := client.Registry().Resume(ctx, queueName); err != nil {
			return 0, err
		}
		if err := w.awaitDone(ctx, done, time.Minute); err != nil {
			return 0, err
		}
		err := w.stop() // gives back what no handler has
		return int(handled.Load()), err
	})
	if err != nil {
		return err
	}
	d.got.note("drain_per_s", float64(d.cfg.Jobs)/ended.Sub(begun).Seconds())
	d.got.note("drain_redis_us", us)
	return nil
}
