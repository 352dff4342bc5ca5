package movein

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/migrate/marshal"
	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/queue/transfer"
	"github.com/lowkiq/lowkiq/wire"
)

// Entry is a waiting job, or a job of the morgue, as the new queue gets it. An entry with an Err only tells the new queue
// that the job does not come.
type Entry = transfer.Entry

// Payload is data with a score.
type Payload = transfer.Payload

// Result is the new queue's answer to an entry.
type Result struct {
	Refused error // the reason why the entry stays in the old queue
	Err     error // the entry must be sent again
}

// ImportInto returns an Import function for a [Mover], which imports entries into q.
func ImportInto(q *protocol.Queue) func(ctx context.Context, source string, entries []Entry) ([]Result, error) {
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

// Form says how the bytes of payloads are converted.
type Form string

// The forms of payloads. All payloads of a queue have the same form.
const (
	JSON  Form = "json"    // plain data that Ruby's Marshal dumped becomes JSON
	Bytes Form = "marshal" // bytes stay as Ruby's dump_payload made them
)

// Limits are the limits of the new queue.
type Limits struct {
	Payload, Payloads, IDPayload int // bytes of a payload; payloads of an id; bytes of all payloads of an id
}

// DefaultLimits are the limits of a queue without rules.
var DefaultLimits = Limits{lowkiq.MaxPayloadBytes, lowkiq.MaxPayloads, lowkiq.MaxIDPayload}

// converter converts jobs between the old queue and the new queue.
type converter struct {
	form   Form
	limits Limits
	dueNow bool // a job that Ruby never runs becomes due now
}

// convertEntry returns the new queue's job for an entry of the old queue, and the kinds of detail that its JSON does not
// keep. An error is the reason why the entry stays in the old queue. A result without payloads means that there is nothing
// to move.
func (c converter) convertEntry(e *rubyqueue.Entry) (to Entry, lost marshal.Loss, err error) {
	if waiting, flight := e.Counts(); max(waiting, flight) > c.limits.Payloads { // such an entry has not read all of them
		return to, 0, fmt.Errorf("has %d payloads, more than %d", max(waiting, flight), c.limits.Payloads)
	}
	job := rubyqueue.SettleEntry(e)
	to = Entry{Number: e.Number, ID: e.ID, Morgue: e.Morgue}
	if job.Error != nil {
		to.Error = *job.Error
	}
	switch at, err := toMicros(job.At); {
	case e.Morgue && err == nil:
		to.Buried = at
	case e.Morgue:
		return to, 0, fmt.Errorf("was buried at %v, which is no time", job.At)
	case err == nil:
		to.Due = at
	case !c.dueNow:
		return to, 0, fmt.Errorf("is due at %v, so Ruby never runs it; with --due-now it is moved and becomes due now", job.At)
	}
	if to.RetryCount = int(job.Retries); float64(to.RetryCount) != job.Retries || to.RetryCount < -1 || to.RetryCount > math.MaxInt32 {
		return to, 0, fmt.Errorf("has the retry count %v", job.Retries)
	}
	switch {
	case e.ID == "":
		return to, 0, fmt.Errorf("has no id: nil and the empty string are not ids here")
	case len(e.ID) > lowkiq.MaxIDBytes:
		return to, 0, fmt.Errorf("has an id of %d bytes, longer than %d", len(e.ID), lowkiq.MaxIDBytes)
	case len(job.Payloads) > c.limits.Payloads:
		return to, 0, fmt.Errorf("has %d payloads, more than %d", len(job.Payloads), c.limits.Payloads)
	}
	size := 0
	for i, p := range job.Payloads {
		one, loss, err := c.convertPayload(p.Data)
		var refused *marshal.Error
		switch {
		case errors.As(err, &refused) && refused.Long:
			return to, 0, fmt.Errorf("payload %d has more than %d bytes as JSON", i+1, c.limits.Payload)
		case err != nil:
			return to, 0, fmt.Errorf("payload %d is not plain data: %w", i+1, err)
		case len(one.Data) > c.limits.Payload:
			return to, 0, fmt.Errorf("payload %d has %d bytes, more than %d", i+1, len(one.Data), c.limits.Payload)
		case math.IsInf(p.Score, 0):
			return to, 0, fmt.Errorf("payload %d has the score %v, which must be a finite number", i+1, p.Score)
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
	rules := protocol.PushRules{Push: rules.Push{PayloadBytes: c.limits.Payload, Payloads: c.limits.Payloads, IDPayload: c.limits.IDPayload}}
	return to, lost, transfer.Check(&to, &rules) // so a survey refuses the same entries as the import
}

// convertPayload returns the payload that the new queue stores for bytes of Ruby's dump_payload.
func (c converter) convertPayload(data []byte) (p Payload, loss marshal.Loss, err error) {
	if c.form == Bytes {
		p.Data = data
		p.Header, err = lowkiq.NewHeader(wire.BytesHeader(nil, data))
		return p, 0, err
	}
	p.Data, loss, err = marshal.JSON(data, c.limits.Payload)
	switch {
	case err != nil:
		return p, 0, err
	case string(p.Data) == `""`: // pushes store the empty string so
		p.Data = nil
	case bytes.HasPrefix(p.Data, []byte(`{"$base64":`)) && !bytes.Equal(wire.AppendPayload(nil, p.Data), p.Data):
		return p, 0, errors.New(`a hash whose only key is "$base64", which is reserved for bytes`)
	}
	return p, loss, nil
}

// toRuby returns bytes that Ruby's load_payload reads as the same payload. A payload that was pushed as bytes is the work of
// a dump_payload and stays as it is. JSON becomes a dump of Ruby's Marshal, which only a worker of the form JSON can load.
func (c converter) toRuby(p *Payload) ([]byte, error) {
	dumped := bytes.HasPrefix(p.Data, []byte{4, 8})
	text := p.Data
	if len(text) == 0 {
		text = []byte(`""`)
	}
	switch asBytes := p.Header.Bytes() || !wire.IsJSON(text); {
	case asBytes && (c.form == Bytes || dumped):
		return p.Data, nil
	case asBytes:
		return nil, errors.New("it is neither JSON nor a dump of Ruby's Marshal")
	case c.form == Bytes:
		return nil, errors.New("it was pushed as JSON and not as bytes of Lowkiq.dump_payload")
	}
	return marshal.Dump(text)
}

// toMicros returns a time of Ruby's, in seconds since 1970, as microseconds. The error means that the number is not a time.
func toMicros(seconds float64) (int64, error) {
	if !(seconds >= 0 && seconds <= lowkiq.MaxPerformAt) {
		return 0, fmt.Errorf("%v is no time", seconds)
	}
	return int64(math.Round(seconds * 1e6)), nil
}
