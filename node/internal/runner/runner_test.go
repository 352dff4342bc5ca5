package runner

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestOverdue checks that a call that ignores its timeout is reported once, 30 s later. A call that returns in time, or at the
// instant of its timeout, is not reported.
func TestOverdue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		took   time.Duration
		cause  error
		report int64
	}{
		{"in time", time.Second, nil, 0},
		{"late", 20 * time.Second, lowkiq.ErrTimeout, 0},
		{"very late", time.Hour, lowkiq.ErrTimeout, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if reports, cause := watched(t, c.took); cause != c.cause || reports != c.report {
					t.Errorf("cause %v, %d reports; want %v, %d", cause, reports, c.cause, c.report)
				}
			})
		})
	}
	for range 200 { // the scheduler has a say
		synctest.Test(t, func(t *testing.T) {
			if reports, _ := watched(t, 10*time.Second); reports != 0 {
				t.Error("reported although it returned at its timeout")
			}
		})
	}
}

// watched has a call with a timeout of 10 s take some time.
func watched(t *testing.T, took time.Duration) (reports int64, cause error) {
	var log count
	c := &caller{queue: &Queue{Metrics: testMetrics}, process: &Process{Log: slog.New(&log)}}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	w := c.watchTimeout(10*time.Second, cancel)
	time.Sleep(took)
	if took != 10*time.Second {
		synctest.Wait()
	}
	cause = context.Cause(ctx)
	w.stop()
	time.Sleep(time.Hour)
	synctest.Wait()
	return log.n.Load(), cause
}

// TestFailureAfterTheLease lets a handler fail when the lease has ended, and before its context is cancelled. Its jobs have not
// failed.
func TestFailureAfterTheLease(t *testing.T) {
	t.Parallel()
	over, killed := false, errors.New("killed")
	c := &caller{process: &Process{MayWork: func() bool { return !over }}, queue: &Queue{
		Handler: lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { over = true; return killed }),
	}}
	if answer, cause := c.call(t.Context(), &lowkiq.Batch{}, &lane{}); answer != killed || cause != lowkiq.ErrLeaseLost {
		t.Errorf("got %v, cause %v; want that it was killed, cause %v", answer, cause, lowkiq.ErrLeaseLost)
	}
}

// TestOverdueAfterAChange checks that the report of a call has its own timeout, and not the timeout of an earlier call.
func TestOverdueAfterAChange(t *testing.T) {
	t.Parallel()
	c := &caller{}
	c.watchTimeout(time.Hour, func(error) {}).stop()
	w := c.watchTimeout(2*time.Hour, func(error) {})
	w.mu.Lock()
	got := w.timeout
	w.mu.Unlock()
	w.stop()
	if got != 2*time.Hour {
		t.Errorf("its timeout is %s, want 2h", got)
	}
}

// TestOverdueHook checks that a hook that ignores its time is reported once, while it still runs. A hook that ends within 30 s
// after its time is not reported.
func TestOverdueHook(t *testing.T) {
	t.Parallel()
	for takes, want := range map[time.Duration]int64{20 * time.Second: 0, 10 * time.Minute: 1} {
		synctest.Test(t, func(t *testing.T) {
			var log count
			r := &Runner{work: t.Context(), queue: &Queue{Metrics: testMetrics}, process: &Process{Log: slog.New(&log)}}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				r.callHook(r.work, func(context.Context, *lowkiq.Event) error { time.Sleep(takes); return nil }, &lowkiq.Event{Kind: lowkiq.Buried})
			}()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := log.n.Load(); got != want {
				t.Errorf("a hook that takes %s: %d reports after a minute, want %d", takes, got, want)
			}
			<-ended
		})
	}
}

// count is a log handler that counts.
type count struct {
	slog.Handler
	n atomic.Int64
}

func (c *count) Enabled(context.Context, slog.Level) bool  { return true }
func (c *count) Handle(context.Context, slog.Record) error { c.n.Add(1); return nil }

