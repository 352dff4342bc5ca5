// Package status says what a node knows of its cluster. [Status] describes the nodes and the queues, and [Shard] a shard with its
// owner. [Why] explains why no handler has an id, and [Cause] why a queue is slow. [Of] fills these types in from what a node
// knows and from Redis. The API and the command line show them as JSON, and the pages as HTML. Scripts rely on that JSON, so
// fields may be added, and none may be renamed.
package status

import (
	"errors"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Status is what a node knows of its cluster.
type Status struct {
	Cluster    string     `json:"cluster"`
	Generation Generation `json:"generation"`
	Leader     string     `json:"leader"`   // name of the leading node; "" if there is none
	Warnings   []string   `json:"warnings"` // what an operator should mend, as the answering node sees it
	Nodes      []Node     `json:"nodes"`
	Queues     []Queue    `json:"queues"`
}

// Generation names an assignment by the id of the cluster record and the Raft index.
type Generation struct {
	Record string `json:"record"`
	Index  uint64 `json:"index"`
}

// NodeState is the state of a node.
type NodeState string

// The states of a node.
const (
	Live     NodeState = "live"
	Draining NodeState = "draining"
	Gone     NodeState = "gone"
)

// Node is a node, as the answering node sees it.
type Node struct {
	Name     string    `json:"name"`
	Instance string    `json:"instance"`
	State    NodeState `json:"state"`
	LeaseAge float64   `json:"lease_age_s"` // seconds since the lease was renewed
	Voter    bool      `json:"voter"`
	Shards   int       `json:"shards"`           // shards it owns
	Static   string    `json:"static,omitempty"` // which shards a static node owns, such as "0 of 3"; "" for other nodes
	HTTP     string    `json:"http"`             // address of its API
	Version  string    `json:"version"`          // version of lowkiq that it runs, as in lowkiq_build_info; "" if it is unknown
	Since    float64   `json:"since"`            // start of the instance by Redis's clock, unix seconds; 0 if it is unknown
	Applied  uint64    `json:"applied"`          // index of the newest assignment that it has applied; 0 if there is none
	Load     *Load     `json:"load,omitempty"`   // absent if it has not measured its load yet, or cannot
}

// Load is what the process of a node uses, at most ten seconds old.
type Load struct {
	CPU    float64 `json:"cpu"`          // mean number of CPUs in use; processes of handlers do not count
	Memory int64   `json:"memory_bytes"` // resident memory; processes of handlers do not count
	Slots  int     `json:"slots"`        // its concurrency
	Busy   int     `json:"slots_busy"`   // handler calls
}

// Queue is a queue in figures.
type Queue struct {
	Name      string          `json:"name"`
	Shards    int             `json:"shards"`
	Paused    bool            `json:"paused"`
	Unhandled bool            `json:"unhandled"` // no living node handles it
	Lag       float64         `json:"lag_s"`     // age of the oldest due job, seconds; 0 if there is none
	Jobs      protocol.Counts `json:"jobs"`
	Morgue    int             `json:"morgue"`            // payloads in the morgue
	Outgoing  int             `json:"outgoing"`          // follow-ups that wait to be delivered to other queues
	Processed int64           `json:"processed"`         // ids acked, ever
	Failed    int64           `json:"failed"`            // failures of ids, ever
	Codec     string          `json:"codec"`             // codec of stored payloads; "" if they are stored as they are pushed
	Limits    Limits          `json:"limits"`            // of pushes, the defaults filled in
	Causes    []Cause         `json:"causes"`            // reasons why it cannot go faster now, the most important reason first
	Reshard   *Reshard        `json:"reshard,omitempty"` // absent unless the queue is being resharded
}

// Limits are the bounds of a queue for its pushes.
type Limits struct {
	PayloadBytes int `json:"payload_bytes"` // maximum bytes of a payload, as it is stored
	Payloads     int `json:"id_payloads"`   // maximum number of payloads that wait for an id
	IDPayload    int `json:"id_bytes"`      // maximum bytes of payloads that wait for an id
}

// ShardState says whether a shard has the owner that it should have.
type ShardState string

// The states of a shard.
const (
	Owned    ShardState = "owned"    // by the node that should own it
	Claiming ShardState = "claiming" // by no live node yet; a node should take it
	Leaving  ShardState = "draining" // by a live node that should give it away
	Unowned  ShardState = "unowned"  // by no live node, and none should take it
)

// Shard is a shard with its owner.
type Shard struct {
	Queue    string     `json:"queue"`
	Index    int        `json:"index"`
	Assigned string     `json:"assigned"` // name of the node that should own it; "" if there is none
	Owner    string     `json:"owner"`    // instance that holds the claim; "" if there is none
	Fence    int64      `json:"fence"`
	State    ShardState `json:"state"`
	Lag      float64    `json:"lag_s"` // age of the oldest due job, seconds; 0 if there is none
}

// Owners returns the node that should own a shard, "" if there is none, and the state of the shard. holder is the instance
// that holds its claim, "" if there is none.
type Owners func(shard lowkiq.Shard, holder string) (assigned string, state ShardState)

// Member is a process that gossip knows.
type Member struct {
	Node     string  `json:"node"`
	Instance string  `json:"instance"`
	Boot     string  `json:"boot"`
	State    string  `json:"state" enum:"alive dead left"`
	Address  string  `json:"address"` // of its gossip
	Since    float64 `json:"since"`   // when the answering node learned of the state, unix seconds
	Draining bool    `json:"draining"`
}

// Move is a shard that would get another owner.
type Move struct {
	Queue  string `json:"queue"`
	Index  int    `json:"index"`
	From   string `json:"from"` // "" if there is none
	To     string `json:"to"`   // "" if there is none
	Reason string `json:"reason"`
}

// Why says where an id is, and why no handler has it.
type Why struct {
	ID     string   `json:"id"`
	Queue  string   `json:"queue"`
	Shard  int      `json:"shard"`
	State  string   `json:"state" enum:"ready scheduled retry held in_flight blocked morgue absent"`
	Reason string   `json:"reason"`            // one sentence for people
	Due    *float64 `json:"due_s"`             // seconds until it is due, negative since; null if it never will be
	Since  *float64 `json:"since_s,omitempty"` // seconds for which it has been in flight; absent if it is not
}

// Absent is the state of an id that no job has.
const Absent = "absent"

// Errors of a [Cluster].
var (
	ErrNoCluster   = errors.New("this node is not in a cluster")
	ErrUnknownNode = errors.New("unknown node")
	ErrNodeExists  = errors.New("there is such a node already")
	ErrNotRunning  = errors.New("not running")
	ErrNoAnswer    = errors.New("the owner of its shard has not answered: it is not known whether its run was ended; try again")
	ErrNotHeard    = errors.New("nobody listens under the node's lease: it has just ended, or cannot reach Redis; try again")
)
