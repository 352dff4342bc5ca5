package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq/internal/pause"
)

// Stream sends jobs through a system that handles others meanwhile. Each job is timed from
// before its push to the start of its handler, which reads in the payload when that was: no
// table is shared by those who push and those who handle.
type Stream struct {
	on   *Server
	push func(ctx context.Context, id string, payload []byte) error
	base time.Time
	ids  atomic.Int64 // all that were pushed; no id is used twice
	open atomic.Pointer[window]
	jobs int   // of the load that was measured last
	used Usage // by it
}

// NewStream pushes to on with push, which returns when the job is stored. The system's
// handler is [Stream.Handle].
func NewStream(on *Server, push func(ctx context.Context, id string, payload []byte) error) *Stream {
	return &Stream{on: on, push: push, base: time.Now()}
}

// Load is how jobs arrive.
type Load struct {
	Name string // in reports
	// PerSecond arrive at fixed times whatever the answers do: an open loop. With 0 the loop is
	// closed: 50 goroutines push one job each, and the next when that one is answered.
	PerSecond int
	// Slow handlers take 200 ms: one of so many. They are not timed, the others are.
	Slow int
}

// Saturation is as much as a closed loop pushes.
var Saturation = Load{Name: "saturation"}

// PerSecond is an open loop.
func PerSecond(rate int) Load { return Load{Name: fmt.Sprintf("%d/s", rate), PerSecond: rate} }

// streamPushers is how many goroutines of a closed loop push at once.
const streamPushers = 50

// StreamFigures are what one load of a stream took.
type StreamFigures struct {
	// Jobs pushed and handled, from the first push to the start of the last handler.
	PerSecond float64 `json:"per_s"`
	// From before a push to the start of its handler.
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p999_ms"`
	// Scripts of Redis, those of pushes, pops and acks.
	Scripts float64 `json:"scripts_per_job"`
	// CPU time of the Redis process.
	RedisCPU float64 `json:"redis_us_per_job"`
	// How late a push of an open loop began: the error of the measurement, part of the times above.
	Late float64 `json:"late_p99_ms"`
}

// window is what is noted of one load.
type window struct {
	took    []time.Duration // from push to handler
	timed   atomic.Int64    // of took
	handled atomic.Int64
	last    atomic.Int64 // when the last handler began, since Stream.base
}

// maxStreamRate bounds the memory for the times of a load.
const maxStreamRate = 1_000_000

func newWindow(d time.Duration) *window {
	return &window{took: make([]time.Duration, 1000+int(d.Seconds()*maxStreamRate))}
}

const (
	fastJob, slowJob = '0', '1' // first byte of a payload; the rest is when the job was due
	slowTime         = 200 * time.Millisecond
)

// Handle is the handler of each job.
func (s *Stream) Handle(payload []byte) error {
	now := int64(time.Since(s.base))
	due, err := strconv.ParseInt(string(payload[min(1, len(payload)):]), 16, 64)
	if err != nil {
		return fmt.Errorf("payload of a stream: %w", err)
	}
	w := s.open.Load()
	w.last.Store(now)
	if payload[0] == slowJob {
		time.Sleep(slowTime)
	} else if n := w.timed.Add(1); n <= int64(len(w.took)) {
		w.took[n-1] = time.Duration(now - due)
	}
	w.handled.Add(1)
	return nil
}

// send pushes a job that was due at the given time.
func (s *Stream) send(ctx context.Context, load Load, due time.Time) error {
	n := s.ids.Add(1)
	kind := fastJob
	if load.Slow > 0 && n%int64(load.Slow) == 0 {
		kind = slowJob
	}
	return s.push(ctx, "job-"+strconv.FormatInt(n, 10), fmt.Appendf(nil, "%c%015x", kind, int64(due.Sub(s.base))))
}

// Measure lets jobs arrive for d, and returns when all are handled. Loads are measured one after
// the other. The first fifth of each, at most 200 ms, is a run of its own that warms up.
func (s *Stream) Measure(ctx context.Context, load Load, d time.Duration) (StreamFigures, error) {
	warm := min(d/5, 200*time.Millisecond)
	if _, err := s.run(ctx, load, warm); err != nil {
		return StreamFigures{}, fmt.Errorf("warm up: %w", err)
	}
	runtime.GC()
	return s.run(ctx, load, d)
}

