//go:build unix

package bench

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/node/handler"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// BenchmarkHandlers measures what a node costs beside handlers that do their work elsewhere: Go
// handlers that wait, child processes and an HTTP endpoint, all at batch 1. This process is the node
// and nothing else while it is measured; Redis, children and endpoint are processes of their own, and
// the queue is filled before. Run it with -benchtime 1x.
func BenchmarkHandlers(b *testing.B) {
	b.Run("waiting", func(b *testing.B) {
		const wait = 100 * time.Millisecond
		handlerBench(b, 12, 150_000, 500, node.QueueConfig{Shards: 50, Rules: rules.Rules{ShardConcurrency: 10, Concurrency: 500}},
			lowkiq.HandlerFunc(func(ctx context.Context, _ *lowkiq.Batch) error {
				timer := time.NewTimer(wait)
				defer timer.Stop()
				select {
				case <-timer.C:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}))
	})
	b.Run("exec", func(b *testing.B) {
		python, err := exec.LookPath("python3")
		if err != nil {
			b.Skip("python3 is not on PATH")
		}
		const loop = `import sys
for line in sys.stdin.buffer:
    sys.stdout.write('{"ok":true}\n')
    sys.stdout.flush()`
		h, err := handler.NewExec(handler.ExecConfig{Argv: []string{python, "-c", loop}, Processes: 8, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		handlerBench(b, 8, 400_000, 64, node.QueueConfig{Shards: 50}, h)
	})
	b.Run("http", func(b *testing.B) {
		h, err := handler.NewHTTP(handler.HTTPConfig{URL: startEndpoint(b), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		defer h.Close()
		handlerBench(b, 8, 400_000, 64, node.QueueConfig{Shards: 50}, h)
	})
}

// startEndpoint starts this binary as an endpoint in a process of its own and returns its URL.
func startEndpoint(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), endpointRole+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("endpoint: %v", err)
		}
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatalf("endpoint: %v", err)
	}
	return strings.TrimSpace(url)
}

// handlerBench measures a node for seconds while it works on more jobs than it can handle in them.
func handlerBench(b *testing.B, seconds, jobs, concurrency int, rules node.QueueConfig, h lowkiq.Handler) {
	for range b.N {
		b.StopTimer()
		measureHandler(b, time.Duration(seconds)*time.Second, jobs, concurrency, rules, h)
	}
	b.ReportMetric(0, "ns/op")
}

func measureHandler(b *testing.B, window time.Duration, jobs, concurrency int, rules node.QueueConfig, h lowkiq.Handler) {
	b.Helper()
	ctx := b.Context()
	on, err := openServer(ctx, "")
	if err != nil {
		b.Fatal(err)
	}
	defer on.close()
	bench := &bench{cfg: Config{Jobs: jobs, Shards: rules.Shards}.withDefaults(), on: on}
	if _, _, err := bench.pushAll(ctx, func(string, float64) {}); err != nil {
		b.Fatal(err)
	}
	client, err := protocol.Open(protocol.Config{Redis: on.URL})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	if err := client.Registry().Pause(ctx, queueName); err != nil {
		b.Fatal(err)
	}
	n, err := node.New(node.Config{Name: "bench", Redis: on.URL, Concurrency: concurrency, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	var handled atomic.Int64
	rules.Name = queueName
	rules.Middlewares = []node.Middleware{func(next lowkiq.Handler) lowkiq.Handler {
		return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
			err := next.Handle(ctx, batch)
			if err == nil {
				handled.Add(int64(len(batch.Jobs)))
			}
			return err
		})
	}}
	if err := n.Handle(rules, h); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{Node: n, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		w.err = n.Run(ctx)
	}()
	defer func() {
		if err := w.stop(); err != nil {
			b.Error(err)
		}
	}()
	if err := w.awaitReady(ctx); err != nil {
		b.Fatal(err)
	}
	if err := client.Registry().Resume(ctx, queueName); err != nil {
		b.Fatal(err)
	}
	if err := w.awaitDone(ctx, nil, 2*time.Second); err == nil || !strings.HasPrefix(err.Error(), "after") {
		b.Fatal(err) // the first seconds start children, connections and timers
	}
	count, cpu, redis, begun := handled.Load(), mustCPU(b), mustUsage(b, on), time.Now()
	allocs, switches := countMallocs(), mustSwitches(b)
	b.StartTimer()
	if err := w.awaitDone(ctx, nil, window); err == nil || !strings.HasPrefix(err.Error(), "after") {
		b.Fatal(err)
	}
	b.StopTimer()
	took := time.Since(begun)
	done := handled.Load() - count
	if handled.Load() >= int64(jobs) {
		b.Fatal(errors.New("all jobs were handled before the end: it measured nothing"))
	}
	b.ReportMetric(float64(done)/took.Seconds(), "jobs/s")
	b.ReportMetric(100*(mustCPU(b)-cpu).Seconds()/took.Seconds(), "node-cpu-%")
	b.ReportMetric(float64(mustSwitches(b)-switches)/took.Seconds(), "switches/s")
	used := mustUsage(b, on)
	b.ReportMetric(100*(used.CPU-redis.CPU).Seconds()/took.Seconds(), "redis-cpu-%")
	b.ReportMetric(float64(used.Scripts-redis.Scripts)/took.Seconds(), "scripts/s")
	b.ReportMetric(float64(countMallocs()-allocs)/float64(done), "allocs/job")
}

func mustCPU(b *testing.B) time.Duration {
	b.Helper()
	cpu, err := processCPU()
	if err != nil {
		b.Fatal(err)
	}
	return cpu
}

// mustSwitches is how often threads of this process have gone to sleep: a wake-up each.
func mustSwitches(b *testing.B) int64 {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return int64(u.Nvcsw)
}

func mustUsage(b *testing.B, on *Server) Usage {
	b.Helper()
	u, err := on.Usage(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return u
}
