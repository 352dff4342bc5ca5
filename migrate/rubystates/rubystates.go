// Package rubystates answers one question for tests: what does Ruby's Lowkiq leave in Redis, and what
// does it make of that itself?
//
// The states were made by Lowkiq 1.2.2 with Ruby 3.1 and Redis 7.0, and read back by another process of
// the same versions.
package rubystates

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"slices"
	"sync"
	"testing"
)

//go:embed testdata/states.jsonl.gz
var packed []byte

// State is what a worker's queue left in a database of Redis.
type State struct {
	Name, Family    string
	Worker          string // Ruby's class
	QueueName       string `json:"queue_name"` // in the keys
	Shards          int    // as configured now
	MostShards      int    `json:"most_shards"` // the largest count ever, where it is not Shards
	BatchSize       int    `json:"batch_size"`
	MaxRetryCount   int    `json:"max_retry_count"`
	Now             string // Ruby's clock at the end
	Codec           string // of payloads: marshal, json or raw
	ErrorCodec      string `json:"error_codec"` // "reverse": the text that is stored is turned around
	Died            string // between which two transactions of Ruby's
	Keys            map[string]Key
	KeysBase64      map[string]Key `json:"keys_b64"` // whose names are not UTF-8
	Expect          Expect         // what Ruby's restore makes of it
	ExpectCompleted *Expect        `json:"expect_completed"` // what the run that went on made of it
}

// Key is what a key holds. Members, fields and values are base64, scores are decimal text.
type Key struct {
	Type  string
	Value json.RawMessage
}

// Expect is what Ruby itself says of a state.
type Expect struct {
	Jobs        []Job // waiting after every shard was restored
	Morgue      []Job
	Processed   int64
	Failed      int64
	Counts      map[string]int
	RubyMetrics map[string]float64 `json:"ruby_metrics"`
	Leftovers   []Leftover
}

// Job is an id that waits, or lies in the morgue. Scores and times are text, as in the keys.
type Job struct {
	ID            *string
	IDBase64      []byte `json:"id_b64"` // where it is not UTF-8
	Shard         int
	Payloads      []Payload
	PerformIn     string      `json:"perform_in"`
	RetryCount    json.Number `json:"retry_count"`
	UpdatedAt     string      `json:"updated_at"` // in the morgue
	Error         *string
	ErrorBase64   []byte `json:"error_b64"`
	InFlight      bool   `json:"in_flight"`
	InFlightShard *int   `json:"in_flight_shard"`
	BeyondShards  bool   `json:"beyond_shards"`
	Redumped      bool
}

// Payload is a member of an id's payloads, and what it says.
type Payload struct {
	Score         string
	Bytes         []byte          `json:"marshal_b64"` // as stored, whatever the codec
	JSON          json.RawMessage // null where WhyNot is set
	WhyNot        *string         `json:"why_not"` // nil for plain data
	Lossy         []string
	InFlightScore *string `json:"in_flight_score"`
}

// Leftover is what Ruby's view of a queue does not reach any more.
type Leftover struct {
	What     string
	ID       *string
	IDBase64 []byte `json:"id_b64"`
	Payloads []Payload
}

// states are read once: with the race detector that takes seconds.
var states struct {
	once sync.Once
	all  []State
}

// LoadAll returns every state. They are those of all callers: none may be changed.
func LoadAll(t testing.TB) []State {
	t.Helper()
	states.once.Do(func() { states.all = ReadLines[State](t, packed) })
	return slices.Clone(states.all)
}

// ReadLines reads a gzipped file with a JSON object per line.
func ReadLines[T any](t testing.TB, packed []byte) []T {
	t.Helper()
	file, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	for decoder := json.NewDecoder(file); decoder.More(); {
		var one T
		if err := decoder.Decode(&one); err != nil {
			t.Fatalf("line %d: %v", len(all)+1, err)
		}
		all = append(all, one)
	}
	return all
}
