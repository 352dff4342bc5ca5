package web

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/queue"
)

// Cluster answers what is asked of the cluster as a whole. All functions are required.
type Cluster struct {
	// Shards lists the shards of all queues, ordered by queue and index.
	Shards func(context.Context) ([]ShardStatus, error)
	// Members lists what gossip says. ErrNoCluster: the node does not gossip.
	Members func() ([]MemberStatus, error)
	// Plan says what would move if nodes came and went; it moves nothing. ErrNoCluster,
	// ErrUnknownNode, ErrNodeExists.
	Plan func(ctx context.Context, add, remove []string) ([]Move, error)
	// Why explains why an id of a queue is not with a handler now.
	Why func(ctx context.Context, q *queue.Queue, id string) (Reason, error)
	// Drain asks a node to give its shards away (on), or to take some again, and returns
	// the instance that heard it. ErrUnknownNode, ErrNotHeard.
	Drain func(ctx context.Context, node string, on bool) (instance string, err error)
	// Handled says who handles which queue, by the leases of now.
	Handled func(context.Context) (Handled, error)
}

// Handled are the names of the nodes that handle each queue; those of "" have a lease that cannot be read, and may handle any.
type Handled map[string][]string

// Add notes that a node handles a queue.
func (h Handled) Add(queue, node string) {
	if !slices.Contains(h[queue], node) {
		h[queue] = append(h[queue], node)
	}
}

// By are the nodes that handle a queue, or may.
func (h Handled) By(queue string) []string { return slices.Concat(h[queue], h[""]) }

func (c Cluster) complete() bool {
	return c.Shards != nil && c.Members != nil && c.Plan != nil && c.Why != nil && c.Drain != nil && c.Handled != nil
}

// What the functions of [Cluster] refuse.
var (
	ErrNoCluster   = errors.New("this node is not in a cluster: it was started without a gossip address (node.bind)")
	ErrUnknownNode = errors.New("unknown node")
	ErrNodeExists  = errors.New("there is such a node already")
	ErrNotHeard    = errors.New("nobody listens under the node's lease: it has just ended, or cannot reach Redis; try again")
)

// ShardState is how a shard is looked after.
type ShardState string

// The states of a shard.
const (
	Owned      ShardState = "owned"    // by the node that should own it
	Claiming   ShardState = "claiming" // by nobody alive yet; a live node should take it
	Leaving    ShardState = "draining" // by a live node that is to give it away
	NobodyOwns ShardState = "unowned"  // and no live node is to take it
)

// ShardStatus is one shard.
type ShardStatus struct {
	Queue    string     `json:"queue"`
	Index    int        `json:"index"`
	Assigned string     `json:"assigned"` // name of the node that should own it; "" = none
	Owner    string     `json:"owner"`    // instance that holds the claim; "" = none
	Fence    int64      `json:"fence"`
	State    ShardState `json:"state"`
	Lag      float64    `json:"lag_s"` // age of the oldest due job, seconds; 0 if none
}

// MemberStatus is what gossip says of a process.
type MemberStatus struct {
	Node     string  `json:"node"`
	Instance string  `json:"instance"`
	Boot     string  `json:"boot"`
	State    string  `json:"state"`   // alive, dead or left
	Address  string  `json:"address"` // of its gossip
	Since    float64 `json:"since"`   // when the answering node learned of the state, unix seconds
	Draining bool    `json:"draining"`
}

// Move is a shard that would get another owner.
type Move struct {
	Queue  string `json:"queue"`
	Index  int    `json:"index"`
	From   string `json:"from"` // "" = nobody
	To     string `json:"to"`   // "" = nobody
	Reason string `json:"reason"`
}

// Reason says where an id is, and why no handler has it.
type Reason struct {
	State  string   // ready, scheduled, retry, in_flight, blocked, morgue or absent
	Reason string   // one sentence for people
	Due    *float64 // seconds until it is due, negative since; nil if it never will be
	Since  *float64 // seconds for which it has been in flight; nil if it is not
}

