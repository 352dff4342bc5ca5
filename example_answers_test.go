package lowkiq_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
)

// batchOf is a batch as a node would deliver it: jobs of one payload each. A handler is tested by
// calling it with one.
func batchOf(payloads ...string) *lowkiq.Batch {
	batch := &lowkiq.Batch{Shard: lowkiq.Shard{Queue: "invoices"}}
	for i, payload := range payloads {
		batch.Jobs = append(batch.Jobs, lowkiq.Job{
			ID: fmt.Sprintf("invoice-%d", i+1), RetryCount: -1, Payloads: []lowkiq.Payload{{Data: []byte(payload)}},
		})
	}
	return batch
}

func charge(account string) error {
	if account == "bob" {
		return errors.New("no such account")
	}
	return nil
}

// One job of a batch fails: it is retried, the others are done.
func ExampleFailed() {
	handler := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		failed := lowkiq.Failed{}
		for _, job := range batch.Jobs {
			for _, p := range job.Payloads {
				if err := charge(string(p.Data)); err != nil {
					failed[job.ID] = err
				}
			}
		}
		if len(failed) > 0 {
			return failed
		}
		return nil
	})

	fmt.Println(handler.Handle(context.Background(), batchOf("ann", "bob", "eve")))
	fmt.Println(handler.Handle(context.Background(), batchOf("ann")))
	// Output:
	// invoice-2: no such account
	// <nil>
}

// What the handler calls is closed: the batch is put back for a while, and no retry is spent.
func ExamplePostpone() {
	bankIsOpen := false
	handler := lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
		if !bankIsOpen {
			return lowkiq.Postpone{After: time.Hour, Reason: "the bank is closed"}
		}
		return nil
	})

	fmt.Println(handler.Handle(context.Background(), batchOf("ann")))
	// Output:
	// postponed by 1h0m0s: the bank is closed
}

// A payload that no retry mends goes to the morgue, where a person sees it, and the others of the
// batch are done.
func ExampleBury() {
	handler := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		failed := lowkiq.Failed{}
		for _, job := range batch.Jobs {
			var invoice struct{ Account string }
			if err := json.Unmarshal(job.Payloads[0].Data, &invoice); err != nil {
				failed[job.ID] = lowkiq.Bury{Reason: "not JSON: " + err.Error()}
			}
		}
		if len(failed) > 0 {
			return failed
		}
		return nil
	})

	err := handler.Handle(context.Background(), batchOf(`{"account":"ann"}`, `{"account":`))
	fmt.Println(err)
	var bury lowkiq.Bury
	fmt.Println("buried:", errors.As(err, &bury))
	// Output:
	// invoice-2: not JSON: unexpected end of JSON input
	// buried: true
}
