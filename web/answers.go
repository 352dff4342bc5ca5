package web

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/status"
)

// The bodies of requests, and of the answers that are not of package status. There is one type for
// each shape, for the API and for the commands that ask it, and a test holds openapi.yaml against
// its fields. Scripts rely on the JSON: add fields, never rename any.

// Selection is the body of an action on jobs: ids, or all that the other fields describe.
type Selection struct {
	IDs       []string    `json:"ids,omitempty"`
	IDsBase64 [][]byte    `json:"ids_base64,omitempty"` // ids that are not UTF-8
	All       *bool       `json:"all,omitempty"`
	State     string      `json:"state,omitempty"`
	Kind      string      `json:"kind,omitempty"` // of the last error
	By        string      `json:"by,omitempty"`   // the unit of from and to
	From      string      `json:"from,omitempty"`
	To        string      `json:"to,omitempty"`
	Limit     json.Number `json:"limit,omitempty"`
	Cursor    string      `json:"cursor,omitempty"`  // the next of the step before
	DryRun    bool        `json:"dry_run,omitempty"` // count, change nothing
}

// Deletion is the body of a queue's deletion.
type Deletion struct {
	Force  bool `json:"force,omitempty"`   // with all that is in it
	DryRun bool `json:"dry_run,omitempty"` // count, change nothing
}

// Drain is the body of a request to a node.
type Drain struct {
	Undo bool `json:"undo,omitempty"`
}

// JobID is an id in JSON: a string, or base64 where it is not UTF-8.
type JobID struct {
	Text   *string `json:"id,omitempty"`
	Base64 []byte  `json:"id_base64,omitempty"`
}

// JobIDOf is the JSON of an id.
func JobIDOf(id string) JobID {
	if utf8.ValidString(id) {
		return JobID{Text: &id}
	}
	return JobID{Base64: []byte(id)}
}

// ID is the id itself.
func (j JobID) ID() string {
	if j.Text != nil {
		return *j.Text
	}
	return string(j.Base64)
}

// Job is a job and where it is, for readers: the API writes it by appendListed, as payloads are
// bytes that encoding/json would rewrite. What is not there depends on the state, or is of pages.
type Job struct {
	JobID
	Payloads     []JobPayload `json:"payloads"`
	PerformIn    *float64     `json:"perform_in"` // when it became or becomes due, unix seconds
	RetryCount   int          `json:"retry_count"`
	Error        string       `json:"error"`
	State        browse.State `json:"state"`
	Shard        int          `json:"shard"`
	Flight       int64        `json:"flight,omitempty"`
	Parked       int          `json:"parked,omitempty"`
	Since        float64      `json:"since,omitempty"` // unix seconds: when it was popped
	Progress     *Progress    `json:"progress,omitempty"`
	BuriedAt     float64      `json:"buried_at,omitempty"` // unix seconds
	PayloadCount int          `json:"payload_count,omitempty"`
	PayloadBytes int64        `json:"payload_bytes,omitempty"`
	Cut          bool         `json:"cut,omitempty"` // there is more of payloads or error than the page has
}

// Progress is what a handler has noted of a job in flight.
type Progress struct {
	Share float64 `json:"share"` // 0 to 1
	Log   string  `json:"log"`   // the last line
	At    float64 `json:"at"`    // unix seconds
}

// Note is the body of a handler's note.
type Note struct {
	Progress float64 `json:"progress,omitempty"`
	Log      string  `json:"log,omitempty"`
}

// Noted answers it.
type Noted struct {
	JobID
	Noted bool `json:"noted"`
}

// JobPayload is a payload of a job.
type JobPayload struct {
	Score   float64           `json:"score"`
	Payload json.RawMessage   `json:"payload"`
	Header  map[string]string `json:"header,omitempty"`
}

// JobPage is a part of a list; J is [Job], or json.RawMessage for those who hand it on as it is.
type JobPage[J any] struct {
	Jobs     []J    `json:"jobs"`
	More     bool   `json:"more"`
	Next     string `json:"next"` // cursor of the next page; empty after the last one
	Examined int    `json:"examined"`
	Ordered  bool   `json:"ordered"`
	// Through is the share of all jobs that a search has looked through, 0 to 1, if it goes through all as they are stored.
	Through float64 `json:"through,omitempty"`
}

// Pushed answers a push, in the order of its jobs.
type Pushed struct {
	Results []PushResult `json:"results"`
}

// PushResult is the answer to one pushed job.
type PushResult struct {
	JobID
	OK     bool   `json:"ok"`
	Merged bool   `json:"merged"` // an equal payload was waiting already
	Error  string `json:"error,omitempty"`
	// Retry: the job was not sent, or it is unknown whether it was stored; pushing it
	// again is safe and may work. Without it, the job was refused for what it is.
	Retry bool `json:"retry,omitempty"`

	// Of a push with wait:
	State  lowkiq.ReplyState `json:"state,omitempty"`  // pending, done, buried (then error says why), deleted or expired
	Result json.RawMessage   `json:"result,omitempty"` // what the handler answered, if anything
	// ResultKept: there is a result, for which the node has no memory now; ask for the reply.
	ResultKept bool   `json:"result_kept,omitempty"`
	Token      string `json:"token,omitempty"` // gives the reply later
}

