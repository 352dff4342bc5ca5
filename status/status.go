// Package status is what a node knows of its cluster, judged: [Status] and its nodes, who owns
// which [Shard] and in which [ShardState], [Why] an id is not with a handler, and which [Cause] keeps a queue. There is one
// type for each shape: [Of] fills it in from what a node knows and from Redis, the API and the command line show it as JSON, pages as
// HTML. Scripts rely on that JSON: add fields, never rename any.
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

// Generation names an assignment: the cluster record's id, then the Raft index.
type Generation struct {
	Record string `json:"record"`
	Index  uint64 `json:"index"`
}

// NodeState is how a node takes part.
type NodeState string

// The states of a node.
const (
	Live     NodeState = "live"
	Draining NodeState = "draining"
	Gone     NodeState = "gone"
)

// Node is one node, as the answering node sees it.
type Node struct {
	Name     string    `json:"name"`
	Instance string    `json:"instance"`
	State    NodeState `json:"state"`
	LeaseAge float64   `json:"lease_age_s"` // seconds since the lease was renewed
	Voter    bool      `json:"voter"`
	Shards   int       `json:"shards"`           // shards it owns
	Static   string    `json:"static,omitempty"` // which shards a static node owns, such as "0 of 3"; "" for other nodes
	HTTP     string    `json:"http"`             // address of its API
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
	Lag       float64         `json:"lag_s"`     // age of the oldest due job, seconds; 0 if none
	Jobs      protocol.Counts `json:"jobs"`
	Morgue    int             `json:"morgue"`            // payloads in the morgue
	Outgoing  int             `json:"outgoing"`          // follow-ups that wait to be delivered to other queues
	Processed int64           `json:"processed"`         // ids acked, ever
	Failed    int64           `json:"failed"`            // failures of ids, ever
	Codec     string          `json:"codec"`             // in which payloads are stored; "" = as they are pushed
	Limits    Limits          `json:"limits"`            // of pushes, the defaults filled in
	Causes    []Cause         `json:"causes"`            // what keeps it from going faster now, the most important one first
	Reshard   *Reshard        `json:"reshard,omitempty"` // absent unless the queue is being resharded
}

// Limits are what a queue takes from all that push.
type Limits struct {
	PayloadBytes int `json:"payload_bytes"` // longest payload as stored, bytes
	Payloads     int `json:"id_payloads"`   // most payloads waiting for one id
	IDPayload    int `json:"id_bytes"`      // most bytes of payloads waiting for one id
}

// ShardState is how a shard is looked after.
type ShardState string

// The states of a shard.
const (
	Owned    ShardState = "owned"    // by the node that should own it
	Claiming ShardState = "claiming" // by no live node yet; a node should take it
	Leaving  ShardState = "draining" // by a live node that is to give it away
	Unowned  ShardState = "unowned"  // and no live node is to take it
)

// Shard is one shard.
type Shard struct {
	Queue    string     `json:"queue"`
	Index    int        `json:"index"`
	Assigned string     `json:"assigned"` // name of the node that should own it; "" = none
	Owner    string     `json:"owner"`    // instance that holds the claim; "" = none
	Fence    int64      `json:"fence"`
	State    ShardState `json:"state"`
	Lag      float64    `json:"lag_s"` // age of the oldest due job, seconds; 0 if none
}

// Owners says of a shard, and of the instance that holds its claim ("" = none), which
// node should own it and how it is looked after.
type Owners func(shard lowkiq.Shard, holder string) (assigned string, state ShardState)

// Member is what gossip says of a process.
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
	From   string `json:"from"` // "" = none
	To     string `json:"to"`   // "" = none
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

// What a node refuses when it is asked of its cluster.
var (
	ErrNoCluster   = errors.New("this node is not in a cluster")
	ErrUnknownNode = errors.New("unknown node")
	ErrNodeExists  = errors.New("there is such a node already")
	ErrNotRunning  = errors.New("not running")
	ErrNoAnswer    = errors.New("the owner of its shard has not answered: it is not known whether its run was ended; try again")
	ErrNotHeard    = errors.New("nobody listens under the node's lease: it has just ended, or cannot reach Redis; try again")
)