// why is the answer of the route of that name.
type why struct {
	ID     string   `json:"id"`
	Queue  string   `json:"queue"`
	Shard  int      `json:"shard"`
	State  string   `json:"state"`
	Reason string   `json:"reason"`
	Due    *float64 `json:"due_s"`
	Since  *float64 `json:"since_s,omitempty"`
}

func (a *api) clusterRoutes() []route {
	return []route{
		{pattern: "GET /api/v1/shards", about: "who owns which shard, and who should", path: "/api/v1/shards", serve: a.shards},
		{pattern: "GET /api/v1/members", about: "who seems alive, by gossip", path: "/api/v1/members", serve: a.members},
		{pattern: "GET /api/v1/plan", about: "what would move if nodes came or went; moves nothing", query: []string{"add", "remove"},
			path: "/api/v1/plan?add=n6&remove=n2", serve: a.plan},
		{pattern: "GET /api/v1/why", about: "why is an id not being handled now?", query: []string{"queue", "id"},
			path: "/api/v1/why?queue=orders&id=a", serve: a.why},
		{pattern: "POST /api/v1/nodes/{n}/drain", about: `empty a node; {"undo":true} lets it take shards again`, path: "/api/v1/nodes/n2/drain", serve: a.drain},
	}
}

func (a *api) shards(w http.ResponseWriter, r *http.Request) error {
	list, err := a.cfg.Cluster.Shards(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, orEmpty(list))
}

func (a *api) members(w http.ResponseWriter, _ *http.Request) error {
	list, err := a.cfg.Cluster.Members()
	if err != nil {
		return err
	}
	return writeJSON(w, orEmpty(list))
}

func (a *api) plan(w http.ResponseWriter, r *http.Request) error {
	add, err := nodeNames("add", r.URL.Query().Get("add"))
	if err != nil {
		return err
	}
	remove, err := nodeNames("remove", r.URL.Query().Get("remove"))
	if err != nil {
		return err
	}
	moves, err := a.cfg.Cluster.Plan(r.Context(), add, remove)
	if err != nil {
		return err
	}
	return writeJSON(w, map[string][]Move{"moves": orEmpty(moves)})
}

// nodeNames reads names with commas between them.
func nodeNames(field, text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	names := strings.Split(text, ",")
	for i, name := range names {
		if err := queue.CheckName("node", name); err != nil {
			return nil, badField(field, "%v", err)
		}
		if slices.Contains(names[:i], name) {
			return nil, badField(field, "node %q is named twice", name)
		}
	}
	return names, nil
}

func (a *api) why(w http.ResponseWriter, r *http.Request) error {
	values := r.URL.Query()
	for _, field := range []string{"queue", "id"} {
		if values.Get(field) == "" {
			return badField(field, "is missing; want ?queue=orders&id=17")
		}
	}
	q, err := a.queueNamed(r.Context(), values.Get("queue"))
	if err != nil {
		return err
	}
	id := values.Get("id")
	reason, err := a.cfg.Cluster.Why(r.Context(), q, id)
	if err != nil {
		return err
	}
	return writeJSON(w, why{ID: id, Queue: q.Name, Shard: q.Of(id).Index, State: reason.State, Reason: reason.Reason, Due: reason.Due, Since: reason.Since})
}

func (a *api) drain(w http.ResponseWriter, r *http.Request) error {
	body, err := a.body(w, r)
	if err != nil {
		return err
	}
	var wish struct {
		Undo bool `json:"undo"`
	}
	if len(strings.TrimSpace(string(body))) > 0 {
		if err := decodeBody(body, &wish, `no body, or {"undo":true}`); err != nil {
			return err
		}
	}
	name := r.PathValue("n")
	instance, err := a.cfg.Cluster.Drain(r.Context(), name, !wish.Undo)
	if err != nil {
		return err
	}
	a.cfg.Log.Info("drain asked by hand", "node", name, "instance", instance, "undo", wish.Undo, Sender(r))
	return writeJSON(w, map[string]any{"node": name, "instance": instance, "draining": !wish.Undo})
}

// orEmpty makes an empty list of none: null is no list to a script.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
