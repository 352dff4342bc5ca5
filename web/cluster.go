package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/web/auth"
)

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

func (a *api) shards(w http.ResponseWriter, r *http.Request) (any, error) {
	list, err := a.node.Cluster().Shards(r.Context())
	return orEmpty(list), err
}

func (a *api) members(w http.ResponseWriter, _ *http.Request) (any, error) {
	list, err := a.node.Cluster().Members()
	return orEmpty(list), err
}

func (a *api) plan(w http.ResponseWriter, r *http.Request) (any, error) {
	add, remove, err := PlanQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	moves, err := a.node.Cluster().Plan(r.Context(), add, remove)
	return Plan{orEmpty(moves)}, err
}

// PlanQuery reads the parameters of a plan: the names of nodes that would come, and of those that
// would go, with commas between them.
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
		if err := queue.CheckName("node", name); err != nil {
			return nil, badField(field, "%v", err)
		}
		if slices.Contains(names[:i], name) {
			return nil, badField(field, "node %q is named twice", name)
		}
	}
	return names, nil
}

func (a *api) why(w http.ResponseWriter, r *http.Request) (any, error) {
	values := r.URL.Query()
	for _, field := range []string{"queue", "id"} {
		if values.Get(field) == "" {
			return nil, badField(field, "is missing; want ?queue=orders&id=17")
		}
	}
	q, err := a.queueNamed(r.Context(), values.Get("queue"))
	if err != nil {
		return nil, err
	}
	return a.node.Cluster().Why(r.Context(), q, values.Get("id"))
}

func (a *api) drain(w http.ResponseWriter, r *http.Request) (any, error) {
	var wish Drain
	if err := a.optional(w, r, &wish, `no body, or {"undo":true}`); err != nil {
		return nil, err
	}
	name := r.PathValue("n")
	instance, err := a.node.Cluster().Drain(r.Context(), name, !wish.Undo)
	if err != nil {
		return nil, err
	}
	a.cfg.Log.Info("drain asked by hand", "node", name, "instance", instance, "undo", wish.Undo, auth.Sender(r))
	action := "drain"
	if wish.Undo {
		action = "undo drain"
	}
	WriteDown(a.node, a.cfg.Log, r, changes.Line{Action: action, Target: name})
	return Drained{!wish.Undo, instance, name}, nil
}

// orEmpty makes an empty list of none: null is no list to a script.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