// Reply is how a call has ended.
type Reply struct {
	JobID
	State  lowkiq.ReplyState `json:"state"`
	Result json.RawMessage   `json:"result,omitempty"`
	Error  string            `json:"error,omitempty"` // why it was buried
}

// Changed says how far an action on jobs has come.
type Changed struct {
	Changed int    `json:"changed"`
	Skipped int    `json:"skipped"` // they were not there
	Left    int    `json:"left"`    // jobs still to look at
	Next    string `json:"next"`    // cursor of the next step; empty after the last one
}

// ErrorGroup is the jobs whose last errors are of one kind.
type ErrorGroup struct {
	Kind     string  `json:"kind"` // what lists and actions take as their kind
	Jobs     int     `json:"jobs"`
	Payloads int     `json:"payloads"`
	Newest   float64 `json:"newest"` // unix seconds: of blocked and buried jobs the time of the newest, of failed ones the latest due time
	Example  JobID   `json:"example"`
	Error    string  `json:"error"` // of the example
}

// Errors are the kinds of errors of a queue's jobs in one state, most jobs first.
type Errors struct {
	State    browse.State `json:"state"`
	Groups   []ErrorGroup `json:"groups"`
	Examined int          `json:"examined"` // how many jobs were looked at, the newest ones
	All      bool         `json:"all"`      // there are no others
}

// Queues are all queues with their figures.
type Queues struct {
	Queues []status.Queue `json:"queues"`
}

// Paused answers a pause and its end.
type Paused struct {
	Paused bool   `json:"paused"`
	Queue  string `json:"queue"`
	// MayBegin are instances that have not noticed the pause within 30 s. Until they do, or their leases
	// end, they may begin jobs of the queue.
	MayBegin []string `json:"may_begin,omitempty"`
}

// Deleted answers the deletion of a queue: what was in it, or is.
type Deleted struct {
	Queue      string `json:"queue"`
	Deleted    bool   `json:"deleted"`              // false: a dry run
	Before     bool   `json:"before,omitempty"`     // it was deleted before; nothing was done
	NeedsForce bool   `json:"needs_force"`          // a dry run: it is not empty
	Jobs       int    `json:"jobs"`                 // ids that are not done
	Morgue     int    `json:"morgue"`               // payloads in the morgue
	Aside      int    `json:"unreadable,omitempty"` // records that a repair has set aside
}

// Plan is what would move.
type Plan struct {
	Moves []status.Move `json:"moves"`
}

// Drained answers a drain and its undoing.
type Drained struct {
	Draining bool   `json:"draining"`
	Instance string `json:"instance"` // that has got the request
	Node     string `json:"node"`
}

// Figures are a queue in the words of Ruby Lowkiq: length, morgue_length and lag
// as its /api/v1/stats has them, the others as its dashboard shows them.
type Figures struct {
	Length       int   `json:"length"`        // ids that wait
	MorgueLength int   `json:"morgue_length"` // ids in the morgue
	Lag          int   `json:"lag"`           // age of the oldest due job, whole seconds
	Processed    int64 `json:"processed"`
	Failed       int64 `json:"failed"`
	Busy         int   `json:"busy"`     // ids in flight
	Enqueued     int   `json:"enqueued"` // fresh + retries = length
	Fresh        int   `json:"fresh"`
	Retries      int   `json:"retries"` // failed: waiting for the next attempt, due or not, or blocked
	Dead         int   `json:"dead"`    // = morgue_length
}

// Stats are the figures of all queues.
type Stats struct {
	Total    Figures            `json:"total"`
	ByWorker map[string]Figures `json:"by_worker"` // by queue
}

// Redis are the Redis servers that hold a cluster's jobs.
type Redis struct {
	URL     string        `json:"url"` // hosts, without credentials
	Servers []RedisServer `json:"servers"`
}

// RedisServer is one Redis server. The figures are its own; what it does not say is 0 or "".
type RedisServer struct {
	Address          string `json:"address"`
	Version          string `json:"version"`
	Role             string `json:"role"`
	UptimeDays       int    `json:"uptime_in_days"`
	ConnectedClients int    `json:"connected_clients"`
	UsedMemory       int    `json:"used_memory"` // bytes
	UsedMemoryHuman  string `json:"used_memory_human"`
	PeakMemoryHuman  string `json:"used_memory_peak_human"`
	MaxMemory        int    `json:"maxmemory"` // bytes; 0 = no limit
	MaxMemoryPolicy  string `json:"maxmemory_policy"`
}
