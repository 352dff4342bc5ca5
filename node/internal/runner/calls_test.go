package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/historytest"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/node/internal/limits"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// calmly runs a test with a process of one history in which no request is lost, nothing polls, and
// the handlers are the test's. The judge of the histories looks on; in the end no slot is taken and
// nothing is in flight.
func calmly(t *testing.T, slots int, test func(t *testing.T, p *process)) {
	t.Helper()
	historytest.One(t, 1, func(t *testing.T, run *historytest.History) {
		h := newHistory(run)
		h.calm.Store(true)
		h.shards = nil
		p := h.newProcess(slots)
		defer p.cancel(lowkiq.ErrShutdown)
		p.OpFailed = func(op string, _ lowkiq.Shard, err error) bool { t.Errorf("%s: %v", op, err); return false }
		test(t, p)
		p.handBack()
		h.group.Wait()
		if use := p.slots.Use(); use.Busy != 0 {
			t.Errorf("%d slots are taken at the end", use.Busy)
		}
	})
}

// add gives the process a queue of one shard. What of the rules is zero is a node's default, and a
// retry waits for an hour.
func (p *process) add(q Queue, handle lowkiq.HandlerFunc) *shard {
	if q.Rules.RetryFunc == nil {
		q.Rules.RetryFunc = func(int) time.Duration { return time.Hour }
	}
	if q.Rules.FormatError == nil {
		q.Rules.FormatError = error.Error
	}
	q.Rules.BatchSize, q.Rules.ShardConcurrency, q.Rules.Prefetch = max(q.Rules.BatchSize, 1), max(q.Rules.ShardConcurrency, 1), 100
	q.Rules.MaxRetryCount = max(q.Rules.MaxRetryCount, 1)
	p.h.rules = q.Rules
	q.Paused = new(atomic.Bool)
	if q.Limits == nil {
		q.Limits = p.limits(nil, nil)
	}
	q.Slots, q.Calls = limitsOf(&q).NodeSlots(), limitsOf(&q).CallSlots()
	q.Metrics = testMetrics
	q.Handler = lowkiq.HandlerFunc(func(ctx context.Context, b *lowkiq.Batch) (answer error) {
		jobs, broken := slices.Clone(b.Jobs), true
		p.h.judge.enter(p, b)
		defer func() {
			seen := answer
			if broken { // the answer may not bear a look at it
				seen = nil
			} else if answer == nil {
				seen = p.lost(jobs)
			}
			p.h.judge.leave(b, jobs, seen, broken, context.Cause(ctx))
		}()
		answer = handle(ctx, b)
		broken = panics(answer)
		return answer
	})
	s := &shard{
		Shard: lowkiq.Shard{Queue: fmt.Sprint("q", len(p.h.shards))}, h: p.h, ids: map[string]*record{}, flights: map[int64][]string{}, taken: map[int64][]string{}, crashes: map[string]int{},
	}
	p.h.shards = append(p.h.shards, s)
	claim := &noting{fake: s.claim(false)}
	r := New(p.Process, NewQueue(q), s.Shard, claim.fence, claim)
	p.runners[s.Shard] = r
	r.MarkSubscribed()
	r.Wake()
	return s
}

