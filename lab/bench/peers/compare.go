package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/lab/bench"
)

// Names of the figures of asynq.
const (
	pushRate    = "push_single50_per_s"
	pushCPU     = "redis_us_per_job_push"
	bytesPerJob = "redis_bytes_per_job"
	startP50    = "start_p50_ms"
	startP99    = "start_p99_ms"
)

func drainRate(concurrency int) string { return fmt.Sprintf("drain_%d_per_s", concurrency) }
func drainCPU(concurrency int) string  { return fmt.Sprintf("redis_us_per_job_drain_%d", concurrency) }

// comparison is the output: the figures of asynq with those of lowkiq from the same rounds.
type comparison struct {
	Lowkiq bench.Report       `json:"lowkiq"`
	Asynq  map[string]float64 `json:"asynq"`
	Rows   []pair             `json:"rows"`
}

// pair is a figure of both.
type pair struct {
	Title  string  `json:"title"`
	Lowkiq float64 `json:"lowkiq"`
	Asynq  float64 `json:"asynq"`
	// Better says how many times better lowkiq is. More than 1 means faster, or a smaller cost.
	Better float64 `json:"better"`
}

// compare returns the figures of both systems from the same rounds. Better is 0 if a figure is 0 or
// was not measured.
func compare(r bench.Report) comparison {
	asynq := r.Steps
	r.Steps = nil
	more := func(title string, lowkiq, asynq float64) pair { return pair{title, lowkiq, asynq, over(lowkiq, asynq)} }
	less := func(title string, lowkiq, asynq float64) pair { return pair{title, lowkiq, asynq, over(asynq, lowkiq)} }
	var rows []pair
	if r.Only != bench.OnlyStream {
		rows = []pair{
			more("50 goroutines push one by one, jobs/s", r.PushSingle50, asynq[pushRate]),
			more("drain at batch 1 / concurrency 5, jobs/s", r.Drain1, asynq[drainRate(5)]),
			more("drain at batch 1 / concurrency 100, jobs/s", r.Drain1, asynq[drainRate(100)]),
			more("drain at batch 100 / concurrency 100, jobs/s", r.Drain100, asynq[drainRate(100)]),
			less("push to start when idle, p50, ms", r.StartP50, asynq[startP50]),
			less("push to start when idle, p99, ms", r.StartP99, asynq[startP99]),
			less("Redis CPU per push, bulk / single, us", r.RedisPush, asynq[pushCPU]),
			less("Redis CPU per drained job, us", r.RedisDrain, asynq[drainCPU(5)]),
			less("Redis memory per queued job, bytes", r.RedisBytes, asynq[bytesPerJob]),
		}
	}
	for _, load := range loads {
		row := slices.IndexFunc(r.Stream, func(s bench.StreamRow) bool { return s.Load == load.Name && s.Shards == streamShards })
		if row < 0 {
			continue
		}
		f := r.Stream[row]
		title := func(figure string) string { return fmt.Sprintf("stream, %s: %s", load.Name, figure) }
		of := func(name string) float64 { return asynq[streamFigure(load, name)] }
		rows = append(rows,
			more(title("jobs/s"), f.PerSecond, of("per_s")),
			less(title("p50, ms"), f.P50, of("p50_ms")),
			less(title("p99, ms"), f.P99, of("p99_ms")),
			less(title("p99.9, ms"), f.P999, of("p999_ms")),
			less(title("scripts per job"), f.Scripts, of("scripts_per_job")),
			less(title("Redis CPU per job, us"), f.RedisCPU, of("redis_us_per_job")))
	}
	return comparison{r, asynq, rows}
}

func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// table prints the comparison for people.
func (c *comparison) table(w io.Writer) error {
	var out strings.Builder
	what := fmt.Sprintf("%d jobs of %d bytes, %d shards", c.Lowkiq.Jobs, c.Lowkiq.PayloadBytes, c.Lowkiq.Shards)
	if c.Lowkiq.Only == bench.OnlyStream {
		what = fmt.Sprintf("jobs of %d bytes", c.Lowkiq.PayloadBytes)
	}
	fmt.Fprintf(&out, "%s; medians of %d rounds, interleaved; Redis %s and all clients share %d cores\n\n",
		what, c.Lowkiq.Rounds, c.Lowkiq.RedisVersion, c.Lowkiq.Cores)
	fmt.Fprintf(&out, "%-46s %12s %12s %14s\n", "", "lowkiq", "asynq", "lowkiq better")
	for _, p := range c.Rows {
		fmt.Fprintf(&out, "%-46s %12s %12s %12.1f x\n", p.Title, number(p.Lowkiq), number(p.Asynq), p.Better)
	}
	fmt.Fprintf(&out, "\nAcks: lowkiq: %s; asynq: each job by itself, right after its handler.\n", c.Lowkiq.Acks)
	if len(c.Lowkiq.Stream) > 0 {
		fmt.Fprintf(&out, "Stream: jobs are handled while others are pushed; lowkiq with %d shards, asynq with %d workers.\n", streamShards, streamWorkers)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func number(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
