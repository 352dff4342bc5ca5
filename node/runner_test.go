package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
)

// TestOrder: I1, I2 and I3 while jobs flow, with one lane per shard and with eight.
func TestOrder(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	for _, c := range []struct{ lanes, batch, concurrency int }{{1, 1, 8}, {1, 10, 2}, {8, 1, 16}, {8, 3, 4}} {
		t.Run(fmt.Sprintf("%d lanes, batches of %d, %d slots", c.lanes, c.batch, c.concurrency), func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("order-%d-%d", c.lanes, c.batch)
			const ids, each = 60, 20
			w := newWitness(c.lanes)
			var fails, calls atomic.Int64
			start(t, Config{Redis: srv.URL(), Cluster: name, Concurrency: c.concurrency}, QueueConfig{
				Shards: 4, BatchSize: c.batch, ShardConcurrency: c.lanes,
				RetryIn: func(int) time.Duration { return time.Millisecond },
			}, w.around(func(_ context.Context, b *lowkiq.Batch) error {
				if n := calls.Add(1); n > int64(c.concurrency) {
					t.Errorf("%d handlers at once, want at most %d", n, c.concurrency)
				}
				defer calls.Add(-1)
				for range rand.IntN(3) {
					runtime.Gosched()
				}
				if rand.IntN(20) == 0 && fails.Add(1) < 100 {
					return errBoom
				}
				return nil
			}))
			p := openCluster(t, srv.URL(), name, 4)
			for n := range each {
				var jobs []lowkiq.Push
				for i := range ids {
					jobs = append(jobs, numbered(fmt.Sprint("id", i), n, n+1)...)
				}
				p.push(jobs...)
			}
			p.drained()
			w.check(t, ids*each)
		})
	}
}

// TestLanesBesideASlowOne: one slow id does not block its shard, whether the others are
// pushed before or during its call.
func TestLanesBesideASlowOne(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	release := make(chan struct{})
	inside := make(chan string, 10)
	start(t, Config{Redis: srv.URL(), Concurrency: 10}, QueueConfig{Shards: 1, ShardConcurrency: 4}, func(_ context.Context, b *lowkiq.Batch) error {
		inside <- b.Jobs[0].ID
		if b.Jobs[0].ID[:4] == "slow" {
			<-release
		}
		return nil
	})
	p := open(t, srv.URL(), 1)
	for i := range 3 {
		p.push(numbered(fmt.Sprint("slow", i), 0, 1)...)
		if got, want := receive(t, "the slow one's start", inside), fmt.Sprint("slow", i); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	for i := range 20 {
		p.push(numbered(fmt.Sprint("fast", i), 0, 1)...)
		receive(t, "a job beside three slow ones", inside)
	}
	await(t, "the fast ones are acknowledged", func() bool { return p.stats().Jobs.Total() == 3 })
	close(release)
	p.drained()
}

// TestLanesForABurst: what one pop brings is spread over all free lanes.
func TestLanesForABurst(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	release := make(chan struct{})
	inside := make(chan string, 20)
	start(t, Config{Redis: srv.URL(), Concurrency: 10}, QueueConfig{Shards: 1, ShardConcurrency: 8}, func(_ context.Context, b *lowkiq.Batch) error {
		inside <- b.Jobs[0].ID
		<-release
		return nil
	})
	p := open(t, srv.URL(), 1)
	for from, to := 0, 3; from < 8; from, to = to, 8 {
		var jobs []lowkiq.Push
		for i := from; i < to; i++ {
			jobs = append(jobs, numbered(fmt.Sprint("id", i), 0, 1)...)
		}
		p.push(jobs...)
		for range jobs {
			receive(t, "all lanes are busy", inside)
		}
	}
	close(release)
	p.drained()
}

// TestAckWhenIdle: the last job of a shard is acknowledged though nothing follows it.
func TestAckWhenIdle(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 2}, func(context.Context, *lowkiq.Batch) error { return nil })
	p := open(t, srv.URL(), 2)
	run.serving()
	for i := range 50 {
		p.push(numbered("a", i, i+1)...)
		p.drained()
	}
	if got := p.stats().Processed; got < 1 {
		t.Errorf("processed is %d", got)
	}
}