// lost returns the failures of done jobs whose follow-ups cannot be stored, nil if there are none.
func (p *process) lost(jobs []lowkiq.Job) error {
	failed := lowkiq.Failed{}
	for _, job := range jobs {
		if p.loses != nil && p.loses(job.ID) {
			failed[job.ID] = errBoom
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}

// limits returns limits of a queue.
func (p *process) limits(rate limits.AskRate, groups limits.AskGroups) *limits.Queue {
	return limits.New(limits.Config{Node: p.slots, AskRate: rate, AskGroups: groups, Go: p.lanes.Go})
}

func limitsOf(q *Queue) *limits.Queue { return q.Limits.(*limits.Queue) }

// noting is a claim that keeps what it is told of failures.
type noting struct {
	*fake
	texts sync.Map                 // by id
	last  atomic.Pointer[lastNote] // nil: none
}

// lastNote is when somebody else has noted something, or why Redis does not say so.
type lastNote struct {
	at  time.Time
	err error
}

func (n *noting) LastNote(context.Context, ...string) (time.Time, error) {
	if last := n.last.Load(); last != nil {
		return last.at, last.err
	}
	return time.Time{}, nil
}

func (n *noting) Nack(ctx context.Context, nacks ...protocol.Nack) (int, error) {
	for _, nack := range nacks {
		n.texts.Store(nack.ID, nack.Error)
	}
	return n.fake.Nack(ctx, nacks...)
}

func (n *noting) Note(context.Context, protocol.Note) error { return nil }

func (n *noting) Bury(ctx context.Context, burials ...protocol.Burial) (int, error) {
	for _, burial := range burials {
		n.texts.Store(burial.ID, burial.Error)
	}
	return n.fake.Bury(ctx, burials...)
}

// text is what was told of an id last.
func (p *process) text(s *shard, id string) string {
	text, _ := p.runners[s.Shard].claim.(*noting).texts.Load(id)
	return fmt.Sprint(text)
}

// give pushes jobs of one payload each, and wakes the shard.
func (p *process) give(s *shard, ids ...string) {
	for _, id := range ids {
		s.push(id, 0)
	}
	p.wake(s)
}

// soon gives all that can happen by itself within a tenth of a second the time to.
func soon() {
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
}

// has looks at how many ids of a shard are not done.
func (s *shard) has(t *testing.T, want int, when string) {
	t.Helper()
	if got := s.work(); got != want {
		t.Errorf("%s: %d ids are not done, want %d", when, got, want)
	}
}

// TestLanes checks that the jobs of a pop are spread over all free lanes, and that slow ids delay no other ids of their shard.
func TestLanes(t *testing.T) {
	t.Parallel()
	calmly(t, 10, func(t *testing.T, p *process) {
		release := make(chan struct{})
		var calls atomic.Int64
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: 8}}}, func(_ context.Context, b *lowkiq.Batch) error {
			calls.Add(1)
			if strings.HasPrefix(b.Jobs[0].ID, "slow") {
				<-release
			}
			return nil
		})
		p.give(s, "slow0", "slow1", "slow2")
		soon()
		if calls.Load() != 3 {
			t.Errorf("%d handlers at work, want one for each of 3", calls.Load())
		}
		p.give(s, "slow3", "slow4", "slow5", "slow6")
		p.give(s, "fast0", "fast1", "fast2")
		soon()
		if calls.Load() != 10 {
			t.Errorf("%d calls, want one for each of 10", calls.Load())
		}
		s.has(t, 7, "beside the slow ones")
		close(release)
		soon()
		s.has(t, 0, "in the end")
	})
}

// TestTimers checks that a failed job runs again after its delay, a postponed job after its pause, and a scheduled job at its
// time, even if the alarm was set to a later time. Nothing polls.
func TestTimers(t *testing.T) {
	t.Parallel()
	calmly(t, 4, func(t *testing.T, p *process) {
		var got []string
		begun := time.Now()
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{MaxRetryCount: 5}, RetryFunc: func(int) time.Duration { return 10 * time.Minute }}}, func(_ context.Context, b *lowkiq.Batch) error {
			job := b.Jobs[0]
			got = append(got, fmt.Sprint(job.ID, job.RetryCount, " ", time.Since(begun).Round(time.Minute)))
			switch {
			case job.ID == "failing" && job.RetryCount < 1:
				return errBoom
			case job.ID == "busy" && len(got) < 3:
				return lowkiq.Postpone{After: 5 * time.Minute}
			}
			return nil
		})
		p.give(s, "failing", "busy")
		soon()
		for id, after := range map[string]time.Duration{"later": time.Hour, "soon": 15 * time.Minute} {
			s.mu.Lock()
			s.ids[id] = &record{payloads: []int{0}, due: time.Now().Add(after), retry: -1}
			s.mu.Unlock()
			p.runners[s.Shard].WakeAt(time.Now().Add(after))
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		want := []string{"failing-1 0s", "busy-1 0s", "busy-1 5m0s", "failing0 10m0s", "soon-1 15m0s", "failing1 20m0s", "later-1 1h0m0s"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestParked checks that a push to an id in flight runs when the flight ends, and does not wait for a late flush of acks. A pop
// that left no job is not followed by another pop.
func TestParked(t *testing.T) {
	t.Parallel()
	calmly(t, 4, func(t *testing.T, p *process) {
		begun := time.Now()
		var got []time.Duration
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: 2}}}, func(context.Context, *lowkiq.Batch) error {
			got = append(got, time.Since(begun))
			time.Sleep(20 * time.Millisecond)
			return nil
		})
		p.give(s, "a")
		for n := 1; n < 4; n++ {
			time.Sleep(10 * time.Millisecond)
			s.push("a", n)
			p.runners[s.Shard].WakeParked()
			time.Sleep(11 * time.Millisecond)
		}
		soon()
		s.has(t, 0, "at the end")
		for i, at := range got {
			if want := time.Duration(i) * 20 * time.Millisecond; at < want || at > want+time.Duration(i+1)*time.Millisecond+time.Millisecond {
				t.Errorf("call %d: got it %s after the first push, want it %s after, and a round trip each", i, at, want)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(got) != 4 || s.popped > 5 {
			t.Errorf("got %d calls and %d pops, want 4, and a pop for each and one more at most", len(got), s.popped)
		}
	})
}

