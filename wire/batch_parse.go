package wire

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lowkiq/lowkiq"
)

// batchText is a batch as [AppendBatch] writes it.
type batchText struct {
	Queue  string
	Shard  int
	Fence  int64
	Flight int64
	Jobs   []struct {
		ID         string
		IDBase64   []byte `json:"id_base64"`
		RetryCount int    `json:"retry_count"`
		Payloads   []struct {
			Score   float64
			Payload json.RawMessage
		}
	}
}

// ParseBatch reads a batch: it is for HTTP endpoints and child processes that are written
// in Go. What is no batch, or one without a queue or jobs, is an error.
func ParseBatch(text []byte) (*lowkiq.Batch, error) {
	var b batchText
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	if b.Queue == "" || len(b.Jobs) == 0 {
		return nil, errors.New("batch: want queue and jobs, as a node sends them")
	}
	batch := &lowkiq.Batch{Shard: lowkiq.Shard{Queue: b.Queue, Index: b.Shard}, Fence: b.Fence, Flight: b.Flight}
	for _, j := range b.Jobs {
		job := lowkiq.Job{ID: j.ID, RetryCount: j.RetryCount}
		if j.IDBase64 != nil {
			job.ID = string(j.IDBase64)
		}
		for _, p := range j.Payloads {
			d := decoder{lexer: lexer{src: p.Payload}}
			data, fault := d.payload()
			if fault != nil {
				return nil, fmt.Errorf("batch: job %q: payload: %s", job.ID, fault.reason)
			}
			job.Payloads = append(job.Payloads, lowkiq.Payload{Score: p.Score, Data: data})
		}
		batch.Jobs = append(batch.Jobs, job)
	}
	return batch, nil
}
