package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/lowkiq/lowkiq"
)

// AppendEvent appends the event of a hook as a line of JSON, without the newline:
//
//	{"event":{"kind":"exhausted","queue":"orders","shard":3,"jobs":[{"id":"a","retry_count":2,"payloads":[…],"error":"…"}]}}
//	{"event":{"kind":"recovered","queue":"orders","shard":3,"recovered":12,"crashes":0,"from":"n2/…"}}
//
// Everything is below a single key, so that no reader takes it for a batch.
func AppendEvent(dst []byte, e *lowkiq.Event) []byte {
	dst = appendString(append(dst, `{"event":{"kind":`...), string(e.Kind))
	dst = appendShard(append(dst, ','), e.Shard)
	if e.Kind == lowkiq.Recovered {
		dst = strconv.AppendInt(append(dst, `,"recovered":`...), int64(e.Recovered), 10)
		dst = strconv.AppendInt(append(dst, `,"crashes":`...), int64(e.Crashes), 10)
		dst = appendString(append(dst, `,"from":`...), e.From)
		return append(dst, `}}`...)
	}
	dst = append(dst, `,"jobs":[`...)
	for i := range e.Jobs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendID(append(dst, '{'), e.Jobs[i].ID)
		dst = strconv.AppendInt(append(dst, `,"retry_count":`...), int64(e.Jobs[i].RetryCount), 10)
		dst = appendPayloads(dst, e.Jobs[i].Payloads)
		text := ""
		if e.Jobs[i].Err != nil {
			text = e.Jobs[i].Err.Error()
		}
		dst = append(appendString(append(dst, `,"error":`...), text), '}')
	}
	return append(dst, `]}}`...)
}

// ParseEvent parses an event, for HTTP endpoints and child processes written in Go. ok is false if
// the text is not an event. It may be a batch then.
func ParseEvent(text []byte) (e *lowkiq.Event, ok bool, err error) {
	var all struct {
		Event *struct {
			Kind               lowkiq.EventKind
			Queue              string
			Shard              int
			Jobs               []jobText
			Recovered, Crashes int
			From               string
		}
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, false, fmt.Errorf("event: %w", err)
	}
	read := all.Event
	if read == nil {
		return nil, false, nil
	}
	if read.Queue == "" || read.Kind == "" {
		return nil, true, errors.New("event: want kind and queue, as a node sends them")
	}
	e = &lowkiq.Event{
		Kind: read.Kind, Shard: lowkiq.Shard{Queue: read.Queue, Index: read.Shard}, Recovered: read.Recovered, Crashes: read.Crashes, From: read.From,
	}
	for i := range read.Jobs {
		job, err := read.Jobs[i].decodeJob()
		if err != nil {
			return nil, true, fmt.Errorf("event: job %q: %w", job.ID, err)
		}
		if job.ID == "" || len(job.ID) > lowkiq.MaxIDBytes {
			return nil, true, fmt.Errorf("event: job %d has an id of %d bytes, want 1 to %d", i+1, len(job.ID), lowkiq.MaxIDBytes)
		}
		e.Jobs = append(e.Jobs, lowkiq.Ended{Job: job, Err: errors.New(read.Jobs[i].Error)})
	}
	return e, true, nil
}
