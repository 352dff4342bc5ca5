package lowkiqtest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/node/handler"
	"github.com/lowkiq/lowkiq/node/lowkiqtest"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func answering(err error) lowkiq.Handler {
	return lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return err })
}

// texts shows calls: the ids of each with their payloads.
func texts(runs []lowkiqtest.Run) (all []string) {
	for _, run := range runs {
		text := ""
		for _, job := range run.Batch.Jobs {
			text += job.ID
			for _, p := range job.Payloads {
				text += "," + string(p.Data)
			}
			text += " "
		}
		all = append(all, strings.TrimSpace(text))
	}
	return all
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestBatches(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Name: "orders", Rules: rules.Rules{BatchSize: 2}})
	push(t, q, "a", "1", "2")
	push(t, q, "b", "1")
	push(t, q, "c", "1")
	runs := q.Drain(t.Context(), lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		want(t, "queue", batch.Shard.Queue, "orders")
		if len(batch.Jobs) == 2 {
			return lowkiq.Failed{"b": errors.New("boom")}
		}
		return nil
	}))
	want(t, "calls", texts(runs), "[a,1,2 b,1 c,1]")
	if job, ok := q.Waiting("b"); !ok || job.Error != "boom" || job.RetryCount != 0 || !job.PerformAt.Equal(q.Now().Add(30*time.Second)) {
		t.Errorf("got %+v, want it to wait for its first retry, 30 s", job)
	}
	if _, ok := q.Waiting("a"); ok {
		t.Error("a waits, want it done")
	}
}

// An urgent id goes before the others, also if it waits already, and its payloads keep their order.
func TestUrgent(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Name: "orders", Rules: rules.Rules{BatchSize: 1}})
	for _, id := range []string{"a", "b", "c"} {
		push(t, q, id, "1")
	}
	push(t, q, "c", "2")
	for _, id := range []string{"c", "d"} {
		if _, err := q.Push(t.Context(), lowkiq.Push{ID: id, Payload: []byte("3"), Urgent: true}); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "calls", texts(q.Drain(t.Context(), answering(nil))), "[c,1,2,3 d,3 a,1 b,1]")
}

// A bad job costs its neighbours one retry, whatever the handler is: after that each is alone.
func TestBadJobBuriesNoNeighbour(t *testing.T) {
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "bad") {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer endpoint.Close()
	client, err := handler.NewHTTP(handler.HTTPConfig{URL: endpoint.URL})
	if err != nil {
		t.Fatal(err)
	}
	bad := func(batch *lowkiq.Batch) bool {
		return slices.ContainsFunc(batch.Jobs, func(job lowkiq.Job) bool { return strings.HasPrefix(job.ID, "bad") })
	}
	for kind, h := range map[string]lowkiq.Handler{
		"endpoint": client,
		"error": lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
			if bad(batch) {
				return errors.New("boom")
			}
			return nil
		}),
		"panic": lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
			if bad(batch) {
				panic("boom")
			}
			return nil
		}),
	} {
		t.Run(kind, func(t *testing.T) {
			q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{BatchSize: 5, MaxRetryCount: 2}})
			var want, got []string
			for i := range 100 {
				id := fmt.Sprint("good-", i)
				if i%6 == 3 {
					id = fmt.Sprint("bad-", i)
					want = append(want, id)
				}
				push(t, q, id, "1")
			}
			for range 3 {
				q.Drain(t.Context(), h)
				q.Advance(24 * time.Hour)
			}
			for _, job := range q.Morgue() {
				got = append(got, job.ID)
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("buried: got %v, want %v", got, want)
			}
		})
	}
}

// A job that is out of retries goes where the rules say.
func TestExhausted(t *testing.T) {
	for policy, c := range map[protocol.Policy]struct{ morgue, waiting int }{
		protocol.Skip: {1, 0}, protocol.Bury: {2, 0}, protocol.Block: {0, 2},
	} {
		t.Run(string(policy), func(t *testing.T) {
			var told []string
			buried := 0
			q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{MaxRetryCount: 1, Exhausted: policy}, OnExhausted: func(_ context.Context, e *lowkiq.Event) error {
				told = append(told, e.Jobs[0].ID+" "+e.Jobs[0].Err.Error())
				return nil
			}, OnBuried: func(_ context.Context, e *lowkiq.Event) error {
				buried += len(e.Jobs[0].Payloads)
				return nil
			}})
			push(t, q, "a", "1", "2")
			for range 2 {
				q.Drain(t.Context(), answering(errors.New("boom")))
				q.Advance(time.Hour)
			}
			if policy == protocol.Skip { // the other payload has retries of its own
				want(t, "then", texts(q.Drain(t.Context(), answering(nil))), "[a,2]")
			}
			want(t, "told", told, "[a boom]")
			dead, waiting := 0, 0
			for _, job := range q.Morgue() {
				dead += len(job.Payloads)
			}
			if job, ok := q.Waiting("a"); ok {
				waiting = len(job.Payloads)
			}
			want(t, "payloads", [3]int{dead, waiting, buried}, [3]int{c.morgue, c.waiting, c.morgue})
		})
	}
}

