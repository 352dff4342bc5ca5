package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

var pushAgainTests = []testCase{
	{"PushAgain_KeepsOrder", testPushAgainKeepsOrder},
	{"PushAgain_NamesUnsentJobs", testPushAgainNamesUnsentJobs},
	{"PushAgain_FullIDKeepsOrder", testPushAgainFull},
	{"PushAgain_FullIDAcrossScripts", testPushAgainFullAcross},
}

// loser loses one push script, or its answer, and lets the rest of a pipeline pass. This is like a chunk
// that Redis refuses, or a chunk whose slot moves.
type loser struct {
	mu     sync.Mutex
	sent   int  // push scripts so far
	lose   int  // number of the one that is lost; 0: none
	answer bool // it is executed
}

// meets counts the push scripts of a request and returns the command to lose.
func (l *loser) meets(cmds ...redis.Cmder) redis.Cmder {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lost redis.Cmder
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			if l.sent++; l.sent == l.lose {
				lost = cmd
			}
		}
	}
	return lost
}

// from arms the loser and counts anew.
func (l *loser) from(lose int, answer bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent, l.lose, l.answer = 0, lose, answer
}

func (l *loser) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *loser) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		lost := l.meets(cmd)
		if lost == nil {
			return next(ctx, cmd)
		}
		if l.answer {
			next(ctx, cmd) //nolint:errcheck // nobody hears of it
		}
		cmd.SetErr(io.EOF)
		return io.EOF
	}
}

func (l *loser) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		lost, rest := l.meets(cmds...), cmds
		if lost != nil && !l.answer {
			rest = nil
			for _, cmd := range cmds {
				if cmd != lost {
					rest = append(rest, cmd)
				}
			}
		}
		err := next(ctx, rest)
		if lost != nil {
			err = io.EOF
			lost.SetErr(err)
		}
		return err
	}
}

// testPushAgainKeepsOrder loses each request of a bulk push in turn, and repeats the push until it succeeds, while a
// worker takes the stored jobs. Payloads are handled in push order (I3).
func testPushAgainKeepsOrder(t *testing.T, b *backend) {
	if b.mini {
		t.Skip("its scripts are the same, and slow")
	}
	const n = 6000
	jobs := make([]lowkiq.Push, n)
	for i := range jobs {
		jobs[i] = job("hot", fmt.Sprint(i))
	}
	var l loser
	r := newRig(t, b)
	r.noErr(r.c.DB().Load(r.ctx)) // or the first request comes twice
	r.c.DB().ForTests().AddHook(&l)
	r.push(jobs...)
	requests := l.sent
	checkOrder(t, n, r.drain())
	if requests < n/ChunkJobs {
		t.Fatalf("got %d requests, want at least %d", requests, n/ChunkJobs)
	}
	for lose := 1; lose <= requests; lose++ {
		for _, answer := range []bool{false, true} {
			l.from(lose, answer)
			if _, err := r.q.Push(r.ctx, jobs...); !Transient(err) {
				t.Fatalf("request %d lost: got %v, want a transient error", lose, err)
			}
			var handled []lowkiq.Job
			if lose%2 == 0 { // or what waits is there when the push comes again
				handled = r.drain()
			}
			l.from(0, false)
			r.push(jobs...)
			checkOrder(t, n, append(handled, r.drain()...))
			if t.Failed() {
				t.Fatalf("request %d of %d lost, executed %v", lose, requests, answer)
			}
		}
	}
}

// checkOrder checks that each of n payloads was handled, and none for the first time before an earlier
// payload.
func checkOrder(t *testing.T, n int, handled []lowkiq.Job) {
	t.Helper()
	next := 0
	for _, j := range handled {
		for i := range j.Payloads {
			switch got := number(j.Payloads[i]); {
			case got > next:
				t.Fatalf("got payload %d, want %d before it", got, next)
			case got == next:
				next++
			}
		}
	}
	eq(t, "payloads handled", next, n)
}

