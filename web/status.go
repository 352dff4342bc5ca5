package web

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Status is what a node knows of its cluster. Scripts rely on its JSON: add fields,
// never rename any.
type Status struct {
	Cluster    string        `json:"cluster"`
	Generation Generation    `json:"generation"`
	Leader     string        `json:"leader"`   // name of the leading node; "" if there is none
	Warnings   []string      `json:"warnings"` // what an operator should mend, as the answering node sees it
	Nodes      []NodeStatus  `json:"nodes"`
	Queues     []QueueStatus `json:"queues"`
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

// NodeStatus is one node, as the answering node sees it.
type NodeStatus struct {
	Name     string    `json:"name"`
	Instance string    `json:"instance"`
	State    NodeState `json:"state"`
	LeaseAge float64   `json:"lease_age_s"` // seconds since the lease was renewed
	Voter    bool      `json:"voter"`
	Shards   int       `json:"shards"` // shards it owns
	HTTP     string    `json:"http"`   // address of its API
}

// QueueStatus is a queue in figures.
type QueueStatus struct {
	Name      string       `json:"name"`
	Shards    int          `json:"shards"`
	Paused    bool         `json:"paused"`
	Unhandled bool         `json:"unhandled"` // no living node handles it
	Lag       float64      `json:"lag_s"`     // age of the oldest due job, seconds; 0 if none
	Jobs      queue.Counts `json:"jobs"`
	Morgue    int          `json:"morgue"`    // payloads in the morgue
	Processed int64        `json:"processed"` // ids acked, ever
	Failed    int64        `json:"failed"`    // failures of ids, ever
	Codec     string       `json:"codec"`     // in which payloads are stored; "" = as they are pushed
	Limits    QueueLimits  `json:"limits"`    // of pushes, the defaults filled in
}

// QueueLimits are what a queue takes, whoever pushes.
type QueueLimits struct {
	PayloadBytes int `json:"payload_bytes"` // longest payload as stored, bytes
	Payloads     int `json:"id_payloads"`   // most payloads waiting for one id
	IDPayload    int `json:"id_bytes"`      // most bytes of payloads waiting for one id
}

// Queues reads the figures of all registered queues, in order of their names: what
// belongs into [Status.Queues]. handled is that of [Cluster].
func Queues(ctx context.Context, client *queue.Client, handled Handled) ([]QueueStatus, error) {
	entries, err := client.Registry(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]QueueStatus, 0, len(entries))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		stats, err := readStats(ctx, client, name)
		if errors.Is(err, lowkiq.ErrUnknownQueue) || errors.Is(err, queue.ErrEntryDamaged) {
			continue // it was deleted meanwhile, or its entry damaged
		}
		if err != nil {
			return nil, err
		}
		all = append(all, queueStatus(name, entries[name], stats, handled))
	}
	return all, nil
}

func readStats(ctx context.Context, client *queue.Client, name string) (queue.Stats, error) {
	q, err := client.Queue(ctx, name)
	if err != nil {
		return queue.Stats{}, err
	}
	return q.Stats(ctx)
}

func queueStatus(name string, entry queue.Entry, stats queue.Stats, handled Handled) QueueStatus {
	return QueueStatus{
		Name: name, Shards: entry.Shards, Paused: entry.Paused, Unhandled: len(handled.By(name)) == 0, Lag: stats.Lag.Seconds(),
		Jobs: stats.Jobs, Morgue: stats.Morgue, Processed: stats.Processed, Failed: stats.Failed,
		Codec: entry.Codec, Limits: QueueLimits(entry.Limits.Effective()),
	}
}