func TestPostponeAndBury(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{})
	push(t, q, "a", "1")
	q.Drain(t.Context(), answering(lowkiq.Postpone{After: time.Minute}))
	if job, _ := q.Waiting("a"); job.RetryCount != -1 || !job.PerformAt.Equal(q.Now().Add(time.Minute)) {
		t.Errorf("got %+v, want it to wait for a minute, no retry spent", job)
	}
	q.Advance(time.Minute)
	q.Drain(t.Context(), answering(lowkiq.Bury{Reason: "no such account"}))
	if dead := q.Morgue(); len(dead) != 1 || dead[0].Error != "no such account" {
		t.Errorf("got %+v in the morgue", dead)
	}
}

func TestMorgueIsTrimmed(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{Morgue: rules.Morgue{Keep: 1, For: time.Hour}}})
	for _, id := range []string{"a", "b"} {
		push(t, q, id, "1")
		q.Drain(t.Context(), answering(lowkiq.Bury{Reason: "no"}))
		q.Advance(time.Second)
	}
	if dead := q.Morgue(); len(dead) != 1 || dead[0].ID != "b" {
		t.Errorf("got %+v in the morgue, want the one buried last", dead)
	}
	if q.Advance(time.Hour); len(q.Morgue()) != 0 {
		t.Errorf("got %+v in the morgue after an hour, want none", q.Morgue())
	}
}

// A job that kills its process comes alone, and is buried when it has done so too often; its
// neighbours are done.
func TestCrash(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{BatchSize: 10, MaxCrashes: 2}})
	for _, id := range []string{"a", "poison", "b"} {
		push(t, q, id, "1")
	}
	runs := q.Drain(t.Context(), lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		if slices.ContainsFunc(batch.Jobs, func(j lowkiq.Job) bool { return j.ID == "poison" }) {
			q.Crash()
			t.Error("a crash has returned")
		}
		return nil
	}))
	want(t, "calls", texts(runs), "[a,1 poison,1 b,1 a,1 poison,1 poison,1 b,1]")
	for i, died := range []bool{true, false, true, true, false} {
		want(t, fmt.Sprint("died ", i), runs[i].Died, died)
	}
	if dead := q.Morgue(); len(dead) != 1 || dead[0].ID != "poison" || !strings.Contains(dead[0].Error, "crash") {
		t.Errorf("got %+v in the morgue, want poison", dead)
	}
	if runs[0].Batch.Fence >= runs[1].Batch.Fence {
		t.Errorf("got fences %d and %d, want the second higher", runs[0].Batch.Fence, runs[1].Batch.Fence)
	}
}

func TestPanicIsAFailure(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{})
	push(t, q, "a", "1")
	runs := q.Drain(t.Context(), lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { panic("oops") }))
	if len(runs) != 1 || runs[0].Died || !strings.Contains(runs[0].Err.Error(), "oops") {
		t.Errorf("got %+v, want one failure", runs)
	}
}

// Middlewares, codec and headers are those of production.
func TestWay(t *testing.T) {
	var seen []string
	q := lowkiqtest.New(t, node.QueueConfig{
		Middlewares: []node.Middleware{func(next lowkiq.Handler) lowkiq.Handler {
			return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
				seen = append(seen, "handle "+string(batch.Jobs[0].Payloads[0].Data))
				return next.Handle(ctx, batch)
			})
		}},
		Codec: queue.Codec{Name: "reversed", Encode: reversed, Decode: reversed},
		PushMiddlewares: []queue.Middleware{func(_ string, next queue.Pusher) queue.Pusher {
			return func(ctx context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
				seen = append(seen, "push "+string(jobs[0].Payload))
				return next(ctx, jobs)
			}
		}},
	})
	if _, err := q.Push(t.Context(), lowkiq.Push{ID: "a", Payload: []byte("abc"), Header: map[string]string{"tag": "vip"}}); err != nil {
		t.Fatal(err)
	}
	waits, _ := q.Waiting("a")
	want(t, "stored", string(waits.Payloads[0].Data), "cba")
	runs := q.Drain(t.Context(), answering(nil))
	want(t, "seen", seen, "[push abc handle abc]")
	want(t, "header", runs[0].Batch.Jobs[0].Payloads[0].Header.Get("tag"), "vip")
	if _, err := q.Push(t.Context(), lowkiq.Push{ID: "a", Payload: []byte("!")}); err == nil {
		t.Error("got what cannot be encoded stored")
	}
}

