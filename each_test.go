package lowkiq_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// parseBatch returns a batch with jobs of the form "id payload payload ...". The word "" is an empty payload.
func parseBatch(jobs ...string) *lowkiq.Batch {
	all := make([]lowkiq.Job, len(jobs))
	for i, text := range jobs {
		words := strings.Fields(text)
		all[i] = lowkiq.Job{ID: words[0], RetryCount: -1}
		for k, data := range words[1:] {
			if data == `""` {
				data = ""
			}
			all[i].Payloads = append(all[i].Payloads, lowkiq.Payload{Score: float64(k), Data: []byte(data)})
		}
	}
	return lowkiq.NewBatch(lowkiq.Shard{"orders", 3}, 7, 1, all)
}

func TestEach(t *testing.T) {
	t.Parallel()
	late := errors.New("late")
	refuse := func(_ string, n int) error {
		switch n {
		case 99:
			return late
		case 98:
			return lowkiq.Postpone{After: time.Second}
		}
		return nil
	}
	for _, c := range []struct {
		name  string
		jobs  []string
		calls string
		want  error
	}{
		{"all are done", []string{"a 1 2", "b 3"}, "a1 a2 b3 ", nil},
		{"no payload", []string{"a"}, "", nil},
		{"an error fails its id", []string{"a 1 99 2", "b 3"}, "a1 a99 b3 ", lowkiq.Failed{"a": late}},
		{"a postponement is about its id", []string{"a 98", "b 3"}, "a98 b3 ", lowkiq.Failed{"a": lowkiq.Postpone{After: time.Second}}},
		{"a payload that cannot be decoded is buried", []string{"a 1 x 2", "b 3"}, "b3 ", lowkiq.Failed{"a": lowkiq.Bury{
			Reason: "payload 2 of 3: invalid character 'x' looking for beginning of value", Payloads: []int{1}}}},
		{"an empty payload is the zero value", []string{`a "" 1`}, "a0 a1 ", nil},
		{"two of them, with the reason of the first", []string{"a x y 1"}, "", lowkiq.Failed{"a": lowkiq.Bury{
			Reason: "payload 1 of 3: invalid character 'x' looking for beginning of value", Payloads: []int{0, 1}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			calls := ""
			got := lowkiq.Each(func(_ context.Context, id string, n int) error {
				calls += fmt.Sprint(id, n, " ")
				return refuse(id, n)
			}).Handle(t.Context(), parseBatch(c.jobs...))
			if calls != c.calls || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got calls %q and %#v, want %q and %#v", calls, got, c.calls, c.want)
			}
		})
	}
}

// After the end of its context, a call of f returns, and there is no other.
func TestEachEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	calls := 0
	err := lowkiq.Each(func(context.Context, string, int) error {
		calls++
		cancel(lowkiq.ErrTimeout)
		return nil
	}).Handle(ctx, parseBatch("a 1 2", "b 3", "c 4"))
	var failed lowkiq.Failed
	postponed := lowkiq.Postpone{Reason: "not begun: handler timeout"}
	if calls != 1 || !errors.As(err, &failed) || !errors.Is(failed["a"], lowkiq.ErrTimeout) || failed["b"] != postponed || failed["c"] != postponed {
		t.Errorf("got %d calls and %v, want a call, a failure of a, and the others postponed", calls, err)
	}
}

