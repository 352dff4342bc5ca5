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

	"github.com/lowkiq/lowkiq/internal/process/sleep"
)

// Stream pushes jobs while a system handles others. Each job is timed from before its push to the start of its handler. The
// handler reads the start time from the payload, so those that push and those that handle share no table.
type Stream struct {
	on   *Server
	push func(ctx context.Context, id string, payload []byte) error
	base time.Time
	ids  atomic.Int64 // pushed so far; each id is used once
	open atomic.Pointer[window]
	jobs int   // jobs of the last load
	used Usage // usage by the last load
}

// NewStream returns a stream that pushes to on with push, which must return when the job is stored. The handler of the
// system must call [Stream.Handle].
func NewStream(on *Server, push func(ctx context.Context, id string, payload []byte) error) *Stream {
	return &Stream{on: on, push: push, base: time.Now()}
}

// Load says how jobs arrive.
type Load struct {
	Name string // in reports
	// PerSecond is the rate of an open loop. Its jobs arrive at fixed times, whether earlier pushes were answered or not.
	// With 0 the loop is closed. Then each of 50 goroutines pushes a job, and its next job when that push is answered.
	PerSecond int
	// Slow makes each Slow-th handler take 200 ms. Slow jobs are not timed.
	Slow int
}

// Saturation is a closed loop, which pushes as much as it can.
var Saturation = Load{Name: "saturation"}

// PerSecond returns an open loop.
func PerSecond(rate int) Load { return Load{Name: fmt.Sprintf("%d/s", rate), PerSecond: rate} }

// streamPushers is how many goroutines push in a closed loop.
const streamPushers = 50

// StreamFigures are the results of a load.
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

// window records a load.
type window struct {
	took    []time.Duration // times from push to handler
	timed   atomic.Int64    // number of times in took
	handled atomic.Int64
	last    atomic.Int64 // start of the last handler, since Stream.base
}

// maxStreamRate bounds the memory for the times of a load.
const maxStreamRate = 1_000_000

func newWindow(d time.Duration) *window {
	return &window{took: make([]time.Duration, 1000+int(d.Seconds()*maxStreamRate))}
}

const (
	fastJob, slowJob = '0', '1' // first byte of a payload; the rest is its due time
	slowTime         = 200 * time.Millisecond
)

// Handle must be called by the handler of each job.
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

// pushJob pushes a job that was due at the given time.
func (s *Stream) pushJob(ctx context.Context, load Load, due time.Time) error {
	n := s.ids.Add(1)
	kind := fastJob
	if load.Slow > 0 && n%int64(load.Slow) == 0 {
		kind = slowJob
	}
	return s.push(ctx, "job-"+strconv.FormatInt(n, 10), fmt.Appendf(nil, "%c%015x", kind, int64(due.Sub(s.base))))
}

// Measure lets jobs arrive for the time d, and returns when all are handled. Loads are measured in turn. A run of its own
// warms up first, for a fifth of the time and at most 200 ms.
func (s *Stream) Measure(ctx context.Context, load Load, d time.Duration) (StreamFigures, error) {
	warm := min(d/5, 200*time.Millisecond)
	if _, err := s.runLoad(ctx, load, warm); err != nil {
		return StreamFigures{}, fmt.Errorf("warm up: %w", err)
	}
	runtime.GC()
	return s.runLoad(ctx, load, d)
}

// runLoad runs a load for d. It returns after all jobs were handled and acknowledged, so the usage of Redis covers them
// all.
func (s *Stream) runLoad(ctx context.Context, load Load, d time.Duration) (f StreamFigures, err error) {
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
	if err := w.awaitHandled(ctx, jobs); err != nil {
		return f, err
	}
	if err := sleep.For(ctx, ackPause); err != nil { // wait for the last acks
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

// quantile returns a quantile in milliseconds, 0 without values.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return toMilliseconds(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)])
}

// closedLoop pushes from 50 goroutines. Each pushes its next job when its last push is answered.
func (s *Stream) closedLoop(ctx context.Context, load Load, d time.Duration) error {
	group, ctx := errgroup.WithContext(ctx)
	end := time.Now().Add(d)
	for range streamPushers {
		group.Go(func() error {
			for {
				now := time.Now()
				if err := s.pushJob(ctx, load, now); err != nil || now.After(end) {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// awaitHandled returns when the given number of jobs is handled.
func (w *window) awaitHandled(ctx context.Context, jobs int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("after 2 minutes"))
	defer cancel()
	for w.handled.Load() < jobs {
		if err := sleep.For(ctx, time.Millisecond); err != nil {
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

// title describes the load for people.
func (r *StreamRow) title() string {
	if r.ShardConcurrency <= 1 {
		return fmt.Sprintf("%d shards, %s", r.Shards, r.Load)
	}
	return fmt.Sprintf("%d shards x %d, %s", r.Shards, r.ShardConcurrency, r.Load)
}

// figureName returns the name of a figure of the row, such as stream/50/saturation/p99_ms, in samples and in goals.
func (r *StreamRow) figureName(name string) string {
	shards := strconv.Itoa(r.Shards)
	if r.ShardConcurrency > 1 {
		shards += "x" + strconv.Itoa(r.ShardConcurrency)
	}
	return fmt.Sprintf("stream/%s/%s/%s", shards, r.Load, name)
}

// Note notes each figure under its name in JSON.
func (f *StreamFigures) Note(note func(name string, value float64)) {
	for _, figure := range f.listFigures() {
		note(figure.name, *figure.value)
	}
}

func (f *StreamFigures) listFigures() []figure {
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