// testPushAgainNamesUnsentJobs checks that results distinguish jobs that were not sent from jobs that may be stored.
// The jobs of other shards are stored, and the failed jobs may be pushed again alone.
func testPushAgainNamesUnsentJobs(t *testing.T, b *backend) {
	c := b.open(t)
	q := newQueue(t, c, 2)
	hot := [2]string{}
	for i := 0; hot[0] == "" || hot[1] == ""; i++ {
		id := fmt.Sprint("id", i)
		hot[lowkiq.ShardOf(id, 2)] = id
	}
	var jobs []lowkiq.Push
	for i := range 2500 {
		jobs = append(jobs, job(hot[0], fmt.Sprint(i)), job(hot[1], fmt.Sprint(i)))
	}
	var l loser
	c.DB().ForTests().AddHook(&l)
	l.from(1, false) // the first thousand of hot[0]
	results, err := q.Push(t.Context(), jobs...)
	if !Transient(err) {
		t.Fatalf("got %v, want a transient error", err)
	}
	var failed []lowkiq.Push
	for i, job := range jobs {
		err := results[i].Err
		if (err != nil) != (job.ID == hot[0]) {
			t.Fatalf("job %d of shard %d: got %v, want an error in shard 0 only", i, i%2, err)
		}
		if err == nil {
			continue
		}
		failed = append(failed, job)
		if want := i/2 >= ChunkJobs; strings.Contains(err.Error(), "not sent, as an earlier part") != want || !Transient(err) {
			t.Fatalf("job %d: got %v, want to read that it was not sent: %v", i, err, want)
		}
	}
	if _, err := q.Push(t.Context(), failed...); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		found, ok, err := browse.Of(q).Job(t.Context(), hot[i])
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		checkOrder(t, 2500, []lowkiq.Job{found.Job})
	}
}

// testPushAgainFull checks that no payload overtakes a payload that was refused because too many wait for its id, and
// no payload of another id is held back.
func testPushAgainFull(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.noErr(r.c.SetRules("q", PushRules{Push: rules.Push{Payloads: 10, IDPayload: 20}}))
	at := func(id, payload string) lowkiq.Push { return job(id, payload, score(1)) }
	r.push(at("a", "1234567890"))
	jobs := []lowkiq.Push{at("a", "2 is too long"), at("b", "1"), at("a", "3 fits"), at("a", "1234567890"), at("b", "2"), at("a", "4")}
	results, err := r.q.Push(r.ctx, jobs...)
	if !errors.Is(err, ErrTooManyBytes) || errors.Is(err, ErrUnsent) {
		t.Fatalf("got %v, want %v", err, ErrTooManyBytes)
	}
	for i, want := range []error{ErrTooManyBytes, nil, ErrUnsent, nil, nil, ErrUnsent} {
		if !errors.Is(results[i].Err, want) || (want == ErrUnsent && !errors.Is(results[i].Err, ErrTooManyBytes)) {
			t.Errorf("job %d: got %v, want %v", i, results[i].Err, want)
		}
	}
	eq(t, "equal payload merged", results[3].Merged, true)
	eq(t, "handled", show(r.drain()...), "a[1234567890] b[1 2]")
	r.noErr(r.c.SetRules("q", PushRules{Push: rules.Push{Payloads: 10, IDPayload: 30}}))
	r.push(jobs[0], jobs[2], jobs[5])
	eq(t, "handled after the push came again", show(r.drain()...), "a[2 is too long 3 fits 4]")
}

// halt stops the client after the first push script until it is told to go on.
type halt struct {
	once        sync.Once
	reached, on chan struct{}
}

func (h *halt) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *halt) after(err error) error {
	h.once.Do(func() {
		close(h.reached)
		<-h.on
	})
	return err
}

func (h *halt) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return err
		}
		return h.after(err)
	}
}

func (h *halt) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h.after(next(ctx, cmds))
	}
}

// testPushAgainFullAcross is the same when a worker makes room between two scripts of the push. The second
// script has only jobs of the full id, the third has others as well.
func testPushAgainFullAcross(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.noErr(r.c.DB().Load(r.ctx))
	r.noErr(r.c.SetRules("q", PushRules{Push: rules.Push{Payloads: 1}}))
	r.push(job("hot", "first"))
	var jobs []lowkiq.Push
	for i := range 2*ChunkJobs + 10 {
		jobs = append(jobs, job("hot", fmt.Sprint(i)))
	}
	jobs = append(jobs, job("cold", "1"))
	pusher := b.open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
	h := &halt{reached: make(chan struct{}), on: make(chan struct{})}
	q, err := pusher.Queue(r.ctx, "q")
	r.noErr(err)
	r.noErr(pusher.SetRules("q", PushRules{Push: rules.Push{Payloads: 1}}))
	r.noErr(pusher.DB().Load(r.ctx))
	pusher.DB().ForTests().AddHook(h)
	var results []Result
	done := make(chan struct{})
	go func() {
		defer close(done)
		results, _ = q.Push(r.ctx, jobs...)
	}()
	<-h.reached
	eq(t, "handled between the scripts", show(r.drain()...), "hot[first]")
	close(h.on)
	<-done
	for i, job := range jobs {
		err := results[i].Err
		if (err != nil) != (job.ID == "hot") || err != nil && (!errors.Is(err, ErrTooManyPayloads) || errors.Is(err, ErrUnsent) != (i > 0)) {
			t.Fatalf("job %d, %s: got %v", i, job.ID, err)
		}
	}
	eq(t, "handled after the push", show(r.drain()...), "cold[1]")
}
