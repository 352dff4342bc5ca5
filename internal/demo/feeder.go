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
	"github.com/lowkiq/lowkiq/internal/judge"
	"github.com/lowkiq/lowkiq/internal/pause"
	"github.com/lowkiq/lowkiq/internal/stream"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

const (
	batchEvents = 16 // of a push that is in time
	mostEvents  = 256
	// pace is the time between such pushes: the stream is to last long enough to see what
	// happens meanwhile.
	pace = 25 * time.Millisecond
	// mostLate is what may be caught up, so that the stream does not gush after a halt.
	mostLate = time.Second / 2
	// window is how far pushing may be ahead of handling.
	window    = 2000
	retryWait = 50 * time.Millisecond
)

// feeder pushes the stream over HTTP and remembers how, for the judge.
type feeder struct {
	apis    *apis
	handled *atomic.Int64
	pace    time.Duration

	pushed  atomic.Int64
	allowed atomic.Int64 // payloads that may be pushed yet
	ended   atomic.Bool

	// Of the feeder's goroutine, until it has ended.
	attempts []attempt
	repeated int
}

// attempt is one request.
type attempt struct {
	events []stream.Event
	at     time.Duration
	lost   bool // its answer never came: it may or may not have been stored
}

// allow lets the feeder go on until it has pushed n payloads.
func (f *feeder) allow(n int) { f.allowed.Store(int64(n)) }

func (f *feeder) run(ctx context.Context) error {
	var batch []stream.Event
	due := time.Now()
	pushed, size := 0, batchEvents
	for event := range stream.Events() {
		batch = append(batch, event)
		pushed++
		if len(batch) < size && pushed < stream.Count {
			continue
		}
		if err := f.turn(ctx, int64(pushed), due); err != nil {
			return err
		}
		if err := f.push(ctx, batch); err != nil {
			return err
		}
		due = due.Add(f.pace * time.Duration(len(batch)) / batchEvents)
		if late := time.Since(due); late > mostLate {
			due = due.Add(late - mostLate)
		}
		size = f.size(time.Since(due))
		f.pushed.Store(int64(pushed))
		batch = nil
	}
	return nil
}

// turn waits until it is time to have pushed so many payloads.
func (f *feeder) turn(ctx context.Context, pushed int64, due time.Time) error {
	if err := pause.For(ctx, time.Until(due)); err != nil {
		return err
	}
	return f.wait(ctx, func() bool {
		return pushed <= f.allowed.Load() && pushed-f.handled.Load() < window+batchEvents
	})
}

// size is how many events to push next when a push is late: a busy machine makes the
// pushes larger, not the demo longer.
func (f *feeder) size(late time.Duration) int {
	if f.pace <= 0 || late <= 0 {
		return batchEvents
	}
	return min(mostEvents, batchEvents+int(batchEvents*late/f.pace))
}

// push sends one batch until it is acknowledged.
func (f *feeder) push(ctx context.Context, events []stream.Event) error {
	body := ndjson(events)
	for {
		at := judge.Now()
		err := f.send(ctx, body)
		// A refused connection carried nothing; after any other trouble the batch may
		// have been stored, and pushing it again, to another node, is safe.
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
		if err := pause.For(ctx, retryWait); err != nil {
			return err
		}
	}
}

var errPartly = errors.New("some jobs were not stored")

func (f *feeder) send(ctx context.Context, body []byte) error {
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

// drained waits until nothing is queued any more.
func (f *feeder) drained(ctx context.Context) error {
	return f.wait(ctx, func() bool {
		node := f.apis.next()
		if node == nil {
			return false
		}
		answer, err := node.Get(ctx, "/api/v1/queues/"+queueName)
		var q status.Queue
		return err == nil && json.Unmarshal(answer, &q) == nil && q.Name == queueName && q.Jobs.Total() == 0
	})
}

func (f *feeder) wait(ctx context.Context, until func() bool) error {
	for !until() {
		if err := pause.For(ctx, retryWait); err != nil {
			return err
		}
	}
	return nil
}

// sent is what the judge compares the history with.
func (f *feeder) sent() iter.Seq[judge.Pushed] {
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

func ndjson(events []stream.Event) []byte {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // a payload is bytes: they stay as they are
	for _, e := range events {
		enc.Encode(e) //nolint:errcheck // a buffer and a struct
	}
	return body.Bytes()
}
