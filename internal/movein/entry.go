package movein

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/marshal"
	"github.com/lowkiq/lowkiq/internal/rubyqueue"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/transfer"
	"github.com/lowkiq/lowkiq/wire"
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

// The forms of payloads. Those of a queue have one form.
const (
	JSON  Form = "json"    // plain data that Ruby's Marshal dumped becomes JSON
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
		one, loss, err := c.payload(p.Data)
		switch {
		case err != nil:
			return to, 0, fmt.Errorf("payload %d is not plain data: %w", i+1, err)
		case len(one.Data) > c.limits.Payload:
			return to, 0, fmt.Errorf("payload %d has %d bytes, more than %d", i+1, len(one.Data), c.limits.Payload)
		case math.IsInf(p.Score, 0):
			return to, 0, fmt.Errorf("payload %d has the score %v, want a number", i+1, p.Score)
		}
		if size += len(one.Data); size > c.limits.IDPayload {
			return to, 0, fmt.Errorf("has more than %d bytes of payloads", c.limits.IDPayload)
		}
		lost |= loss
		one.Score = p.Score
		to.Payloads = append(to.Payloads, one)
	}
	if len(to.Payloads) == 0 {
		return to, lost, nil
	}
	rules := queue.PushRules{PayloadBytes: c.limits.Payload, Payloads: c.limits.Payloads, IDPayload: c.limits.IDPayload}
	return to, lost, transfer.Check(&to, &rules) // what a look finds to come, comes
}

// payload is what becomes of what Ruby's dump_payload made.
func (c converter) payload(data []byte) (p Payload, loss marshal.Loss, err error) {
	if c.form == Bytes {
		p.Data = data
		p.Header, err = lowkiq.NewHeader(wire.BytesHeader(nil, data))
		return p, 0, err
	}
	p.Data, loss, err = marshal.JSON(data)
	switch {
	case err != nil:
		return p, 0, err
	case string(p.Data) == `""`: // as pushes store the empty text
		p.Data = nil
	case bytes.HasPrefix(p.Data, []byte(`{"$base64":`)) && !bytes.Equal(wire.AppendPayload(nil, p.Data), p.Data):
		return p, 0, errors.New(`a hash with the one key "$base64", which says that bytes follow`)
	}
	return p, loss, nil
}

// rubys makes a payload of the new queue what Ruby's load_payload takes for the same. What was pushed as bytes is what a dump_payload made; JSON can be
// made Ruby's only where Ruby's Marshal is what it loads.
func (c converter) rubys(p *Payload) ([]byte, error) {
	dumped := bytes.HasPrefix(p.Data, []byte{4, 8})
	text := p.Data
	if len(text) == 0 {
		text = []byte(`""`)
	}
	switch asBytes := p.Header.Bytes() || !wire.IsJSON(text); {
	case asBytes && (c.form == Bytes || dumped):
		return p.Data, nil
	case asBytes:
		return nil, errors.New("it is no JSON, and Ruby's Marshal has not dumped it")
	case c.form == Bytes:
		return nil, errors.New("it was pushed as JSON, and not as what Lowkiq.dump_payload makes")
	}
	return marshal.Dump(text)
}

// micros is a time of Ruby's, seconds since 1970, in microseconds. The error says that it is none.
func micros(seconds float64) (int64, error) {
	if !(seconds >= 0 && seconds <= lowkiq.MaxPerformAt) {
		return 0, fmt.Errorf("%v is no time", seconds)
	}
	return int64(math.Round(seconds * 1e6)), nil
}