// gated is a claim whose requests wait for a test: pops once Redis has answered, nacks before.
type gated struct {
	*noting
	pop, nack chan struct{}
}

func (g *gated) Pop(ctx context.Context, req protocol.PopRequest) (protocol.Popped, error) {
	p, err := g.noting.Pop(ctx, req)
	<-g.pop
	return p, err
}

func (g *gated) Nack(ctx context.Context, nacks ...protocol.Nack) (int, error) {
	<-g.nack
	return g.noting.Nack(ctx, nacks...)
}

// TestReturnedDuringAPop resumes a queue while a lane returns its jobs. A pop that was answered before the return must be
// followed by a pop that finds the jobs. No push wakes the shard, because its line is not empty.
func TestReturnedDuringAPop(t *testing.T) {
	t.Parallel()
	calmly(t, 2, func(t *testing.T, p *process) {
		busy, slow := make(chan struct{}), make(chan struct{})
		var calls atomic.Int64
		p.give(p.add(Queue{}, func(context.Context, *lowkiq.Batch) error { <-busy; return nil }), "busy")
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: 3}}}, func(context.Context, *lowkiq.Batch) error {
			if calls.Add(1) == 1 {
				<-slow
			}
			return nil
		})
		soon()
		r := p.runners[s.Shard]
		gates := &gated{r.claim.(*noting), make(chan struct{}), make(chan struct{})}
		r.claim = gates
		s.push("a", 0)
		p.give(s, "b") // in one flight: one of them has a slot, the other waits
		gates.pop <- struct{}{}
		soon()
		r.queue.Paused.Store(true)
		r.Pause()
		soon()
		r.queue.Paused.Store(false)
		r.Wake()
		soon() // the pop has found nothing
		gates.nack <- struct{}{}
		soon() // what was given back is there
		close(busy)
		close(gates.pop)
		soon()
		s.has(t, 1, "while one is with its handler")
		close(slow)
		soon()
		s.has(t, 0, "at the end")
	})
}

// sleepy is a handler that takes 200 ms for ids that begin with slow, and a millisecond for others.
func sleepy(_ context.Context, b *lowkiq.Batch) error {
	takes := time.Millisecond
	if strings.HasPrefix(b.Jobs[0].ID, "slow") {
		takes = 200 * time.Millisecond
	}
	time.Sleep(takes)
	return nil
}

// waits looks at which ids of a shard wait in Redis, in order, and that no retry is spent.
func (s *shard) waits(t *testing.T, want, when string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := strings.Join(s.ready, " "); got != want {
		t.Errorf("%s: %q wait in redis, want %q", when, got, want)
	}
	for id, r := range s.ids {
		if r.retry != -1 {
			t.Errorf("%s: a retry of %s is spent", when, id)
		}
	}
}