func (s *Stream) run(ctx context.Context, load Load, d time.Duration) (f StreamFigures, err error) {
	w := newWindow(d)
	s.open.Store(w)
	before, err := s.on.Usage(ctx)
	if err != nil {
		return f, err
	}
	ids := s.ids.Load()
	begun := time.Now()
	var late []time.Duration
	if load.PerSecond > 0 {
		late, err = s.openLoop(ctx, load, d)
	} else {
		err = s.closedLoop(ctx, load, d)
	}
	if err != nil {
		return f, err
	}
	jobs := s.ids.Load() - ids
	s.jobs = int(jobs)
	if err := w.await(ctx, jobs); err != nil {
		return f, err
	}
	if err := pause.For(ctx, ackPause); err != nil { // the last acks count
		return f, err
	}
	after, err := s.on.Usage(ctx)
	if err != nil {
		return f, err
	}
	took := w.took[:min(w.timed.Load(), int64(len(w.took)))]
	slices.Sort(took)
	slices.Sort(late)
	f.PerSecond = float64(jobs) / (s.base.Add(time.Duration(w.last.Load())).Sub(begun)).Seconds()
	f.P50, f.P99, f.P999, f.Late = quantile(took, 0.5), quantile(took, 0.99), quantile(took, 0.999), quantile(late, 0.99)
	s.used = after.since(before)
	f.Scripts = float64(s.used.Scripts) / float64(jobs)
	f.RedisCPU = float64(s.used.CPU.Microseconds()) / float64(jobs)
	return f, nil
}

// quantile is 0 of nothing.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return ms(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)])
}

// closedLoop pushes from 50 goroutines, each the next job when its last one is answered.
func (s *Stream) closedLoop(ctx context.Context, load Load, d time.Duration) error {
	group, ctx := errgroup.WithContext(ctx)
	end := time.Now().Add(d)
	for range streamPushers {
		group.Go(func() error {
			for {
				now := time.Now()
				if err := s.send(ctx, load, now); err != nil || now.After(end) {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// await returns when so many jobs are handled.
func (w *window) await(ctx context.Context, jobs int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("after 2 minutes"))
	defer cancel()
	for w.handled.Load() < jobs {
		if err := pause.For(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d jobs are handled: %w", w.handled.Load(), jobs, err)
		}
	}
	return nil
}

// StreamRow is a measured load.
type StreamRow struct {
	Shards           int    `json:"shards"`
	ShardConcurrency int    `json:"shard_concurrency"`
	Load             string `json:"load"`
	StreamFigures
}

// title says for people what was measured.
func (r *StreamRow) title() string {
	if r.ShardConcurrency <= 1 {
		return fmt.Sprintf("%d shards, %s", r.Shards, r.Load)
	}
	return fmt.Sprintf("%d shards x %d, %s", r.Shards, r.ShardConcurrency, r.Load)
}

// figure names a figure of the row, as stream/50/saturation/p99_ms, among the samples of a run, and in goals.
func (r *StreamRow) figure(name string) string {
	shards := strconv.Itoa(r.Shards)
	if r.ShardConcurrency > 1 {
		shards += "x" + strconv.Itoa(r.ShardConcurrency)
	}
	return fmt.Sprintf("stream/%s/%s/%s", shards, r.Load, name)
}

// Note notes each figure by its name in JSON.
func (f *StreamFigures) Note(note func(name string, value float64)) {
	for _, figure := range f.list() {
		note(figure.name, *figure.value)
	}
}

func (f *StreamFigures) list() []figure {
	return []figure{
		{"per_s", "jobs/s", &f.PerSecond},
		{"p50_ms", "p50, ms", &f.P50},
		{"p99_ms", "p99, ms", &f.P99},
		{"p999_ms", "p99.9, ms", &f.P999},
		{"scripts_per_job", "scripts/job", &f.Scripts},
		{"redis_us_per_job", "Redis, us", &f.RedisCPU},
		{"late_p99_ms", "late, ms", &f.Late},
	}
}
