package web

import (
	"encoding/json"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/wire"
)

// The bodies of requests, and of the answers that are not of package status. API and commands share a type for
// each shape. openapi.yaml is made from these types, and has the comment of a field as its description. Scripts
// rely on the JSON, so fields may be added and never renamed.

// Selection is the body of an action on jobs. It has ids, or describes jobs by its other fields.
type Selection struct {
	IDs       []string `json:"ids,omitempty" either:"ids"`
	IDsBase64 [][]byte `json:"ids_base64,omitempty" either:"ids"` // ids that are not UTF-8
	All       *bool    `json:"all,omitempty" either:"ids"`        // all jobs that the other fields describe; not together with ids
	Filter
}

// Filter chooses the jobs of an action among all jobs.
type Filter struct {
	// A state for which the action is possible. Default: all of these.
	State  string      `json:"state,omitempty" enum:"ready scheduled retry failed held blocked morgue"`
	Kind   string      `json:"kind,omitempty"`                          // of the last error, as errors gives it; a space means jobs without an error
	By     string      `json:"by,omitempty" enum:"due time id retries"` // the unit of from and to; default: due, and time for blocked and buried jobs
	From   string      `json:"from,omitempty"`                          // first id, retry count or time, as text, as in a list
	To     string      `json:"to,omitempty"`                            // last id, retry count or time
	Limit  json.Number `json:"limit,omitempty" min:"1" max:"10000"`     // maximum number of jobs of this step; default: 10,000
	Cursor string      `json:"cursor,omitempty"`                        // next of the previous step
	DryRun bool        `json:"dry_run,omitempty"`                       // only count the jobs that would be changed
}

// Deletion is the body of a queue's deletion.
type Deletion struct {
	Force  bool `json:"force,omitempty"`   // even if it has jobs
	DryRun bool `json:"dry_run,omitempty"` // only count
}

// Drain is the body of a request to a node.
type Drain struct {
	Undo bool `json:"undo,omitempty"`
}

// JobID is an id in JSON.
type JobID = wire.JobID

// JobIDOf returns the JSON of an id.
func JobIDOf(id string) JobID { return wire.NewJobID(id) }

// Job is a job and where it is. Some fields exist only in some states, or on pages.
//
// It is for readers. The API writes it by appendListed, because encoding/json would rewrite payloads.
type Job struct {
	JobID
	Payloads     []JobPayload `json:"payloads"`             // lowest score first
	PerformIn    *float64     `json:"perform_in"`           // when it became or becomes due, unix seconds
	RetryCount   int          `json:"retry_count" min:"-1"` // failures in a row, less 1. It is -1 before the first failure, and 0 until the first retry
	Error        string       `json:"error"`                // of the last failure
	State        browse.State `json:"state" enum:"ready scheduled retry held in_flight blocked morgue"`
	Shard        int          `json:"shard"`
	Flight       int64        `json:"flight,omitempty"`        // of a job in flight
	Parked       int          `json:"parked,omitempty"`        // payloads pushed while the job was in flight
	Since        float64      `json:"since,omitempty"`         // when a job in flight was popped, unix seconds
	Progress     *Progress    `json:"progress,omitempty"`      // of a job in flight, if its handler has noted any
	BuriedAt     float64      `json:"buried_at,omitempty"`     // of a job in the morgue, unix seconds
	PayloadCount int          `json:"payload_count,omitempty"` // on a page, the number of all payloads
	PayloadBytes int64        `json:"payload_bytes,omitempty"` // on a page, the bytes of all payloads
	Cut          bool         `json:"cut,omitempty"`           // on a page, payloads beyond 4 KiB or a part of the error are left out
}

// Progress has the notes of a handler on a job in flight.
type Progress struct {
	Share float64 `json:"share" min:"0" max:"1"` // share of the work that is done
	Log   string  `json:"log"`                   // the last line
	At    float64 `json:"at"`                    // unix seconds
}

// Note is the body of a handler's note.
type Note struct {
	Progress float64 `json:"progress,omitempty" min:"0" max:"1"` // share of the work that is done
	Log      string  `json:"log,omitempty"`                      // a line of at most 1 KiB; pages show the last line
}