// TestBehindSlow checks that jobs behind lanes in long calls are back in Redis within 50 ms, in their order, and that no job
// goes back while a lane takes it or waits for resources. This costs one request, and the next free lane pops the jobs again.
func TestBehindSlow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lanes  int
		ids    string // popped together
		begins int    // ms: the last lane's slow call
		back   string
		pops   int64 // most, in all
	}{
		"first":     {1, "slow a b c d", 0, "a b c d", 5},
		"later":     {1, "a b slow c d", 2, "c d", 5},
		"two lanes": {2, "slow0 a b slow1 c d e", 2, "c d e", 6},
		"free lane": {2, "slow0 a b c d e", 2, "", 4},
		"nothing":   {1, "a b c d slow", 4, "", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calmly(t, 4, func(t *testing.T, p *process) {
				var got []string
				var mu sync.Mutex
				s := p.add(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: c.lanes}}}, func(ctx context.Context, b *lowkiq.Batch) error {
					mu.Lock()
					got = append(got, b.Jobs[0].ID)
					mu.Unlock()
					return sleepy(ctx, b)
				})
				p.give(s, "known") // how fast they are
				soon()
				s.mu.Lock()
				before := s.popped
				s.mu.Unlock()
				ids := strings.Fields(c.ids)
				p.give(s, ids...)
				time.Sleep(time.Duration(c.begins)*time.Millisecond + 49*time.Millisecond)
				s.waits(t, "", "before 50 ms")
				time.Sleep(8 * time.Millisecond)
				s.waits(t, c.back, "after 50 ms")
				calls := s.calls.Load()
				time.Sleep(100 * time.Millisecond)
				if n := s.calls.Load() - calls; n > 1 {
					t.Errorf("%d requests beside slow calls", n)
				}
				soon()
				s.has(t, 0, "in the end")
				s.mu.Lock()
				defer s.mu.Unlock()
				if n := s.popped - before; n > c.pops {
					t.Errorf("%d pops, want %d at most", n, c.pops)
				}
				if want := append([]string{"known"}, ids...); c.lanes == 1 && !slices.Equal(got, want) {
					t.Errorf("handled %q, want %q", got, want)
				}
			})
		})
	}
}

// TestBehindTurn checks that popped jobs stay while a lane waits for resources, because they may be next. They go back if the
// call that follows takes long.
func TestBehindTurn(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		s, other := p.add(Queue{}, sleepy), p.add(Queue{}, sleepy)
		p.give(s, "known")
		soon()
		p.give(other, "slow")
		time.Sleep(10 * time.Millisecond)
		p.give(s, "slow", "a", "b")
		time.Sleep(180 * time.Millisecond)
		s.waits(t, "", "while another shard has the slot")
		for id, want := range map[string]protocol.Stage{"slow": protocol.ForSlot, "a": protocol.Behind, "b": protocol.Behind} {
			if got := p.runners[s.Shard].Whereabouts(id).Stage; got != want {
				t.Errorf("%s: got stage %q, want %q", id, got, want)
			}
		}
		time.Sleep(75 * time.Millisecond)
		s.waits(t, "a b", "behind a slow call")
		time.Sleep(200 * time.Millisecond)
		s.has(t, 0, "in the end")
	})
}

// panics reports whether a method of an error panics. The runner takes the panic for the answer.
func panics(err error) (yes bool) {
	defer func() { yes = recover() != nil }()
	if err != nil {
		_, _ = errors.Is(err, errNoLease), err.Error()
	}
	return false
}

// typedNil is an error whose Error panics on the nil pointer that careless code returns.
type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

// TestBrokenHandlers checks that a handler that ends or breaks its goroutine fails its batch, and does not end the process. The
// shard goes on.
func TestBrokenHandlers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func() error
		want []string // in the text that is kept
	}{
		{"panic", func() error { panic("poison") }, []string{"panic: poison\ngoroutine ", "TestBrokenHandlers"}},
		{"goexit", func() error { runtime.Goexit(); return nil }, []string{"handler called runtime.Goexit"}},
		{"typed nil", func() error { var e *typedNil; return e }, []string{"panic: runtime error: invalid memory address"}},
		{"typed nil that is unwrapped", func() error { var e *fs.PathError; return e }, []string{"panic: runtime error: invalid memory address"}},
		{"typed nil of a job", func() error { var e *fs.PathError; return lowkiq.Failed{"bad": e} }, []string{"panic: runtime error: invalid memory address"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			calmly(t, 1, func(t *testing.T, p *process) {
				handled := false
				s := p.add(Queue{}, func(_ context.Context, b *lowkiq.Batch) error {
					if b.Jobs[0].ID == "bad" {
						return c.do()
					}
					handled = true
					return nil
				})
				p.give(s, "bad", "good")
				soon()
				s.has(t, 1, "after both were handled")
				text := p.text(s, "bad")
				for _, want := range c.want {
					if !strings.Contains(text, want) {
						t.Errorf("the text is %q, want %q in it", text, want)
					}
				}
				if !handled {
					t.Error("the shard does not go on")
				}
			})
		})
	}
}