func reversed(data []byte) ([]byte, error) {
	if string(data) == "!" {
		return nil, errors.New("not this")
	}
	data = slices.Clone(data)
	slices.Reverse(data)
	return data, nil
}

// A push is refused for what production refuses, and then no later payload of the id is stored.
func TestRefused(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{Push: rules.Push{PayloadBytes: 5, Payloads: 2}}})
	results, err := q.Push(t.Context(), lowkiq.Push{ID: ""}, lowkiq.Push{ID: "a", Payload: []byte("123456")}, lowkiq.Push{ID: "a", Header: map[string]string{"": ""}},
		lowkiq.Push{ID: "a", Payload: []byte("1")}, lowkiq.Push{ID: "a", Payload: []byte("2")}, lowkiq.Push{ID: "a", Payload: []byte("3")},
		lowkiq.Push{ID: "a", Payload: []byte("1")}, lowkiq.Push{ID: "a", Payload: []byte("4")})
	if !errors.Is(err, queue.ErrID) {
		t.Errorf("got %v, want the first of the errors", err)
	}
	for i, want := range []error{queue.ErrID, queue.ErrPayloadSize, lowkiq.ErrHeader, nil, nil, queue.ErrTooManyPayloads, nil, queue.ErrUnsent} {
		if got := results[i].Err; !errors.Is(got, want) || (got == nil) != (want == nil) {
			t.Errorf("push %d: got %v, want %v", i, got, want)
		}
	}
	if !results[6].Merged {
		t.Error("an equal payload did not merge")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.Push(ctx, lowkiq.Push{ID: "b"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context has ended", err)
	}
	if runs := q.Drain(ctx, answering(nil)); len(runs) != 0 {
		t.Errorf("got %d calls after the context's end", len(runs))
	}
}

// failing notes what ends a test.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}
func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f)
}
func (f *failing) Fatal(args ...any) { f.Fatalf("%s", fmt.Sprint(args...)) }

func failure(f func(t testing.TB)) (said string) {
	t := &failing{}
	defer func() {
		if recover() != nil {
			said = t.said
		}
	}()
	f(t)
	return ""
}

func TestMistakesEndTheTest(t *testing.T) {
	if said := failure(func(t testing.TB) { lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{BatchSize: -1}}) }); !strings.Contains(said, "batch_size: want a whole number, 1 to 1000, got -1") {
		t.Errorf("got %q, want what is wrong with the rules", said)
	}
	said := failure(func(tb testing.TB) {
		q := lowkiqtest.New(tb, node.QueueConfig{})
		_, _ = q.Push(t.Context(), lowkiq.Push{ID: "again"})
		q.Drain(t.Context(), answering(lowkiq.Postpone{}))
	})
	if !strings.Contains(said, `the next one "again"`) {
		t.Errorf("got %q, want that it never ends", said)
	}
}

// A test takes well under a millisecond.
func BenchmarkTest(b *testing.B) {
	for b.Loop() {
		q := lowkiqtest.New(b, node.QueueConfig{})
		for i := range 10 {
			if _, err := q.Push(b.Context(), lowkiq.Push{ID: fmt.Sprint(i)}); err != nil {
				b.Fatal(err)
			}
		}
		if runs := q.Drain(b.Context(), answering(nil)); len(runs) != 10 {
			b.Fatalf("got %d calls", len(runs))
		}
	}
}

