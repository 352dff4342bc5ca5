package queue

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// targetFunc is a queue that answers as the function does.
type targetFunc func(jobs []lowkiq.Push) ([]Result, error)

func (f targetFunc) Push(_ context.Context, jobs ...lowkiq.Push) ([]Result, error) { return f(jobs) }

type order struct {
	State string  `json:"state"`
	Total float64 `json:"total,omitempty"`
}

func TestTypedPush(t *testing.T) {
	t.Parallel()
	var got []lowkiq.Push
	q := NewTyped[order](targetFunc(func(jobs []lowkiq.Push) ([]Result, error) {
		got = append(got, jobs...)
		return make([]Result, len(jobs)), nil
	}))
	score, at := 3.5, time.Unix(2_000_000_000, 0)
	if err := q.Push(t.Context(), "a", order{State: "paid"}); err != nil {
		t.Fatal(err)
	}
	if err := q.PushAll(t.Context(), TypedPush[order]{ID: "b", Payload: order{State: "lost"}, Score: &score, PerformAt: at, Urgent: true, Header: map[string]string{"tag": "vip"}}); err != nil {
		t.Fatal(err)
	}
	want := []lowkiq.Push{
		{ID: "a", Payload: []byte(`{"state":"paid"}`)},
		{ID: "b", Payload: []byte(`{"state":"lost"}`), Score: &score, PerformAt: at, Urgent: true, Header: map[string]string{"tag": "vip"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got = nil
	err := q.PushAll(t.Context(), TypedPush[order]{ID: "a"}, TypedPush[order]{ID: "b", Payload: order{Total: math.NaN()}})
	if err == nil || !strings.HasPrefix(err.Error(), `encode the payload for id "b", job 2 of 2: `) || got != nil {
		t.Errorf("got %v and pushes %v, want an error, and none", err, got)
	}
}

func TestPushError(t *testing.T) {
	t.Parallel()
	full := errors.New("full")
	answer := func(errs ...error) Typed[order] {
		return NewTyped[order](targetFunc(func([]lowkiq.Push) ([]Result, error) {
			results := make([]Result, len(errs))
			for i, err := range errs {
				results[i].Err = err
			}
			return results, errors.Join(errs...)
		}))
	}
	jobs := []TypedPush[order]{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}, {ID: "e"}}
	for _, c := range []struct {
		errs []error
		want string
	}{
		{[]error{nil, full, nil, nil, nil}, `1 of 5 jobs are not stored; id "b": full`},
		{[]error{full, full, full, full, ErrTooManyPayloads}, `5 of 5 jobs are not stored; id "a": full; id "b": full; id "c": full; and 2 more`},
	} {
		err := answer(c.errs...).PushAll(t.Context(), jobs...)
		var all *PushError
		if !errors.As(err, &all) || err.Error() != c.want || !errors.Is(err, full) || len(all.Results) != 5 {
			t.Errorf("got %v, want %s", err, c.want)
		}
		if errors.Is(err, ErrTooManyPayloads) != (c.errs[4] != nil) {
			t.Errorf("%v: its last job's error is not found", err)
		}
	}
	refused := NewTyped[order](targetFunc(func(jobs []lowkiq.Push) ([]Result, error) { return make([]Result, len(jobs)), full }))
	if err := refused.Push(t.Context(), "a", order{}); !errors.Is(err, full) || err.Error() != "full" {
		t.Errorf("got %v, want the error of the push", err)
	}
	closed := NewTyped[order](targetFunc(func([]lowkiq.Push) ([]Result, error) { return nil, ErrClosed }))
	if err := closed.Push(t.Context(), "a", order{}); err != ErrClosed { //nolint:errorlint // the error as it is
		t.Errorf("got %v, want %v", err, ErrClosed)
	}
}