// TestTimeout checks that the context of a call ends with ErrTimeout. The batch has failed once the call returns, even with
// nil, and not before.
func TestTimeout(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var cause error
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{HandlerTimeout: 20 * time.Millisecond}}}, func(ctx context.Context, _ *lowkiq.Batch) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			time.Sleep(time.Second)
			return nil
		})
		p.give(s, "a")
		soon()
		if got := p.text(s, "a"); got != "<nil>" {
			t.Errorf("before it returns it failed with %q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := p.text(s, "a"); got != "handler timeout: 20ms" || !errors.Is(cause, lowkiq.ErrTimeout) {
			t.Errorf("failed with %q, the context with %v", got, cause)
		}
	})
}

// TestExhausted checks that retries end in the morgue, and that hooks are called only then. A hook that fails does no harm.
func TestExhausted(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var told []string
		calls := 0
		s := p.add(Queue{Rules: Rules{
			Rules:       rules.Rules{MaxRetryCount: 2, Exhausted: protocol.Bury},
			RetryFunc:   func(int) time.Duration { return 0 },
			FormatError: func(err error) string { return "<" + err.Error() + ">" },
			OnExhausted: func(_ context.Context, e *lowkiq.Event) error {
				for _, job := range e.Jobs {
					told = append(told, fmt.Sprint(e.Kind, " ", job.ID, job.RetryCount, " ", job.Err))
				}
				panic("a hook's")
			},
			OnBuried: func(_ context.Context, e *lowkiq.Event) error {
				for _, job := range e.Jobs {
					told = append(told, fmt.Sprint(e.Kind, " ", job.ID, len(job.Payloads)))
				}
				return errBoom
			},
		}}, func(context.Context, *lowkiq.Batch) error { calls++; return errBoom })
		p.give(s, "a")
		soon()
		if calls != 3 || !slices.Equal(told, []string{"exhausted a1 boom", "buried a1"}) || p.text(s, "a") != "<boom>" {
			t.Errorf("%d attempts, told %q, text %q; want 3, two, <boom>", calls, told, p.text(s, "a"))
		}
		s.has(t, 0, "in the end")
	})
}

// processes are what a handler needs for its calls.
func processes(n int) Reserve {
	free := limits.NewSlots(n).Share()
	return func(ctx context.Context) (func(context.Context) context.Context, func(), error) {
		if err := free.Acquire(ctx, time.Time{}); err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context) context.Context { return ctx }, free.Release, nil
	}
}

// TestWaitForAProcess checks that the timeout begins when the handler has its batch. The wait for a process is counted
// separately.
func TestWaitForAProcess(t *testing.T) {
	t.Parallel()
	calmly(t, 16, func(t *testing.T, p *process) {
		const takes, jobs = 10 * time.Millisecond, 5
		waits := metrics.New(prometheus.NewRegistry()).Queue("orders").ProcessWait()
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: jobs, HandlerTimeout: takes + 1}}, Reserve: processes(1), ProcessWait: waits},
			func(context.Context, *lowkiq.Batch) error { time.Sleep(takes); return nil })
		p.give(s, "a", "b", "c", "d", "e")
		soon()
		s.has(t, 0, "in time")
		var m dto.Metric
		if err := waits.Write(&m); err != nil {
			t.Fatal(err)
		}
		// The second waits for one call, the third for two …
		if got, want := m.GetHistogram().GetSampleSum(), (jobs * (jobs - 1) / 2 * takes).Seconds(); m.GetHistogram().GetSampleCount() != jobs || math.Abs(got-want) > .001 {
			t.Errorf("%d waits of %v s in all, want %d of %v", m.GetHistogram().GetSampleCount(), got, jobs, want)
		}
	})
}

