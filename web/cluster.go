package web

import (
	"net/http"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
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

func (a *api) shards(w http.ResponseWriter, r *http.Request) error {
	list, err := a.node.Shards(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, orEmpty(list))
}

func (a *api) members(w http.ResponseWriter, _ *http.Request) error {
	list, err := a.node.Members()
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
	moves, err := a.node.Plan(r.Context(), add, remove)
	if err != nil {
		return err
	}
	return writeJSON(w, map[string][]status.Move{"moves": orEmpty(moves)})
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
	why, err := a.node.Why(r.Context(), q, values.Get("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, why)
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
	instance, err := a.node.Drain(r.Context(), name, !wish.Undo)
	if err != nil {
		return err
	}
	a.cfg.Log.Info("drain asked by hand", "node", name, "instance", instance, "undo", wish.Undo, auth.Sender(r))
	return writeJSON(w, map[string]any{"node": name, "instance": instance, "draining": !wish.Undo})
}

// orEmpty makes an empty list of none: null is no list to a script.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
