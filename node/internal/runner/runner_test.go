package runner

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
)

// TestOverdue: a call that ignores its timeout is reported once, 30 s later; one that
// returned in time, or just then, never.
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
				var log count
				r := testRunner(t, Rules{})
				r.process.Log = slog.New(&log)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				w := r.watch(10*time.Second, cancel)
				time.Sleep(c.took)
				synctest.Wait()
				if got := context.Cause(ctx); got != c.cause {
					t.Errorf("cause %v, want %v", got, c.cause)
				}
				w.stop()
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := log.n.Load(); got != c.report {
					t.Errorf("%d reports, want %d", got, c.report)
				}
			})
		})
	}
}

// TestOverdueRace: the timeout and the return at the same instant, many times.
func TestOverdueRace(t *testing.T) {
	t.Parallel()
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			var log count
			r := &Runner{process: &Process{Log: slog.New(&log)}}
			_, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			w := r.watch(time.Second, cancel)
			time.Sleep(time.Second)
			w.stop()
			time.Sleep(time.Hour) // a report would meet a nil queue and panic
			synctest.Wait()
		})
	}
}

// TestQuarantineSlot: whoever waits gets the slot, also when another who waited before has
// stopped meanwhile; a runner that ends gives it back.
func TestQuarantineSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testQuarantineSlot)
}

func testQuarantineSlot(t *testing.T) {
	process := testProcess(t)
	q := NewQueue(Queue{Rules: Rules{ShardConcurrency: 1}})
	// lanes: as if one popped already, so that a wake-up starts none
	worker := func() *Runner {
		return &Runner{process: process, queue: q, idle: make(chan struct{}), phase: popping, lanes: 1}
	}
	woken := func(r *Runner) bool { r.mu.Lock(); defer r.mu.Unlock(); return r.phase == repopping }
	holder, stopped, waiting := worker(), worker(), worker()
	holder.slot = process.Quarantine.take(holder)
	if !holder.slot || process.Quarantine.take(stopped) || process.Quarantine.take(waiting) || process.Quarantine.take(waiting) {
		t.Fatal("the slot is not one")
	}
	if n := len(process.Quarantine.waiting); n != 2 {
		t.Errorf("%d runners wait, want 2", n)
	}
	stopped.phase = stopping
	holder.mu.Lock()
	holder.phase = stopping
	holder.endLane(nil)
	holder.mu.Unlock()
	synctest.Wait()
	if !woken(waiting) {
		t.Error("the waiting runner was not woken")
	}
	if holder.slot || !process.Quarantine.take(waiting) {
		t.Error("the slot was not given back")
	}
}

// TestQuarantineAnswers: what a pop's answer does to the slot, and whether to pop again at once.
func TestQuarantineAnswers(t *testing.T) {
	t.Parallel()
	acks := []queue.Acks{{Flight: 1}}
	for _, c := range []struct {
		name      string
		slot      bool // before
		taken     bool // another runner has the slot
		acks      []queue.Acks
		answer    queue.Popped
		wantSlot  bool
		wantAgain bool
	}{
		{name: "nothing"},
		{name: "slot, no more suspects", slot: true},
		{name: "slot, suspect taken", slot: true, answer: queue.Popped{Probation: queue.ProbationTaken, Jobs: make([]lowkiq.Job, 1)}, wantSlot: true},
		{name: "slot kept while flights end, or the suspect would starve", slot: true, answer: queue.Popped{Probation: queue.ProbationWait}, wantSlot: true},
		{name: "acks may be what it waits for", acks: acks, answer: queue.Popped{Probation: queue.ProbationWait}, wantAgain: true},
		{name: "waits for others", answer: queue.Popped{Probation: queue.ProbationWait}},
		{name: "slot free", answer: queue.Popped{Probation: queue.ProbationSlot}, wantSlot: true, wantAgain: true},
		{name: "slot free, other jobs first", answer: queue.Popped{Probation: queue.ProbationSlot, Jobs: make([]lowkiq.Job, 1)}, wantSlot: true},
		{name: "slot taken", taken: true, answer: queue.Popped{Probation: queue.ProbationSlot}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Runner{process: &Process{Quarantine: &QuarantineSlot{taken: c.slot || c.taken}}, phase: popping, slot: c.slot, acks: c.acks}
			again := r.quarantines(c.answer)
			if r.slot != c.wantSlot || again != c.wantAgain {
				t.Errorf("slot %v, again %v; want %v, %v", r.slot, again, c.wantSlot, c.wantAgain)
			}
			if got, want := r.process.Quarantine.taken, c.wantSlot || c.taken; got != want {
				t.Errorf("the node's slot is taken: %v, want %v", got, want)
			}
		})
	}
}

// TestUnknownFlight: one answer that names a flight which nobody here knows may be old,
// two in a row mean that the shard must be claimed anew.
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
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := testRunner(t, Rules{ShardConcurrency: 1})
			r.open[3] = 1
			if c.acks != 0 {
				r.acks = []queue.Acks{{Flight: c.acks}}
			}
			if c.flush {
				r.flushing = make(chan struct{})
			}
			got := false
			for i, open := range c.open {
				again := r.takeIn(queue.Popped{Open: open})
				estranged := r.hold == outOfSync
				if i == 0 && estranged {
					t.Error("estranged at the first answer")
				}
				if again != (r.strange != 0 && !estranged) {
					t.Errorf("pops again: %v", again)
				}
				got = estranged
			}
			if got != c.want {
				t.Errorf("estranged is %v, want %v", got, c.want)
			}
		})
	}
}

