package lowkiqtest_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/node/lowkiqtest"
	"github.com/lowkiq/lowkiq/queue"
)

// OrderChanged is a payload of the examples.
type OrderChanged struct{ State string }

// A typed handler is tested with typed pushes: it retries an order while the shop is away, and a payload that
// cannot be decoded costs its order nothing.
func TestExampleEach(t *testing.T) {
	q := lowkiqtest.New(t, node.QueueConfig{RetryFunc: func(int) time.Duration { return time.Minute }})
	away := true
	var handled []string
	handler := lowkiq.Each(func(ctx context.Context, id string, order OrderChanged) error {
		if away {
			return errors.New("the shop is away")
		}
		handled = append(handled, fmt.Sprintf("%s %s, attempt %d", id, order.State, lowkiq.JobFrom(ctx).Attempt))
		return nil
	})
	orders := queue.NewTyped[OrderChanged](q)
	if err := orders.Push(t.Context(), "order-1", OrderChanged{"paid"}); err != nil {
		t.Fatal(err)
	}
	push(t, q, "order-1", "not JSON")
	if err := orders.Push(t.Context(), "order-1", OrderChanged{"shipped"}); err != nil {
		t.Fatal(err)
	}

	q.Drain(t.Context(), handler)
	if dead := q.Morgue(); len(dead) != 1 || string(dead[0].Payloads[0].Data) != "not JSON" ||
		dead[0].Error != "payload 2 of 3: invalid character 'o' in literal null (expecting 'u')" {
		t.Errorf("got %+v in the morgue, want the payload that is not JSON", dead)
	}
	if job, _ := q.Waiting("order-1"); len(job.Payloads) != 2 || job.RetryCount != 0 || job.Error != "the shop is away" {
		t.Errorf("got %+v, want two payloads that have failed once", job)
	}
	away = false
	q.Advance(time.Minute)
	q.Drain(t.Context(), handler)
	if want := []string{"order-1 paid, attempt 2", "order-1 shipped, attempt 2"}; !reflect.DeepEqual(handled, want) {
		t.Errorf("got %q, want %q", handled, want)
	}
}

// A state that a function sets is kept only if all payloads of the id succeed.
func TestEachKeepsStates(t *testing.T) {
	t.Parallel()
	cfg := node.QueueConfig{RetryFunc: func(int) time.Duration { return 0 }}
	cfg.State = time.Hour
	q := lowkiqtest.New(t, cfg)
	fails := 1
	count := lowkiq.Each(func(ctx context.Context, _ string, n int) error {
		job := lowkiq.JobFrom(ctx)
		job.SetState(append(job.State(), byte('0'+n)))
		if n == 2 && fails > 0 {
			fails--
			return errors.New("once")
		}
		return nil
	})
	push(t, q, "a", "1", "2", "3")
	q.Drain(t.Context(), count)
	push(t, q, "a", "4")
	runs := q.Drain(t.Context(), count)
	if got := string(runs[0].Batch.Jobs[0].State); got != "123" {
		t.Errorf("got state %s, want 123", got)
	}
}
