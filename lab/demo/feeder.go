package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/lab/demodata"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

const (
	batchEvents = 16 // events of a push that is in time
	mostEvents  = 256
	// pace is the time between such pushes. The stream must last long enough to see the acts.
	pace = 25 * time.Millisecond
	// mostLate is the maximum delay that is caught up, so that the stream does not gush after a halt.
	mostLate = time.Second / 2
	// window is how far pushing may be ahead of handling.
	window    = 2000
	retryWait = 50 * time.Millisecond
)

// feeder pushes the stream over HTTP and records its pushes for the judge.
type feeder struct {
	apis    *apis
	handled *atomic.Int64
	pace    time.Duration

	pushed  atomic.Int64
	allowed atomic.Int64 // payloads that may be pushed so far
	ended   atomic.Bool

	// Used only by the feeder's goroutine, until it has ended.
	attempts []attempt
	repeated int
}

// attempt is a request.
type attempt struct {
	events []demodata.Event
	at     time.Duration
	lost   bool // no answer came, so it may or may not have been stored
}

// allow lets the feeder continue until it has pushed n payloads.
func (f *feeder) allow(n int) { f.allowed.Store(int64(n)) }

// pushAll pushes the stream at the feeder's pace. After a delay it catches up with larger pushes, for at most mostLate.
func (f *feeder) pushAll(ctx context.Context) error {
	var batch []demodata.Event
	due := time.Now()
	pushed, size := 0, batchEvents
	for event := range demodata.Events() {
		batch = append(batch, event)
		pushed++
		if len(batch) < size && pushed < demodata.Count {
			continue
		}
		if err := f.awaitTurn(ctx, int64(pushed), due); err != nil {
			return err
		}
		if err := f.pushEvents(ctx, batch); err != nil {
			return err
		}
		due = due.Add(f.pace * time.Duration(len(batch)) / batchEvents)
		if late := time.Since(due); late > mostLate {
			due = due.Add(late - mostLate)
		}
		size = f.batchSize(time.Since(due))
		f.pushed.Store(int64(pushed))
		batch = nil
	}
	return nil
}

// awaitTurn waits until the given number of payloads should have been pushed.
func (f *feeder) awaitTurn(ctx context.Context, pushed int64, due time.Time) error {
	if err := sleep.For(ctx, time.Until(due)); err != nil {
		return err
	}
	return f.waitUntil(ctx, func() bool {
		return pushed <= f.allowed.Load() && pushed-f.handled.Load() < window+batchEvents
	})
}

// batchSize returns how many events to push next if a push is late. A busy machine makes pushes larger and not the demo
// longer.
func (f *feeder) batchSize(late time.Duration) int {
	if f.pace <= 0 || late <= 0 {
		return batchEvents
	}
	return min(mostEvents, batchEvents+int(batchEvents*late/f.pace))
}

// pushEvents repeats a push until it is acknowledged.
func (f *feeder) pushEvents(ctx context.Context, events []demodata.Event) error {
	body := encodeNDJSON(events)
	for {
		at := judge.Now()
		err := f.postBatch(ctx, body)
		// A refused connection carried nothing. After any other error the batch may have been stored. It is safe to push
		// it again to another node.
		if !errors.Is(err, syscall.ECONNREFUSED) && err != errNobody {
			f.attempts = append(f.attempts, attempt{events, at, err != nil})
		}
		var refused *web.Problem
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &refused) && refused.Status != 503:
			return fmt.Errorf("push: %w", err)
		}
		f.repeated++
		if err := sleep.For(ctx, retryWait); err != nil {
			return err
		}
	}
}

var errPartly = errors.New("some jobs were not stored")

// postBatch posts a batch to the next node. It returns errNobody without a node, and errPartly if the node did not store
// all jobs.
func (f *feeder) postBatch(ctx context.Context, body []byte) error {
	node := f.apis.next()
	if node == nil {
		return errNobody
	}
	answer, err := node.PostRaw(ctx, "/api/v1/queues/"+queueName+"/jobs", "application/x-ndjson", body)
	if err != nil {
		return err
	}
	var said web.Pushed
	if err := json.Unmarshal(answer, &said); err != nil {
		return fmt.Errorf("push: %w", err)
	}
	for _, result := range said.Results {
		if !result.OK {
			return errPartly
		}
	}
	return nil
}

// awaitDrained waits until nothing is queued any more.
func (f *feeder) awaitDrained(ctx context.Context) error {
	return f.waitUntil(ctx, func() bool {
		node := f.apis.next()
		if node == nil {
			return false
		}
		answer, err := node.Get(ctx, "/api/v1/queues/"+queueName)
		var q status.Queue
		return err == nil && json.Unmarshal(answer, &q) == nil && q.Name == queueName && q.Jobs.Total() == 0
	})
}

func (f *feeder) waitUntil(ctx context.Context, until func() bool) error {
	for !until() {
		if err := sleep.For(ctx, retryWait); err != nil {
			return err
		}
	}
	return nil
}

// listPushed returns the pushes, for the judge to compare with the history.
func (f *feeder) listPushed() iter.Seq[judge.Pushed] {
	return func(yield func(judge.Pushed) bool) {
		for _, a := range f.attempts {
			for _, e := range a.events {
				p := judge.PushedOf(queueName, lowkiq.Push{ID: e.ID, Score: &e.Score, Payload: e.Payload}, a.at)
				p.Optional = a.lost
				if !yield(p) {
					return
				}
			}
		}
	}
}

func encodeNDJSON(events []demodata.Event) []byte {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // the bytes of a payload must not change
	for _, e := range events {
		enc.Encode(e) //nolint:errcheck // a buffer and a struct
	}
	return body.Bytes()
}
