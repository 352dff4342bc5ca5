package lowkiqtest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/node/lowkiqtest"
)

func ExampleQueue_hook() {
	t := &testing.T{} // of the test

	hooked := node.QueueConfig{Name: "orders",
		OnBuried: func(ctx context.Context, e *lowkiq.Event) error {
			for _, job := range e.Jobs {
				fmt.Println(e.Kind, job.ID, len(job.Payloads), job.Err)
			}
			return nil
		},
	}

	q := lowkiqtest.New(t, hooked)
	if _, err := q.Push(context.Background(), lowkiq.Push{ID: "a", Payload: []byte("1")}, lowkiq.Push{ID: "a", Payload: []byte("2")}); err != nil {
		panic(err)
	}
	q.Drain(context.Background(), lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
		return lowkiq.Bury{Reason: "no such account"}
	}))
	// Output: buried a 2 no such account
}