// Answers and notes are refused as a node refuses them, and stored by the codec.
func TestAnswers(t *testing.T) {
	t.Parallel()
	flip := func(p []byte) ([]byte, error) {
		p = slices.Clone(p)
		slices.Reverse(p)
		return p, nil
	}
	rules := node.QueueConfig{Rules: rules.Rules{State: time.Hour, MaxRetryCount: -1, Exhausted: protocol.Bury}, Codec: queue.Codec{Name: "flip", Encode: flip, Decode: flip}}
	q := lowkiqtest.New(t, rules)
	reply, err := q.Call(t.Context(), lowkiq.Push{ID: "a", Payload: []byte("12")})
	if err != nil {
		t.Fatal(err)
	}
	var b *lowkiq.Batch
	q.Drain(t.Context(), lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
		b = batch
		if batch.Jobs[0].Callers != 1 {
			t.Errorf("got %d callers, want one", batch.Jobs[0].Callers)
		}
		batch.Answer("a").Result([]byte("34"))
		return batch.Note(ctx, "a", lowkiq.Note{State: []byte("56")})
	}))
	if got := reply(); got.State != lowkiq.ReplyDone || string(got.Result) != "34" {
		t.Errorf("got %+v, want 34", got)
	}
	if err := b.Note(t.Context(), "a", lowkiq.Note{}); !errors.Is(err, lowkiq.ErrEnded) {
		t.Errorf("a note after the call: got %v, want ErrEnded", err)
	}
	stranger, err := q.Call(t.Context(), lowkiq.Push{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	q.Drain(t.Context(), lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		if got := string(batch.Jobs[0].State); got != "56" {
			t.Errorf("got the state %q, want 56", got)
		}
		batch.Answer("b").State(nil)
		return nil
	}))
	if got := stranger(); got.State != lowkiq.ReplyBuried || !strings.Contains(got.Error, `id "b", which is not in the batch`) {
		t.Errorf("got %+v, want it buried", got)
	}
}

// TestExpiredParts checks that the expired payloads of a job end, are reported and cost no retry. The others run, in
// order.
func TestExpiredParts(t *testing.T) {
	for _, to := range []rules.ExpireTo{rules.ExpireMorgue, rules.ExpireDrop} {
		var buried []string
		q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{BatchSize: 2, Expire: rules.Expire{To: to}}, OnBuried: func(_ context.Context, e *lowkiq.Event) error {
			for _, job := range e.Jobs {
				buried = append(buried, fmt.Sprint(job.ID, len(job.Payloads), " ", job.RetryCount))
			}
			return nil
		}})
		soon := map[string]string{"expires": q.Now().Add(time.Minute).Format(time.RFC3339)}
		reply, err := q.Call(t.Context(), lowkiq.Push{ID: "called", Payload: []byte("1"), Header: soon})
		if err != nil {
			t.Fatal(err)
		}
		for i, header := range []map[string]string{nil, soon, nil} {
			if _, err := q.Push(t.Context(), lowkiq.Push{ID: "a", Payload: fmt.Append(nil, i), Header: header}); err != nil {
				t.Fatal(err)
			}
		}
		q.Drain(t.Context(), answering(errors.New("no")))
		q.Advance(time.Hour)
		runs := q.Drain(t.Context(), answering(nil))
		want(t, "runs", texts(runs), []string{"a,0,2"})
		if to == rules.ExpireDrop {
			want(t, "told", buried, []string(nil))
			want(t, "the call", reply().State, lowkiq.ReplyExpired)
		} else {
			want(t, "told", buried, []string{"a1 0", "called1 0"})
			want(t, "the call", reply().State, lowkiq.ReplyBuried)
		}
	}
}

// TestHolds checks that the last of several holds of the same ids counts. A mistake ends the test.
func TestHolds(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{BatchSize: 2}})
	q.Hold(rules.Hold{ID: "a"})
	q.Hold(rules.Hold{ID: "a", Until: q.Now().Add(time.Minute)})
	q.Hold(rules.Hold{Prefix: "b"})
	for _, id := range []string{"a", "b1", "c"} {
		if _, err := q.Push(t.Context(), lowkiq.Push{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "nobody holds", len(q.Drain(t.Context(), answering(nil))), 1)
	if job, _ := q.Waiting("b1"); !job.PerformAt.Equal(protocol.HeldAt) || job.RetryCount != -1 {
		t.Errorf("got %+v, want it held, no retry spent", job)
	}
	q.Advance(time.Minute)
	want(t, "held for a minute", len(q.Drain(t.Context(), answering(nil))), 1)
	q.Unhold(rules.Hold{Prefix: "b"})
	want(t, "not held any more", len(q.Drain(t.Context(), answering(nil))), 1)
	for name, mistake := range map[string]func(*lowkiqtest.Queue){
		"nobody holds prefix \"b\"": func(q *lowkiqtest.Queue) { q.Unhold(rules.Hold{Prefix: "b"}) },
		"must be an id or a pref":   func(q *lowkiqtest.Queue) { q.Hold(rules.Hold{ID: "a", Prefix: "b"}) },
	} {
		said := failure(func(t testing.TB) { mistake(lowkiqtest.New(t, node.QueueConfig{})) })
		if !strings.Contains(said, name) {
			t.Errorf("got %q, want %q in it", said, name)
		}
	}
}

// TestExpiredWhilePutOff checks that a payload waits since its push when its handler, a stop of its group or a hold
// puts it off. After a failure it waits anew.
func TestExpiredWhilePutOff(t *testing.T) {
	for name, putOff := range map[string]func(q *lowkiqtest.Queue, n int) error{
		"postponed": func(*lowkiqtest.Queue, int) error { return lowkiq.Postpone{After: time.Second} },
		"limited":   func(*lowkiqtest.Queue, int) error { return lowkiq.Throttle{For: time.Second} },
		"held": func(q *lowkiqtest.Queue, _ int) error {
			q.Hold(rules.Hold{ID: "a:1"})
			return lowkiq.Postpone{}
		},
		"failed": func(*lowkiqtest.Queue, int) error { return errors.New("boom") },
	} {
		q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{Groups: rules.Groups{By: ":"}, Expire: rules.Expire{After: 3 * time.Second}}, RetryFunc: func(int) time.Duration { return 5 * time.Second }})
		if _, err := q.Push(t.Context(), lowkiq.Push{ID: "a:1", Payload: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		n := 0
		handle := lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
			n++
			return putOff(q, n)
		})
		pushed := q.Now()
		for range 7 {
			q.Drain(t.Context(), handle)
			if job, ok := q.Waiting("a:1"); name != "failed" && ok && !job.WaitingSince.Equal(pushed) {
				t.Errorf("%s: it waits since %s, want its push, %s", name, job.WaitingSince, pushed)
			}
			q.Advance(time.Second)
		}
		if name == "held" {
			q.Unhold(rules.Hold{ID: "a:1"})
		}
		q.Drain(t.Context(), handle)
		want(t, name+": handler calls", n, map[string]int{"postponed": 3, "limited": 3, "held": 1, "failed": 2}[name])
		want(t, name+": expired", len(q.Morgue()) == 1, name != "failed")
	}
}

