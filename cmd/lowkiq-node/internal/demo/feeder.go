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
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/remote"
	"github.com/lowkiq/lowkiq/internal/history"
	"github.com/lowkiq/lowkiq/internal/stream"
)

const (
	batchEvents = 250
	// window is how far pushing may be ahead of handling, so that the worker is killed
	// while there is something to push and something to handle.
	window    = 2000
	retryWait = 50 * time.Millisecond
)

// feeder pushes the stream over HTTP and remembers how, for the judge.
type feeder struct {
	node     *remote.Client
	handled  *atomic.Int64
	attempts []attempt
	retried  int
}

// attempt is one request.
type attempt struct {
	events []stream.Event
	at     time.Duration
	lost   bool // its answer never came: it may or may not have been stored
}

func (f *feeder) run(ctx context.Context) error {
	var batch []stream.Event
	pushed := 0
	for event := range stream.Events() {
		batch = append(batch, event)
		pushed++
		if len(batch) < batchEvents && pushed < stream.Count {
			continue
		}
		if err := f.wait(ctx, func() bool { return int64(pushed)-f.handled.Load() < window+batchEvents }); err != nil {
			return err
		}
		if err := f.push(ctx, batch); err != nil {
			return err
		}
		batch = nil
	}
	return nil
}

// push sends one batch until it is acknowledged.
func (f *feeder) push(ctx context.Context, events []stream.Event) error {
	body := ndjson(events)
	for {
		at := history.Now()
		err := f.send(ctx, body)
		// A refused connection carried nothing; after any other trouble the batch may
		// have been stored, and pushing it again is safe.
		if !errors.Is(err, syscall.ECONNREFUSED) {
			f.attempts = append(f.attempts, attempt{events, at, err != nil})
		}
		var refused *remote.Error
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &refused) && refused.Status != 503:
			return fmt.Errorf("push: %w", err)
		}
		f.retried++
		if err := f.pause(ctx); err != nil {
			return err
		}
	}
}

var errPartly = errors.New("some jobs were not stored")

func (f *feeder) send(ctx context.Context, body []byte) error {
	answer, err := f.node.PostRaw(ctx, "/api/v1/queues/"+queueName+"/jobs", "application/x-ndjson", body)
	if err != nil {
		return err
	}
	var said struct{ Results []struct{ OK bool } }
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
		answer, err := f.node.Get(ctx, "/api/v1/queues/"+queueName)
		var q struct{ Jobs map[string]int }
		if err != nil || json.Unmarshal(answer, &q) != nil || len(q.Jobs) == 0 {
			return false
		}
		for _, n := range q.Jobs {
			if n > 0 {
				return false
			}
		}
		return true
	})
}

func (f *feeder) wait(ctx context.Context, until func() bool) error {
	for !until() {
		if err := f.pause(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (f *feeder) pause(ctx context.Context) error {
	timer := time.NewTimer(retryWait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// pushed is what the judge compares the history with.
func (f *feeder) pushed() iter.Seq[history.Pushed] {
	return func(yield func(history.Pushed) bool) {
		for _, a := range f.attempts {
			for _, e := range a.events {
				p := history.PushedOf(queueName, lowkiq.Push{ID: e.ID, Score: &e.Score, Payload: e.Payload}, a.at)
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