// TestLastAcks: a release does not overtake the acks of a flush that runs, and takes them
// along if the flush failed: a clean drain repeats nothing.
func TestLastAcks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &Runner{open: map[int64]int{1: 2}, phase: stopping, flush: time.AfterFunc(time.Hour, func() {})}
		defer r.flush.Stop()
		jobs := []lowkiq.Job{{ID: "a"}, {ID: "b"}}
		r.done(1, jobs[:1])
		flush := r.beginFlush()
		if len(flush) != 1 {
			t.Fatalf("the flush has %v", flush)
		}
		r.done(1, jobs[1:])
		if again := r.beginFlush(); again != nil {
			t.Fatalf("a second flush at once has %v", again)
		}
		last := make(chan int, 1)
		go func() { last <- len(r.lastAcks()) }()
		synctest.Wait()
		if len(last) > 0 {
			t.Fatalf("%d acks although a flush runs", <-last)
		}
		r.returnAcks(flush)
		r.endFlush()
		if got := <-last; got != 2 {
			t.Errorf("%d acks, want 2", got)
		}
	})
}

// TestPopSize: a pop takes what the shard finishes in about 50 ms.
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
		{"10 ms", 1, 1, 100, 10 * time.Millisecond, 5},
		{"10 ms, four lanes", 1, 4, 100, 10 * time.Millisecond, 20},
		{"slow", 1, 1, 100, time.Hour, 1},
		{"slow batches", 10, 1, 100, time.Hour, 10},
		{"batch beyond prefetch", 200, 1, 100, time.Nanosecond, 200},
		{"never beyond a script's bound", 1000, 8, 1000, 0, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Runner{perJob: c.perJob, queue: &Queue{Rules: Rules{BatchSize: c.batch, ShardConcurrency: c.lanes, Prefetch: c.prefetch}}}
			if got := r.size(); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// testProcess is a process whose lease never ends.
func testProcess(t *testing.T) *Process {
	start := time.Now()
	return &Process{
		Work: t.Context(), IO: t.Context(), Log: slog.New(slog.DiscardHandler), Lanes: &sync.WaitGroup{}, Slots: NewSlots(1), Quarantine: &QuarantineSlot{},
		Now: func() time.Duration { return time.Since(start) }, RedisTime: func(d time.Duration) time.Time { return start.Add(d) },
		SawRedisTime: func(time.Time) {}, MayWork: func() bool { return true }, Kick: func() {},
		Trouble: func(string, lowkiq.Shard, error) bool { return false }, Worked: func(string, lowkiq.Shard) {},
		Fenced: func(string, func() int64) {}, MayLog: func(string, string) (int, bool) { return 0, true },
	}
}

func testRunner(t *testing.T, rules Rules) *Runner {
	q := NewQueue(Queue{Rules: rules, Paused: &atomic.Bool{}, Metrics: metrics.New(prometheus.NewRegistry()).Queue("q")})
	return New(testProcess(t), q, lowkiq.Shard{Queue: "q"}, 1, nil)
}

// count is a log handler that counts.
type count struct{ n atomic.Int64 }

func (c *count) Enabled(context.Context, slog.Level) bool { return true }
func (c *count) Handle(context.Context, slog.Record) error {
	c.n.Add(1)
	return nil
}
func (c *count) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c *count) WithGroup(string) slog.Handler      { return c }

// TestDue: how often a runner is polled.
func TestDue(t *testing.T) {
	t.Parallel()
	const s = time.Second
	lanes := func(n int) *Queue { return &Queue{Rules: Rules{ShardConcurrency: n}, Paused: &atomic.Bool{}} }
	for _, c := range []struct {
		name string
		r    *Runner
		over time.Duration
		want int // polls in that time
	}{
		{"busy lately", &Runner{subscribed: true, lastWork: time.Hour}, 10 * s, 10},
		{"idle for long", &Runner{subscribed: true, lastWork: -time.Hour}, 10 * time.Minute, 15},
		{"never heard", &Runner{lastWork: -time.Hour}, 10 * time.Minute, 600},
		{"at work", &Runner{subscribed: true, lanes: 1}, time.Minute, 0},
		{"at work, lanes to spare", &Runner{lanes: 1, queue: lanes(2)}, time.Minute, 60},
		{"at work alone", &Runner{lanes: 1, phase: quarantined, queue: lanes(2)}, time.Minute, 0},
		{"stopping", &Runner{phase: stopping}, time.Minute, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.r.queue == nil {
				c.r.queue = lanes(1)
			}
			got := 0
			for now := time.Duration(0); now < c.over; now += s {
				if c.r.PollDue(now, s) {
					got++
				}
			}
			if got != c.want {
				t.Errorf("%d polls in %s, want %d", got, c.over, c.want)
			}
		})
	}
}