// TestBusyQueueTakesNoSlot checks that a queue leaves the other slots of the node to other queues, if all its processes are
// busy or its concurrency is reached.
func TestBusyQueueTakesNoSlot(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]Queue{"processes": {Reserve: processes(2), ProcessWait: testMetrics.Wait}, "concurrency": {Concurrency: 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calmly(t, 3, func(t *testing.T, p *process) {
				release := make(chan struct{})
				var running atomic.Int64
				q.Rules.ShardConcurrency = 8
				stuck := p.add(q, func(context.Context, *lowkiq.Batch) error {
					running.Add(1)
					<-release
					return nil
				})
				other := p.add(Queue{}, func(context.Context, *lowkiq.Batch) error { return nil })
				p.give(stuck, "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7")
				soon()
				p.give(other, "a", "b", "c")
				soon()
				other.has(t, 0, "beside the one that is stuck")
				if running.Load() != 2 {
					t.Errorf("%d calls of the queue that is stuck, want 2", running.Load())
				}
				close(release)
				soon()
				stuck.has(t, 0, "in the end")
			})
		})
	}
}

// TestStill checks that an id in quarantine begins also in a paused queue, and that the shard is not still before that.
func TestStill(t *testing.T) {
	t.Parallel()
	s := state{queue: &Queue{Paused: new(atomic.Bool)}, phase: quarantined, flights: flights{waiting: []flight{{number: 1}}}}
	s.queue.Paused.Store(true)
	if s.isStill() {
		t.Error("got still, want that the id in quarantine may begin")
	}
	s.flights.waiting = nil
	if !s.isStill() {
		t.Error("got that something may begin, want still: the handler has the id")
	}
	s.queue.Paused.Store(false)
	if s.isStill() {
		t.Error("got still, want that a queue that is not paused goes on")
	}
}

// listed is a claim that keeps the pops that it is asked for.
type listed struct {
	*noting
	mu   sync.Mutex
	pops []protocol.PopRequest
}

func (l *listed) Pop(ctx context.Context, req protocol.PopRequest) (protocol.Popped, error) {
	l.mu.Lock()
	l.pops = append(l.pops, req)
	l.mu.Unlock()
	return l.noting.Pop(ctx, req)
}

// list has a shard's runner note its pops. The runner rests.
func (p *process) list(s *shard) *listed {
	soon()
	r := p.runners[s.Shard]
	l := &listed{noting: r.claim.(*noting)}
	r.claim = l
	return l
}

// TestPopsOfSlowCalls checks that lanes pop for each other if their long calls end at about the same time. So a round of calls
// costs one pop.
func TestPopsOfSlowCalls(t *testing.T) {
	t.Parallel()
	const rounds, lanes = 10, 10
	for name, c := range map[string]struct {
		spread time.Duration // between the ends of two lanes
		round  time.Duration // what it takes at most
		pops   int           // at most
	}{
		"together":            {10 * time.Microsecond, 102 * time.Millisecond, rounds + 1},
		"one after the other": {2 * time.Millisecond, 122 * time.Millisecond, 2 * rounds},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calmly(t, lanes, func(t *testing.T, p *process) {
				s := p.add(Queue{Rules: Rules{Rules: rules.Rules{ShardConcurrency: lanes}}}, func(_ context.Context, b *lowkiq.Batch) error {
					n, err := strconv.Atoi(b.Jobs[0].ID)
					time.Sleep(100*time.Millisecond + time.Duration(n%lanes)*c.spread)
					return err
				})
				list := p.list(s)
				begun := time.Now()
				for n := range rounds * lanes {
					s.push(strconv.Itoa(n), 0)
				}
				p.runners[s.Shard].Wake()
				for s.work() > 0 && time.Since(begun) < time.Minute {
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(begun); took > rounds*c.round+10*time.Millisecond {
					t.Errorf("took %s, want %s for each of %d rounds", took, c.round, rounds)
				}
				if n := len(list.pops); n > c.pops {
					t.Errorf("%d pops, want at most %d for %d rounds", n, c.pops, rounds)
				}
			})
		})
	}
}