// Noted answers a note.
type Noted struct {
	JobID
	Noted bool `json:"noted"`
}

// JobPayload is a payload of a job.
type JobPayload struct {
	Score   float64           `json:"score"`
	Payload json.RawMessage   `json:"payload"` // JSON as it was pushed. Other bytes, and a payload that was cut, are {"$base64":"…"}
	Header  map[string]string `json:"header,omitempty"`
}

// JobPage is a part of a list of jobs.
//
// J is [Job], or json.RawMessage for programs that pass jobs on as they are.
type JobPage[J any] struct {
	Jobs     []J    `json:"jobs"` // a page may have fewer jobs than the limit, even none, although more follow
	More     bool   `json:"more"`
	Next     string `json:"next"`     // cursor of the next page; empty after the last page
	Examined int    `json:"examined"` // jobs that were examined, about 10,000 at most
	Ordered  bool   `json:"ordered"`  // false if the list is too long to be sorted; it then has the order of storage
	// Through is the share of all jobs that a search has examined, 0 to 1, if it follows the order of storage.
	Through float64 `json:"through,omitempty"`
}

// PushedJob is a job of a push, as package wire reads it.
type PushedJob struct {
	JobID // of 1 to 512 bytes
	// any JSON, or {"$base64":"…"} for bytes, which the handler gets in the same form. Default: no bytes
	Payload json.RawMessage `json:"payload,omitempty"`
	Score   float64         `json:"score,omitempty"` // lowest first; default: the time of the push, so that pushes keep their order
	// when it is due, unix seconds; default: now
	PerformIn float64 `json:"perform_in,omitempty" min:"1000000000" max:"8589934592"`
	// whether its id goes before all ids of its shard that are not urgent, until its waiting payloads are handled
	Urgent bool `json:"urgent,omitempty"`
	// for its handler, at most 4 KiB; default: traceparent and tracestate of the request
	Header map[string]string `json:"header,omitempty"`
}

// Pushed answers a push, in the order of its jobs.
type Pushed struct {
	Results []PushResult `json:"results"`
}

// PushResult is the answer to one pushed job.
type PushResult struct {
	JobID
	OK     bool   `json:"ok"`
	Merged bool   `json:"merged"` // an equal payload was already waiting
	Error  string `json:"error,omitempty"`
	// The job was not sent, or it is unknown whether it was stored. Push the failed jobs again, in the same order. Without retry, the
	// job or an earlier payload of its id was refused.
	Retry bool `json:"retry,omitempty"`

	State  lowkiq.ReplyState `json:"state,omitempty"`  // with wait: how the payload has ended. If it was buried, error says why
	Result json.RawMessage   `json:"result,omitempty"` // with wait: the handler's answer as JSON, or {"$base64":"…"} for other bytes
	// There is a result, or the error of a burial, but the node has no memory for it now. Ask for the reply.
	ResultKept bool   `json:"result_kept,omitempty"`
	Token      string `json:"token,omitempty"` // with wait: the reply can be read under it later
}

// Reply says how a call has ended.
type Reply struct {
	JobID
	State  lowkiq.ReplyState `json:"state"`
	Result json.RawMessage   `json:"result,omitempty"` // the handler's answer as JSON, or {"$base64":"…"} for other bytes; absent if there is none
	Error  string            `json:"error,omitempty"`  // why it was buried
}

// Changed says how far an action on jobs has come. Jobs that are pushed after its start do not count.
type Changed struct {
	Changed int    `json:"changed"`
	Skipped int    `json:"skipped"` // jobs that were not there
	Left    int    `json:"left"`    // jobs that are still to be examined
	Next    string `json:"next"`    // cursor of the next step; empty after the last step
}

// ErrorGroup has the jobs whose last errors are of the same kind.
type ErrorGroup struct {
	Kind     string  `json:"kind"` // first line of the error with # for each number, id and quoted text; lists and actions take it
	Jobs     int     `json:"jobs"`
	Payloads int     `json:"payloads"`
	Newest   float64 `json:"newest"` // when the newest job was blocked or buried, or the latest due time of failed jobs; unix seconds
	Example  JobID   `json:"example"`
	Error    string  `json:"error"` // of the example
}

