package lowkiqtest_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/node/lowkiqtest"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// push stores payloads of one id, as a producer would.
func push(t *testing.T, q *lowkiqtest.Queue, id string, payloads ...string) {
	t.Helper()
	for _, p := range payloads {
		if _, err := q.Push(t.Context(), lowkiq.Push{ID: id, Payload: []byte(p)}); err != nil {
			t.Fatal(err)
		}
	}
}

// A job that fails is tried again when its time has come.
func TestExampleRetry(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{RetryFunc: func(n int) time.Duration { return time.Duration(n+1) * time.Minute }})
	push(t, q, "order-1", "1")
	away := true
	handler := lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
		if away {
			return errors.New("the shop is away")
		}
		return nil
	})
	q.Drain(t.Context(), handler)
	if job, ok := q.Waiting("order-1"); !ok || job.Error != "the shop is away" || !job.PerformAt.Equal(q.Now().Add(time.Minute)) {
		t.Errorf("got %+v, want it to wait for a minute", job)
	}
	away = false
	if runs := q.Drain(t.Context(), handler); len(runs) != 0 {
		t.Errorf("got %d calls before the minute was over, want none", len(runs))
	}
	q.Advance(time.Minute)
	if runs := q.Drain(t.Context(), handler); len(runs) != 1 || runs[0].Err != nil {
		t.Errorf("got %+v, want it done", runs)
	}
}

// The payloads of an id come in order, whatever fails.
func TestExampleOrder(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{})
	push(t, q, "order-1", "1", "2")
	var got []string
	handler := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		for _, p := range batch.Jobs[0].Payloads {
			got = append(got, string(p.Data))
		}
		if len(got) == 2 {
			push(t, q, "order-1", "3") // while "1" and "2" are handled, and then fail
			got = nil
			return errors.New("not yet")
		}
		return nil
	})
	q.Drain(t.Context(), handler)
	q.Advance(time.Hour)
	q.Drain(t.Context(), handler)
	if want := []string{"1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Equal payloads of an id that wait together are one.
func TestExampleMerge(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{})
	push(t, q, "order-1", "paid", "paid")
	runs := q.Drain(t.Context(), lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil }))
	if len(runs) != 1 || len(runs[0].Batch.Jobs[0].Payloads) != 1 {
		t.Errorf("got %+v, want one call with one payload", runs)
	}
}

// A job waits until its time.
func TestExampleSchedule(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{})
	if _, err := q.Push(t.Context(), lowkiq.Push{ID: "reminder", PerformAt: q.Now().Add(24 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for day, want := range []int{0, 1, 0} {
		if runs := q.Drain(t.Context(), done); len(runs) != want {
			t.Errorf("day %d: got %d calls, want %d", day, len(runs), want)
		}
		q.Advance(24 * time.Hour)
	}
}

// account is what a handler writes to: it takes a deposit once, by the score of its payload.
type account struct {
	balance int
	last    float64
}

func (a *account) Handle(_ context.Context, batch *lowkiq.Batch) error {
	for _, p := range batch.Jobs[0].Payloads {
		if p.Score <= a.last {
			continue // it came before
		}
		amount, err := strconv.Atoi(string(p.Data))
		if err != nil {
			return lowkiq.Bury{Reason: err.Error()}
		}
		a.balance, a.last = a.balance+amount, p.Score
	}
	return nil
}

// What a handler has done comes again if its process dies before the queue knows: it must bear that.
func TestExampleIdempotence(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{})
	push(t, q, "account-7", "100", "20")
	var a account
	q.Lose()
	if runs := q.Drain(t.Context(), &a); len(runs) != 2 || !runs[0].Died {
		t.Errorf("got %+v, want two calls, the answer of the first lost", runs)
	}
	if a.balance != 120 {
		t.Errorf("got a balance of %d, want 120", a.balance)
	}
}

// A call gets what the handler answered, once its payload has ended.
func TestExampleCall(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{RetryFunc: func(int) time.Duration { return time.Minute }})
	reply, err := q.Call(t.Context(), lowkiq.Push{ID: "acme", Payload: []byte("7")})
	if err != nil {
		t.Fatal(err)
	}
	away := true
	handler := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		if away {
			return errors.New("no prices yet")
		}
		batch.Answer("acme").Result([]byte("42"))
		return nil
	})
	q.Drain(t.Context(), handler)
	if got := reply(); got.State != lowkiq.ReplyPending {
		t.Errorf("got %+v after a failure, want it pending", got)
	}
	away = false
	q.Advance(time.Minute)
	q.Drain(t.Context(), handler)
	if got := reply(); got.State != lowkiq.ReplyDone || string(got.Result) != "42" {
		t.Errorf("got %+v, want 42", got)
	}
}