// TestTimers: a failed job runs again after its delay, a scheduled one at its time, a
// postponed one after its pause, none of them by a poll (there is none for an hour).
func TestTimers(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	type begun struct {
		id    string
		retry int
	}
	starts := make(chan begun, 10)
	run := start(t, Config{Redis: srv.URL(), PollInterval: time.Hour}, QueueConfig{
		Shards: 1, RetryIn: func(int) time.Duration { return 30 * time.Millisecond },
	}, func(_ context.Context, b *lowkiq.Batch) error {
		job := b.Jobs[0]
		select {
		case starts <- begun{job.ID, job.RetryCount}:
		default:
		}
		switch {
		case job.ID == "failing" && job.RetryCount < 2:
			return errBoom
		case job.ID == "busy" && len(starts) == 1:
			return lowkiq.Postpone{After: 30 * time.Millisecond}
		}
		return nil
	})
	run.serving()
	p := open(t, srv.URL(), 1)
	p.push(numbered("failing", 0, 1)...)
	for _, want := range []int{-1, 0, 1, 2} {
		if got := receive(t, "the next attempt", starts); got != (begun{"failing", want}) {
			t.Errorf("got %v, want retry count %d", got, want)
		}
	}
	p.push(lowkiq.Push{ID: "later", PerformAt: time.Now().Add(time.Hour)})
	for _, id := range []string{"soon", "soon too"} { // before what the timer is set for
		p.push(lowkiq.Push{ID: id, PerformAt: time.Now().Add(20 * time.Millisecond)})
		if got := receive(t, "the scheduled job", starts); got.id != id {
			t.Errorf("got %v, want %s", got, id)
		}
	}
	if _, err := p.RunNow(t.Context(), "later"); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, "the job that is to run now", starts); got.id != "later" {
		t.Errorf("got %v, want later", got)
	}
	p.push(numbered("busy", 0, 1)...)
	await(t, "the postponed job ran twice, no retry spent", func() bool { return p.stats().Jobs.Total() == 0 })
	for range 2 {
		if got := receive(t, "its start", starts); got != (begun{"busy", -1}) {
			t.Errorf("got %v, want busy, -1", got)
		}
	}
	if got := p.stats().Failed; got != 3 {
		t.Errorf("%d failures counted, want 3", got)
	}
}

// TestExhausted: retries end in the morgue, and RetriesExhausted is called then only.
func TestExhausted(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	type told struct {
		id    string
		count int
	}
	var calls atomic.Int64
	tells := make(chan told, 10)
	start(t, Config{Redis: srv.URL(), FormatError: func(err error) string { return "<" + err.Error() + ">" }}, QueueConfig{
		Shards: 1, MaxRetryCount: 2, Exhausted: queue.Bury, RetryIn: func(int) time.Duration { return 0 },
		RetriesExhausted: func(job lowkiq.Job, err error) {
			tells <- told{job.ID, job.RetryCount}
			panic("a hook's panic must not end the node")
		},
	}, func(_ context.Context, b *lowkiq.Batch) error {
		if b.Jobs[0].ID == "good" {
			return nil
		}
		calls.Add(1)
		return errBoom
	})
	p := open(t, srv.URL(), 1)
	p.push(append(numbered("bad", 0, 2), numbered("good", 0, 1)...)...)
	if got, want := receive(t, "retries_exhausted", tells), (told{"bad", 1}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	p.drained()
	if calls.Load() != 3 || len(tells) != 0 {
		t.Errorf("%d attempts and %d more hooks, want 3, 0", calls.Load(), len(tells))
	}
	job, ok, err := p.Job(t.Context(), "bad")
	if err != nil || !ok {
		t.Fatalf("the morgue has no bad: %v", err)
	}
	if job.State != queue.Dead || len(job.Payloads) != 2 || job.Error != "<boom>" {
		t.Errorf("got %s with %d payloads and error %q", job.State, len(job.Payloads), job.Error)
	}
}

// TestPerID: of a batch, what succeeded is gone and what failed is retried.
func TestPerID(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	seen := make(chan []string, 10)
	p := open(t, srv.URL(), 1)
	p.push(slices.Concat(numbered("a", 0, 1), numbered("b", 0, 1), numbered("c", 0, 1))...)
	start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1, BatchSize: 10, RetryIn: func(int) time.Duration { return time.Millisecond }},
		func(_ context.Context, b *lowkiq.Batch) error {
			var ids []string
			for _, job := range b.Jobs {
				ids = append(ids, fmt.Sprint(job.ID, job.RetryCount))
			}
			seen <- ids
			failed := lowkiq.Failed{}
			if b.Jobs[0].RetryCount < 0 {
				failed["b"] = errBoom
			}
			b.Jobs = nil // a handler may do as it likes with its batch
			return failed
		})
	for _, want := range [][]string{{"a-1", "b-1", "c-1"}, {"b0"}} {
		if got := receive(t, "a batch", seen); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	p.drained()
	if s := p.stats(); s.Processed != 3 || s.Failed != 1 {
		t.Errorf("%d processed, %d failed; want 3, 1", s.Processed, s.Failed)
	}
}