// Errors are the kinds of errors of a queue's jobs in a state. The kind with the largest number of jobs comes first.
type Errors struct {
	State    browse.State `json:"state" enum:"failed retry blocked morgue"`
	Groups   []ErrorGroup `json:"groups"`
	Examined int          `json:"examined"` // number of jobs that were examined, newest first
	All      bool         `json:"all"`      // all jobs of the state were examined
}

// Queues has all queues with their figures.
type Queues struct {
	Queues []status.Queue `json:"queues"`
}

// Paused answers a pause and its end.
type Paused struct {
	Paused bool   `json:"paused"`
	Queue  string `json:"queue"`
	// MayBegin has the instances that have not noticed the pause within 30 s. Until they notice it, or their
	// leases end, they may begin jobs of the queue.
	MayBegin []string `json:"may_begin,omitempty"`
}

// Deleted answers the deletion of a queue with the numbers of its jobs.
type Deleted struct {
	Queue      string `json:"queue"`
	Deleted    bool   `json:"deleted"`              // false for a dry run
	Before     bool   `json:"before,omitempty"`     // it was deleted before; nothing was done
	NeedsForce bool   `json:"needs_force"`          // for a dry run: the queue is not empty
	Jobs       int    `json:"jobs"`                 // ids that are not done
	Morgue     int    `json:"morgue"`               // payloads in the morgue
	Aside      int    `json:"unreadable,omitempty"` // records that a repair has set aside
	Outgoing   int    `json:"outgoing,omitempty"`   // follow-ups that were not delivered
	// for a dry run, a sentence for each recurring entry and each rule then of the answering node that pushes to the queue
	NeededBy []string `json:"needed_by,omitempty"`
}

// Outgoing has the follow-ups of a queue that wait to be delivered to other queues.
type Outgoing struct {
	Queue   string         `json:"queue"`
	Waiting int            `json:"waiting"`          // number of all waiting follow-ups
	Reason  string         `json:"reason,omitempty"` // why they wait, if a node knows it
	First   []OutgoingPush `json:"first"`            // the first of each shard, at most 100 in all, the oldest first
}

// OutgoingPush is a follow-up that waits.
type OutgoingPush struct {
	JobID
	Shard int     `json:"shard"`
	Since float64 `json:"since"`           // unix seconds
	To    string  `json:"to"`              // the queue that gets it
	Bytes int     `json:"bytes"`           // size of its payload, as it is stored
	Ended string  `json:"ended,omitempty"` // buried or expired, if the rule then passes the payload on
}

// OutgoingDrop is the body of a request to drop follow-ups.
type OutgoingDrop struct {
	Drop int `json:"drop"` // number of follow-ups, the oldest first
}

// OutgoingDropped is the answer to an OutgoingDrop.
type OutgoingDropped struct {
	Dropped int `json:"dropped"`
	Waiting int `json:"waiting"` // follow-ups that are left
}

// Plan has the shards that would move.
type Plan struct {
	Moves []status.Move `json:"moves"`
}

// Drained answers a drain and its undoing.
type Drained struct {
	Draining bool   `json:"draining"`
	Instance string `json:"instance"` // that got the request
	Node     string `json:"node"`
	Noticed  bool   `json:"noticed"` // its lease confirms the request
	Shards   int    `json:"shards"`  // that it still owns, by its lease
}

// Figures are the figures of a queue under Ruby Lowkiq's names. Length, morgue_length and lag are those of its
// /api/v1/stats, and the others those of its dashboard.
type Figures struct {
	Length       int   `json:"length"`        // waiting ids
	MorgueLength int   `json:"morgue_length"` // ids in the morgue
	Lag          int   `json:"lag"`           // age of the oldest due job, whole seconds
	Processed    int64 `json:"processed"`
	Failed       int64 `json:"failed"`
	Busy         int   `json:"busy"`     // ids in flight
	Enqueued     int   `json:"enqueued"` // fresh + retries = length
	Fresh        int   `json:"fresh"`
	Retries      int   `json:"retries"` // failed jobs: blocked, or waiting for the next attempt, due or not
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

// RedisServer is a Redis server with its own figures. A figure that the server does not report is 0 or "".
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
