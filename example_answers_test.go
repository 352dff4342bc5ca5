package lowkiq_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
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

// A number per account is kept as the state of its id, and told to who has called. It is stored in one
// step with the end of the job or not at all: the count is exact, however often the job is tried.
func ExampleBatch_Answer() {
	handler := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		for _, job := range batch.Jobs {
			count := 0
			if job.State != nil {
				if err := json.Unmarshal(job.State, &count); err != nil {
					return err
				}
			}
			text := strconv.AppendInt(nil, int64(count+len(job.Payloads)), 10)
			batch.Answer(job.ID).State(text).Result(text)
		}
		return nil
	})

	batch := batchOf("ann")
	batch.Jobs[0].State = []byte("41") // what the last job of this id has left
	fmt.Println(handler.Handle(context.Background(), batch))
	said := batch.Answers()["invoice-1"]
	fmt.Printf("result %s, state %s\n", said.Result, said.State)
	// Output:
	// <nil>
	// result 42, state 42
}

// What is said of a job that fails does not count; the state of a finished invoice is no longer needed.
func ExampleAnswer_State() {
	handler := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		failed := lowkiq.Failed{}
		for _, job := range batch.Jobs {
			batch.Answer(job.ID).State(nil) // deletes it
			if err := charge(string(job.Payloads[0].Data)); err != nil {
				failed[job.ID] = err // and so it stays
			}
		}
		if len(failed) > 0 {
			return failed
		}
		return nil
	})

	fmt.Println(handler.Handle(context.Background(), batchOf("ann", "bob")))
	// Output:
	// invoice-2: no such account
}

// A long job says how far it is, and keeps where it is, so that an attempt after a failure goes on there.
func ExampleBatch_Note() {
	handler := lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
		job := batch.Jobs[0]
		page, _ := strconv.Atoi(string(job.State))
		for ; page < 3; page++ {
			note := lowkiq.Note{Progress: float64(page) / 3, Log: fmt.Sprint("page ", page), State: strconv.AppendInt(nil, int64(page), 10)}
			if err := batch.Note(ctx, job.ID, note); err != nil {
				return err // of lowkiq.ErrEnded, say: the job is not ours any more
			}
		}
		return nil
	})

	batch := lowkiq.NewBatch(lowkiq.Shard{Queue: "files"}, 1, 1, []lowkiq.Job{{ID: "a.pdf", State: []byte("1")}})
	batch.NotesTo(lowkiq.NoteFunc(func(_ context.Context, _ *lowkiq.Batch, id string, note lowkiq.Note) error { // a node does this
		fmt.Printf("%s: %.0f%%, %s\n", id, 100*note.Progress, note.Log)
		return nil
	}))
	fmt.Println(handler.Handle(context.Background(), batch))
	// Output:
	// a.pdf: 33%, page 1
	// a.pdf: 67%, page 2
	// <nil>
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

// The next step of a job is stored with its end, or not at all.
func ExampleAnswer_Then() {
	handler := lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		for _, job := range batch.Jobs {
			batch.Answer(job.ID).Then("mail", lowkiq.Push{ID: "customer-7", Payload: job.Payloads[0].Data})
		}
		return nil
	})

	batch := batchOf("ann")
	fmt.Println(handler.Handle(context.Background(), batch))
	for _, one := range batch.Answers()["invoice-1"].Then {
		fmt.Printf("%s/%s %s\n", one.Queue, one.Push.ID, one.Push.Payload)
	}
	// Output:
	// <nil>
	// mail/customer-7 ann
}