func TestJobFrom(t *testing.T) {
	t.Parallel()
	if got := lowkiq.JobFrom(t.Context()); got != nil {
		t.Errorf("got %+v, want nil outside of a handler", got)
	}
	since := time.Unix(1_700_000_000, 0)
	batch := lowkiq.NewBatch(lowkiq.Shard{"orders", 3}, 7, 1, []lowkiq.Job{{
		ID: "a", RetryCount: 1, Error: "no stock", WaitingSince: since, Callers: 2, State: []byte("0"),
		Payloads: []lowkiq.Payload{{Score: 1.5, Data: []byte("1"), Header: `{"tag":"vip"}`}, {Score: 2, Data: []byte("2")}},
	}})
	var notes []lowkiq.Note
	batch.NotesTo(lowkiq.NoteFunc(func(_ context.Context, _ *lowkiq.Batch, _ string, note lowkiq.Note) error {
		notes = append(notes, note)
		return nil
	}))
	var states []string
	var got []lowkiq.CurrentJob
	err := lowkiq.Each(func(ctx context.Context, _ string, n int) error {
		job := lowkiq.JobFrom(ctx)
		got = append(got, lowkiq.CurrentJob{
			ID: job.ID, Shard: job.Shard, Fence: job.Fence, Score: job.Score, Header: job.Header, Attempt: job.Attempt,
			LastError: job.LastError, WaitingSince: job.WaitingSince, Callers: job.Callers,
		})
		states = append(states, string(job.State()))
		job.SetState(fmt.Append(nil, n))
		job.SetResult(fmt.Append(nil, "r", n))
		return job.Note(ctx, lowkiq.Note{Progress: float64(n) / 2})
	}).Handle(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	first := lowkiq.CurrentJob{ID: "a", Shard: lowkiq.Shard{"orders", 3}, Fence: 7, Score: 1.5, Header: `{"tag":"vip"}`, Attempt: 3, LastError: "no stock", WaitingSince: since, Callers: 2}
	second := first
	second.Score, second.Header = 2, ""
	if want := []lowkiq.CurrentJob{first, second}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if want := []string{"0", "1"}; !reflect.DeepEqual(states, want) {
		t.Errorf("got states %q, want %q: a payload sees the state of the payload before it", states, want)
	}
	if want := []lowkiq.Note{{Progress: .5}, {Progress: 1}}; !reflect.DeepEqual(notes, want) {
		t.Errorf("got notes %+v, want %+v", notes, want)
	}
	if got, want := batch.Answers()["a"], (lowkiq.Answered{Result: []byte("r2"), State: []byte("2"), Stated: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestEachWith(t *testing.T) {
	t.Parallel()
	upper := func(data []byte, value any) error { *value.(*string) = strings.ToUpper(string(data)); return nil }
	got := ""
	err := lowkiq.EachWith(upper, func(_ context.Context, id, text string) error { got += id + text; return nil }).Handle(t.Context(), parseBatch("a x y"))
	if err != nil || got != "aXaY" {
		t.Errorf("got %q, %v", got, err)
	}
}

type paid struct{ Amount int }
type shipped struct{ By string }

func muxOf(typeOf func(lowkiq.Payload) (string, error), calls *string) *lowkiq.Mux {
	m := lowkiq.NewMux(typeOf)
	lowkiq.HandleType(m, "paid", func(_ context.Context, id string, p paid) error { *calls += fmt.Sprint(id, p, " "); return nil })
	lowkiq.HandleType(m, "shipped", func(_ context.Context, id string, p shipped) error { *calls += fmt.Sprint(id, p, " "); return nil })
	return m
}

func TestMux(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		payloads []string
		retry    bool
		calls    string
		want     string // the answer
	}{
		{"each type has its function", []string{`{"type":"paid","amount":3}`, `{"type":"shipped","by":"air"}`}, false, "a{3} a{air} ", ""},
		{"an unknown type is buried", []string{`{"type":"lost"}`, `{"type":"paid"}`}, false, "",
			`{"a":{"Reason":"payload 1 of 2: unknown type \"lost\"; the mux has paid, shipped","Payloads":[0]}}`},
		{"an unknown type is retried", []string{`{"type":"paid"}`, `{"type":"lost"}`}, true, "", `a: unknown type "lost"; the mux has paid, shipped`},
		{"no type", []string{`{"by":"air"}`}, true, "", `{"a":{"Reason":"payload 1 of 1: its type: it has no field \"type\"","Payloads":[0]}}`},
		{"a type that is a number", []string{`{"type":1}`}, false, "",
			`{"a":{"Reason":"payload 1 of 1: its type: field \"type\": json: cannot unmarshal number into Go value of type string","Payloads":[0]}}`},
		{"no object", []string{`[]`}, false, "",
			`{"a":{"Reason":"payload 1 of 1: its type: json: cannot unmarshal array into Go value of type map[string]json.RawMessage","Payloads":[0]}}`},
		{"fields of another kind", []string{`{"type":"paid","amount":"3"}`}, false, "",
			`{"a":{"Reason":"payload 1 of 1: type \"paid\": json: cannot unmarshal string into Go struct field paid.Amount of type int","Payloads":[0]}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			calls := ""
			m := muxOf(lowkiq.TypeField("type"), &calls)
			m.RetryUnknown = c.retry
			job := lowkiq.Job{ID: "a", RetryCount: -1}
			for _, data := range c.payloads {
				job.Payloads = append(job.Payloads, lowkiq.Payload{Data: []byte(data)})
			}
			err := m.Handle(t.Context(), lowkiq.NewBatch(lowkiq.Shard{}, 0, 0, []lowkiq.Job{job}))
			got := ""
			if err != nil {
				got = err.Error()
				var failed lowkiq.Failed
				if bury := (lowkiq.Bury{}); errors.As(err, &failed) && errors.As(failed["a"], &bury) {
					data, _ := json.Marshal(failed)
					got = string(data)
				}
			}
			if calls != c.calls || got != c.want {
				t.Errorf("got calls %q and %s, want %q and %s", calls, got, c.calls, c.want)
			}
		})
	}
}

func TestMuxByHeader(t *testing.T) {
	t.Parallel()
	calls := ""
	m := muxOf(lowkiq.TypeHeader("kind"), &calls)
	batch := lowkiq.NewBatch(lowkiq.Shard{}, 0, 0, []lowkiq.Job{{ID: "a", Payloads: []lowkiq.Payload{{Data: []byte(`{"by":"sea"}`), Header: `{"kind":"shipped"}`}}}})
	if err := m.Handle(t.Context(), batch); err != nil || calls != "a{sea} " {
		t.Errorf("got calls %q, %v", calls, err)
	}
	batch.Jobs[0].Payloads[0].Header = ""
	if err := m.Handle(t.Context(), batch); err == nil || !strings.Contains(err.Error(), `unknown type ""`) {
		t.Errorf("got %v, want an error about the type", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second function for a type was taken")
		}
	}()
	lowkiq.HandleType(m, "paid", func(context.Context, string, paid) error { return nil })
}

// A nil function is refused where it is given, not when the first payload comes.
func TestNilFunctionsPanic(t *testing.T) {
	t.Parallel()
	for want, give := range map[string]func(){
		"lowkiq: a nil decoder or function for payloads":   func() { lowkiq.Each[int](nil) },
		"lowkiq: a nil function for the types of payloads": func() { lowkiq.NewMux(nil) },
		`lowkiq: a nil function for the type "order"`:      func() { lowkiq.HandleType[int](lowkiq.NewMux(lowkiq.TypeHeader("type")), "order", nil) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("got %v, want a panic with %q", got, want)
				}
			}()
			give()
		}()
	}
}