// TestExpiresInAStoppedGroup checks that expired payloads end although their group is stopped, as on a node.
func TestExpiresInAStoppedGroup(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{Groups: rules.Groups{By: ":"}, Expire: rules.Expire{After: 3 * time.Second}}})
	push(t, q, "a:1", "1")
	q.Drain(t.Context(), answering(lowkiq.Throttle{For: time.Minute}))
	push(t, q, "a:2", "1")
	q.Advance(4 * time.Second)
	want(t, "calls", len(q.Drain(t.Context(), answering(nil))), 0)
	if dead := q.Morgue(); len(dead) != 1 || dead[0].ID != "a:2" {
		t.Errorf("got %+v in the morgue, want a:2, which has expired", dead)
	}
}

// TestCrashesInAStoppedGroup checks that an id keeps its crashes while its group is stopped, and others go on.
func TestCrashesInAStoppedGroup(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{BatchSize: 2, MaxCrashes: 2, Groups: rules.Groups{By: ":"}}})
	push(t, q, "b:1", "1")
	push(t, q, "a:1", "1")
	stopped := false
	handle := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		switch {
		case slices.ContainsFunc(batch.Jobs, func(j lowkiq.Job) bool { return j.ID == "a:1" }):
			q.Crash()
		case batch.Jobs[0].ID == "b:1" && !stopped:
			stopped = true
			return lowkiq.Throttle{Prefix: "a:", For: time.Minute}
		}
		return nil
	})
	want(t, "calls until a group was stopped", texts(q.Drain(t.Context(), handle)), "[b:1,1 a:1,1 b:1,1]")
	push(t, q, "c", "1")
	want(t, "calls while it is stopped", texts(q.Drain(t.Context(), handle)), "[c,1]")
	q.Advance(time.Minute)
	want(t, "calls after that", texts(q.Drain(t.Context(), handle)), "[a:1,1 a:1,1 b:1,1]")
	if dead := q.Morgue(); len(dead) != 1 || dead[0].ID != "a:1" {
		t.Errorf("got %+v in the morgue, want a:1", dead)
	}
}

// TestHookOfACodec checks that hooks get decoded payloads, like handlers.
func TestHookOfACodec(t *testing.T) {
	flip := func(data []byte) ([]byte, error) {
		flipped := slices.Clone(data)
		slices.Reverse(flipped)
		return flipped, nil
	}
	var told []string
	hook := func(_ context.Context, e *lowkiq.Event) error {
		told = append(told, fmt.Sprintf("%s %s", e.Kind, e.Jobs[0].Payloads[0].Data))
		return nil
	}
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{MaxRetryCount: -1, Exhausted: protocol.Bury}, Codec: queue.Codec{Name: "flip", Encode: flip, Decode: flip}, OnExhausted: hook, OnBuried: hook})
	push(t, q, "a", "12")
	q.Drain(t.Context(), answering(errors.New("boom")))
	want(t, "hooks", told, "[exhausted 12 buried 12]")
}