// TestUnknownFlight checks that a single answer that names an unknown flight may be old, and that two such answers in a row
// make the owner claim the shard anew.
func TestUnknownFlight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		open  [][]int64 // flights named by each answer
		acks  int64     // flight whose acks wait
		flush bool      // acks are on their way
		want  bool
	}{
		{"known", [][]int64{{3}, {3}}, 0, false, false},
		{"acks wait", [][]int64{{2, 3}, {3, 2}}, 2, false, false},
		{"acks on their way", [][]int64{{2, 3}, {3, 2}}, 0, true, false},
		{"once", [][]int64{{2, 3}, {3}}, 0, false, false},
		{"another one", [][]int64{{1, 3}, {2, 3}}, 0, false, false},
		{"twice", [][]int64{{2, 3}, {3, 2}}, 0, false, true},
		{"twice, several", [][]int64{{2, 3, 1}, {1, 3, 2}}, 0, false, true},
	} {
		f, acks := flights{open: map[int64]int{3: 1}}, &acks{waiting: []protocol.Acks{{Flight: c.acks}}}
		if c.flush {
			acks.flushing = make(chan struct{})
		}
		_, first := f.compareOpen(c.open[0], acks)
		if _, second := f.compareOpen(c.open[1], acks); first || second != c.want {
			t.Errorf("%s: a mismatch at the first answer %v, at the second %v, want %v", c.name, first, second, c.want)
		}
	}
}

// TestPopSize checks that a pop asks for the jobs that the shard finishes in about 50 ms.
func TestPopSize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                   string
		batch, lanes, prefetch int
		perJob                 time.Duration
		want                   int
	}{
		{"unknown speed", 1, 1, 100, 0, 1},
		{"unknown speed, batches and lanes", 10, 4, 100, 0, 40},
		{"fast", 1, 1, 100, time.Nanosecond, 100},
		{"1 ms", 1, 1, 100, time.Millisecond, 50},
		{"10 ms, four lanes", 1, 4, 100, 10 * time.Millisecond, 20},
		{"slow", 1, 1, 100, time.Hour, 1},
		{"slow batches", 10, 1, 100, time.Hour, 10},
		{"batch beyond prefetch", 200, 1, 100, time.Nanosecond, 200},
		{"never beyond a script's bound", 1000, 8, 1000, 0, 1000},
	} {
		p := pace{perJob: c.perJob}
		if got := p.idsToPop(&Rules{Rules: rules.Rules{BatchSize: c.batch, Prefetch: c.prefetch}}, c.lanes); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

// TestCallClock checks that the process's clock is read once in 10 ms of Go's clock, and that the time between is added.
func TestCallClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start, reads, slept := time.Now(), 0, time.Duration(0)
		clock := func() time.Duration { reads++; return time.Hour + slept + time.Since(start) }
		var s callClock
		for range 25 {
			if got, want := s.timeAt(time.Now(), clock), time.Hour+time.Since(start); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			time.Sleep(time.Millisecond)
		}
		if reads != 3 {
			t.Errorf("%d readings in 25 ms, want 3", reads)
		}
		slept = time.Minute // the machine was suspended
		time.Sleep(maxReadingAge)
		if got, want := s.timeAt(time.Now(), clock), time.Hour+time.Minute+time.Since(start); got != want {
			t.Errorf("after a sleep: got %s, want %s", got, want)
		}
	})
}

// TestPolls checks when a shard with a free lane is polled.
func TestPolls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		p    polls
		over time.Duration
		want int // polls in that time
	}{
		{"busy lately", polls{subscribed: true, lastWork: time.Hour}, 10 * time.Second, 10},
		{"idle for long", polls{subscribed: true, lastWork: -time.Hour}, 10 * time.Minute, 15},
		{"not subscribed", polls{lastWork: -time.Hour}, 10 * time.Minute, 600},
	} {
		got := 0
		for now := time.Duration(0); now < c.over; now += time.Second {
			if c.p.isDue(now, time.Second) {
				got++
			}
		}
		if got != c.want {
			t.Errorf("%s: %d polls in %s, want %d", c.name, got, c.over, c.want)
		}
	}
}

// TestAlarmForEver checks that a job that is due in centuries does not block the alarm of other jobs.
func TestAlarmForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start, rung := time.Now(), make(chan struct{}, 1)
		a := alarm{now: func() time.Duration { return time.Since(start) }, timer: stoppedTimer(func() { rung <- struct{}{} })}
		defer a.stop()
		a.set(math.MaxInt64)
		a.set(time.Second)
		select {
		case <-rung:
		case <-time.After(2 * time.Second):
			t.Error("it did not ring for the second job")
		}
	})
}
