package demodata

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"iter"
)

// Sizes of the stream.
const (
	Count   = 12805 // events
	IDs     = 890   // files
	Hottest = 1949  // events of CHANGELOG.md, the file that changed most
)

//go:embed rqlite-history.jsonl.gz
var packed []byte

// Event is a change of a file.
type Event struct {
	ID      string          `json:"id"`      // path of the file
	Score   float64         `json:"score"`   // position in the stream, from 1
	Payload json.RawMessage `json:"payload"` // compact JSON of a [Change], byte for byte as in the stream
}

// Change is the payload of an event.
type Change struct {
	Commit string `json:"commit"` // abbreviated hash of the commit
	Time   int64  `json:"time"`   // time of the commit, in unix seconds
	Change string `json:"change"` // A added, M modified, D deleted
	Blob   string `json:"blob"`   // abbreviated hash of the file's new content
}

// Open returns the stream as NDJSON, an event per line.
func Open() (io.ReadCloser, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("bundled event stream: %w", err)
	}
	return r, nil
}

// Events yields the events in order. It panics if the bundled file is damaged, which the tests of this package rule out.
func Events() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		r, err := Open()
		if err != nil {
			panic(err)
		}
		defer r.Close()
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			var e Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				panic(fmt.Errorf("bundled event stream: %w", err))
			}
			if !yield(e) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			panic(fmt.Errorf("bundled event stream: %w", err))
		}
	}
}
