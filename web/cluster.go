package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

func (a *api) clusterRoutes() []route {
	return []route{
		{name: "status", pattern: "GET /api/v1/status", about: "cluster, nodes and queues", path: "/api/v1/status",
			gives: status.Status{}, serve: a.showStatus},
		{name: "shards", pattern: "GET /api/v1/shards", about: "who owns which shard, and who should", path: "/api/v1/shards",
			gives: []status.Shard{}, serve: a.listShards},
		{name: "members", pattern: "GET /api/v1/members", about: "who seems alive, by gossip", path: "/api/v1/members",
			gives: []status.Member{}, fails: []int{409}, serve: a.listMembers},
		{name: "plan", pattern: "GET /api/v1/plan", about: "what would move if nodes came or went; moves nothing", query: planQuery,
			path: "/api/v1/plan?add=n6&remove=n2", gives: Plan{}, fails: []int{404, 409}, serve: a.planMoves},
		routeOf(actions.Drain, route{takes: Drain{}, optional: true, gives: Drained{}, fails: []int{404, 409}, serve: a.drainNode}),
		{name: "changes", pattern: "GET /api/v1/changes", query: changesQuery,
			about: "who has changed what, the last one first; with after= those behind a cursor",
			more: "Every change that people asked of the API, the pages or the command line, except pushes; about the last 10,000 are kept. With after " +
				"the changes behind a cursor come, the first one first.",
			path: "/api/v1/changes?queue=orders&since=24h", gives: Changes{}, serve: a.listChanges},
		{name: "events", pattern: "GET /api/v1/events", query: eventsQuery, path: "/api/v1/events?queue=orders&verdict=failed,exhausted&for=1m",
			about: "what happens from now on, as server-sent events: how runs end, what is recovered and changed",
			more: "The name of an event is its kind, its data is one object. Nodes know of a listener within two seconds, at the default ttl. Each event " +
				"comes at most once; the event missed says that some did not come. To miss no run, read the journal. The stream of one queue is not " +
				"crowded by others.",
			gives: Event{}, media: "text/event-stream", fails: []int{404}, serve: a.streamEvents},
	}
}

func (a *api) listShards(w http.ResponseWriter, r *http.Request) (any, error) {
	list, err := a.cfg.Cluster.Shards(r.Context())
	return orEmpty(list), err
}

func (a *api) listMembers(w http.ResponseWriter, _ *http.Request) (any, error) {
	list, err := a.cfg.Cluster.Members()
	return orEmpty(list), err
}

func (a *api) planMoves(w http.ResponseWriter, r *http.Request) (any, error) {
	add, remove, err := PlanQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	moves, err := a.cfg.Cluster.Plan(r.Context(), add, remove)
	return Plan{orEmpty(moves)}, err
}

// PlanQuery reads the parameters of a plan. They are the names of the nodes that would join and of those that
// would leave, separated by commas.
func PlanQuery(values url.Values) (add, remove []string, err error) {
	if add, err = nodeNames("add", values.Get("add")); err == nil {
		remove, err = nodeNames("remove", values.Get("remove"))
	}
	return add, remove, err
}

func nodeNames(field, text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	names := strings.Split(text, ",")
	for i, name := range names {
		if err := protocol.CheckName("node", name); err != nil {
			return nil, badField(field, "%v", err)
		}
		if slices.Contains(names[:i], name) {
			return nil, badField(field, "node %q is named twice", name)
		}
	}
	return names, nil
}

func (a *api) explainID(w http.ResponseWriter, r *http.Request) (any, error) {
	values := r.URL.Query()
	for _, field := range []string{"queue", "id"} {
		if values.Get(field) == "" {
			return nil, badField(field, "it is missing; the query must be like ?queue=orders&id=17")
		}
	}
	q, err := a.queueNamed(r.Context(), values.Get("queue"))
	if err != nil {
		return nil, err
	}
	return a.cfg.Cluster.Why(r.Context(), q, values.Get("id"))
}

// drainNode asks a node to give its shards away, or to own shards again. Any node can be asked, because the
// request goes to the named node through Redis. The answer comes when that node's lease shows the effect, or
// after a while without it.
func (a *api) drainNode(w http.ResponseWriter, r *http.Request) (any, error) {
	var wish Drain
	if err := a.readOptionalBody(w, r, &wish, `empty, or {"undo":true}`); err != nil {
		return nil, err
	}
	request := actions.Request{Action: actions.Drain, By: auth.Who(r), Target: r.PathValue("n")}
	if wish.Undo {
		request.Action = actions.Undrain
	}
	done, err := a.operator.Do(r.Context(), request)
	return Drained{!wish.Undo, done.Instance, request.Target, done.Noticed, done.Shards}, err
}

// orEmpty returns an empty list instead of nil, because scripts do not expect null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
