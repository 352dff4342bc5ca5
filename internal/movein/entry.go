package movein

import (
	"context"
	"fmt"
	"math"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/marshal"
	"github.com/lowkiq/lowkiq/internal/rubyqueue"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/transfer"
)

// Entry is what an id's waiting job, or its morgue, comes to in the new queue; with an Err the new queue is told only that it
// does not come.
type Entry = transfer.Entry

// Payload is data with a score.
type Payload = transfer.Payload

// Result is the new queue's answer to an entry.
type Result struct {
	Refused error // why it stays where it was
	Err     error // it is to be sent again
}

// Into imports entries into a queue, as [Mover.Import] does.
func Into(q *queue.Queue) func(ctx context.Context, source string, entries []Entry) ([]Result, error) {
	return func(ctx context.Context, source string, entries []Entry) ([]Result, error) {
		answers, err := transfer.Import(ctx, q, source, entries...)
		results := make([]Result, len(answers))
		for i, a := range answers {
			if transfer.Refused(a.Err) {
				results[i].Refused = a.Err
			} else {
				results[i].Err = a.Err
			}
		}
		return results, err
	}
}

// Form is what becomes of a payload's bytes.
type Form string

// The forms of payloads.
const (
	JSON  Form = "json"    // plain data that Ruby dumped becomes JSON
	Bytes Form = "marshal" // bytes stay what they are, whatever Ruby's dump_payload made of them
)

// Limits are those of the new queue.
type Limits struct {
	Payload, Payloads, IDPayload int // bytes of one, how many an id may have, and their bytes
}

// DefaultLimits are those of queues without rules.
var DefaultLimits = Limits{lowkiq.MaxPayloadBytes, lowkiq.MaxPayloads, lowkiq.MaxIDPayload}

// converter makes entries of the old queue into those of the new one.
type converter struct {
	form   Form
	limits Limits
	dueNow bool // what Ruby never runs is due now
}

// convert returns what the new queue gets of an entry, and what its text does not say any more. The error
// is the reason why the entry stays where it is. An entry without payloads is nothing to be moved.
func (c converter) convert(e *rubyqueue.Entry) (to Entry, lost marshal.Loss, err error) {
	if waiting, flight := e.Counts(); max(waiting, flight) > c.limits.Payloads { // not all are read
		return to, 0, fmt.Errorf("has %d payloads, more than %d", max(waiting, flight), c.limits.Payloads)
	}
	job := rubyqueue.Settle(e)
	to = Entry{Number: e.Number, ID: e.ID, Morgue: e.Morgue}
	if job.Error != nil {
		to.Error = *job.Error
	}
	switch at, err := micros(job.At); {
	case e.Morgue && err == nil:
		to.Buried = at
	case e.Morgue:
		return to, 0, fmt.Errorf("was buried at %v, which is no time", job.At)
	case err == nil:
		to.Due = at
	case !c.dueNow:
		return to, 0, fmt.Errorf("is due at %v, so that Ruby never runs it: --due-now moves it, due now", job.At)
	}
	if to.RetryCount = int(job.Retries); float64(to.RetryCount) != job.Retries || to.RetryCount < -1 || to.RetryCount > math.MaxInt32 {
		return to, 0, fmt.Errorf("has the retry count %v", job.Retries)
	}
	switch {
	case e.ID == "":
		return to, 0, fmt.Errorf("has no id: nil and the empty text are none here")
	case len(e.ID) > lowkiq.MaxIDBytes:
		return to, 0, fmt.Errorf("has an id of %d bytes, longer than %d", len(e.ID), lowkiq.MaxIDBytes)
	case len(job.Payloads) > c.limits.Payloads:
		return to, 0, fmt.Errorf("has %d payloads, more than %d", len(job.Payloads), c.limits.Payloads)
	}
	size := 0
	for i, p := range job.Payloads {
		data, loss, err := c.payload(p.Data)
		switch {
		case err != nil:
			return to, 0, fmt.Errorf("payload %d is not plain data: %w", i+1, err)
		case len(data) > c.limits.Payload:
			return to, 0, fmt.Errorf("payload %d has %d bytes, more than %d", i+1, len(data), c.limits.Payload)
		case math.IsInf(p.Score, 0):
			return to, 0, fmt.Errorf("payload %d has the score %v, want a number", i+1, p.Score)
		}
		if size += len(data); size > c.limits.IDPayload {
			return to, 0, fmt.Errorf("has more than %d bytes of payloads", c.limits.IDPayload)
		}
		lost |= loss
		to.Payloads = append(to.Payloads, Payload{Score: p.Score, Data: data})
	}
	return to, lost, nil
}

func (c converter) payload(data []byte) ([]byte, marshal.Loss, error) {
	if c.form == Bytes {
		return data, 0, nil
	}
	return marshal.JSON(data)
}

// micros is a time of Ruby's, seconds since 1970, in microseconds. The error says that it is none.
func micros(seconds float64) (int64, error) {
	if !(seconds >= 0 && seconds <= lowkiq.MaxPerformAt) {
		return 0, fmt.Errorf("%v is no time", seconds)
	}
	return int64(math.Round(seconds * 1e6)), nil
}