// A state is replaced in one step with the end of the job: what a handler does to it alone is done once,
// also when its answer is lost.
func TestExampleState(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{State: time.Hour}})
	count := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		job := batch.Jobs[0]
		before, _ := strconv.Atoi(string(job.State))
		batch.Answer(job.ID).State([]byte(strconv.Itoa(before + len(job.Payloads)))).Result(job.State)
		return nil
	})
	for range 3 {
		push(t, q, "order-1", "paid")
		q.Lose()
		q.Drain(t.Context(), count)
	}
	reply, err := q.Call(t.Context(), lowkiq.Push{ID: "order-1"})
	if err != nil {
		t.Fatal(err)
	}
	q.Drain(t.Context(), count)
	if got := string(reply().Result); got != "3" {
		t.Errorf("got %s counted, want 3", got)
	}
}

// importer takes the rows of a file, and keeps how far it is as the state of the file's id.
type importer struct {
	rows int
	take func(row int) error
}

func (i *importer) Handle(ctx context.Context, batch *lowkiq.Batch) error {
	job := batch.Jobs[0] // the queue's batch_size is 1
	row, _ := strconv.Atoi(string(job.State))
	for ; row < i.rows; row++ {
		if row%100 == 0 {
			note := lowkiq.Note{Progress: float64(row) / float64(i.rows), State: []byte(strconv.Itoa(row))}
			if err := batch.Note(ctx, job.ID, note); err != nil {
				return err // of lowkiq.ErrEnded, say: the job is not ours any more
			}
		}
		if err := i.take(row); err != nil {
			return err
		}
	}
	batch.Answer(job.ID).State(nil) // the next file of this name begins with its first row
	return nil
}

// A long job goes on where it stopped, whatever ended it.
func TestExampleResume(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{State: 24 * time.Hour}})
	push(t, q, "file-1", "")
	taken := map[int]int{}
	handler := &importer{rows: 500, take: func(row int) error {
		switch taken[row]++; {
		case row == 250 && taken[row] == 1:
			q.Crash()
		case row == 450 && taken[row] == 1:
			return errors.New("the shop is away")
		}
		return nil
	}}
	q.Drain(t.Context(), handler)
	q.Advance(time.Hour)
	if runs := q.Drain(t.Context(), handler); len(runs) != 1 || runs[0].Err != nil {
		t.Errorf("got %+v, want it done", runs)
	}
	for row := range 500 {
		want := 1
		if 200 <= row && row <= 250 || 400 <= row && row <= 450 { // since the last note
			want = 2
		}
		if taken[row] != want {
			t.Errorf("row %d: got it taken %d times, want %d", row, taken[row], want)
		}
	}
}

// done handles everything, and succeeds.
var done = lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil })

// What nobody has handled in time goes to the morgue, or is dropped if the rule says so; a payload's header wins over the rule.
func TestExampleExpire(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{Expire: rules.Expire{After: time.Hour}}})
	push(t, q, "code-1", "1234")
	header := map[string]string{"expires": q.Now().Add(3 * time.Hour).Format(time.RFC3339)}
	if _, err := q.Push(t.Context(), lowkiq.Push{ID: "code-2", Payload: []byte("5678"), Header: header}); err != nil {
		t.Fatal(err)
	}
	q.Advance(2 * time.Hour)
	if runs := q.Drain(t.Context(), done); len(runs) != 1 || runs[0].Batch.Jobs[0].ID != "code-2" {
		t.Errorf("got %+v, want a call for code-2 alone", runs)
	}
	if dead := q.Morgue(); len(dead) != 1 || dead[0].ID != "code-1" {
		t.Errorf("got %+v in the morgue, want code-1", dead)
	}
}

// Nothing of a held id runs; what is pushed piles up in order.
func TestExampleHold(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{})
	q.Hold(rules.Hold{Prefix: "acme:", Until: q.Now().Add(time.Hour)})
	push(t, q, "acme:order-1", "1", "2")
	push(t, q, "other:order-1", "1")
	if runs := q.Drain(t.Context(), done); len(runs) != 1 || runs[0].Batch.Jobs[0].ID != "other:order-1" {
		t.Errorf("got %+v, want a call for the id that nobody holds", runs)
	}
	push(t, q, "acme:order-1", "3")
	q.Advance(time.Hour) // or q.Unhold(rules.Hold{Prefix: "acme:"})
	if runs := q.Drain(t.Context(), done); len(runs) != 1 || len(runs[0].Batch.Jobs[0].Payloads) != 3 {
		t.Errorf("got %+v, want one call with three payloads", runs)
	}
}

// Of many changes only the latest is worth a run.
func TestExampleCoalesce(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{Push: rules.Push{Coalesce: rules.CoalesceLatest}}})
	push(t, q, "page-1", "draft", "better", "final")
	runs := q.Drain(t.Context(), done)
	if len(runs) != 1 || len(runs[0].Batch.Jobs[0].Payloads) != 1 || string(runs[0].Batch.Jobs[0].Payloads[0].Data) != "final" {
		t.Errorf("got %+v, want one call with the last payload", runs)
	}
}

// The run comes when pushes have stopped for a while, and not later than Most after the first one.
func TestExampleDebounce(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{Push: rules.Push{Debounce: rules.Debounce{Quiet: 2 * time.Second, Most: 5 * time.Second}}}})
	var at []time.Duration
	for range 10 {
		push(t, q, "page-1", q.Now().String())
		for _, run := range q.Drain(t.Context(), done) {
			at = append(at, run.At.Sub(lowkiqtest.Start))
		}
		q.Advance(time.Second)
	}
	if want := []time.Duration{5 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("got runs after %v, want %v: the pushes go on", at, want)
	}
	q.Advance(2 * time.Second)
	if runs := q.Drain(t.Context(), done); len(runs) != 1 {
		t.Errorf("got %d calls when all is quiet, want 1", len(runs))
	}
}

// A handler that is told to slow down for a customer holds that customer back, and nobody else; it costs no retry.
func TestExampleLimit(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{Rules: rules.Rules{Groups: rules.Groups{By: ":"}}})
	push(t, q, "acme:1", "")
	push(t, q, "acme:2", "")
	push(t, q, "other:1", "")
	var got []string
	handler := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		if got = append(got, batch.Jobs[0].ID); len(got) == 1 {
			return lowkiq.Throttle{For: time.Minute}
		}
		return nil
	})
	q.Drain(t.Context(), handler)
	if want := []string{"acme:1", "other:1"}; !slices.Equal(got, want) {
		t.Errorf("got calls for %v, want %v", got, want)
	}
	q.Advance(time.Minute)
	q.Drain(t.Context(), handler)
	if want := []string{"acme:1", "other:1", "acme:1", "acme:2"}; !slices.Equal(got, want) {
		t.Errorf("got calls for %v, want %v", got, want)
	}
}
