package web

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/web/auth"
)

// serveFunc returns the answer to a request, which is written as JSON, or why there is none; nil if
// it has written the answer itself.
type serveFunc = func(http.ResponseWriter, *http.Request) (any, error)

// ofQueue is a route below a queue.
func (a *api) ofQueue(serve func(*queue.Queue, http.ResponseWriter, *http.Request) (any, error)) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		q, err := a.queueNamed(r.Context(), r.PathValue("q"))
		if err != nil {
			return nil, err
		}
		return serve(q, w, r)
	}
}

// route is a row of the table: all that is known of one path.
type route struct {
	pattern string
	about   string    // one line for people
	query   []string  // the parameters it takes
	path    string    // an example
	body    string    // an example, for curl -d; a file if it begins with @
	role    auth.Role // who may ask; default: read for GET, admin for the rest
	serve   serveFunc
}

// method is the HTTP method of the route.
func (rt route) method() string {
	method, _, _ := strings.Cut(rt.pattern, " ")
	return method
}

// needs is the role that a route asks for.
func (rt route) needs() auth.Role {
	switch {
	case rt.role != auth.Unset:
		return rt.role
	case rt.method() == http.MethodGet:
		return auth.Read
	}
	return auth.Admin
}

// routes are all there is.
func (a *api) routes() []route {
	all := []route{
		{pattern: "GET /api/v1/{$}", about: "this page", path: "/api/v1/", serve: a.index},
		{pattern: "GET /healthz", about: "is the process alive?", path: "/healthz", role: auth.Probe, serve: a.healthz},
		{pattern: "GET /readyz", about: "may this node be counted on? 503 says why not", path: "/readyz", role: auth.Probe, serve: a.readyz},
		{pattern: "GET /metrics", about: "figures for Prometheus", query: anyQuery, path: "/metrics", serve: a.metrics},
		{pattern: "GET /debug/pprof/{name...}", about: "profiles of the process, for go tool pprof", query: anyQuery, path: "/debug/pprof/goroutine?debug=1", role: auth.Admin, serve: a.profile},
		{pattern: "GET /api/v1/openapi.yaml", about: "all of this for programs: OpenAPI 3.1", path: "/api/v1/openapi.yaml", serve: a.openapi},
		{pattern: "GET /api/v1/status", about: "cluster, nodes and queues", path: "/api/v1/status", serve: a.status},
		{pattern: "GET /api/v1/stats", about: "figures as Ruby Lowkiq gives them", path: "/api/v1/stats", serve: a.stats},
		{pattern: "GET /api/v1/stats/days", about: "what queues did, day by day", query: []string{"queue", "days", "hours"}, path: "/api/v1/stats/days?queue=orders&days=14", serve: a.statsOfDays},
		{pattern: "GET /api/v1/redis", about: "what the Redis servers say of themselves", path: "/api/v1/redis", serve: a.redis},
		{pattern: "GET /api/v1/queues", about: "all queues with their figures", path: "/api/v1/queues", serve: a.queues},
		{pattern: "GET /api/v1/queues/{q}", about: "one queue", path: "/api/v1/queues/orders", serve: a.ofQueue(a.oneQueue)},
		{pattern: "POST /api/v1/queues/{q}/pause", about: "stop handling, go on taking pushes", path: "/api/v1/queues/orders/pause", serve: a.setPaused(true)},
		{pattern: "POST /api/v1/queues/{q}/resume", about: "go on", path: "/api/v1/queues/orders/resume", serve: a.setPaused(false)},
		{pattern: "POST /api/v1/queues/{q}/delete", about: "delete a retired queue: one that no node handles, empty or by force", path: "/api/v1/queues/orders/delete",
			body: `{"force":true,"dry_run":true}`, serve: a.deleteQueue},
		{pattern: "GET /api/v1/changes", about: "who has changed what, the last one first; with after= those behind a cursor", query: changesQuery,
			path: "/api/v1/changes?queue=orders&since=24h", serve: a.changes},
		{pattern: "GET /api/v1/events", about: "what happens from now on, as server-sent events: how runs end, what is recovered and changed", query: eventsQuery,
			path: "/api/v1/events?queue=orders&verdict=failed,exhausted&for=1m", serve: a.happens},
	}
	return slices.Concat(all, a.clusterRoutes(), a.recurringRoutes(), a.jobRoutes())
}

// onQueue prefixes rows with the path of a queue and that of the example.
func onQueue(rows []route) []route {
	for i := range rows {
		method, path, _ := strings.Cut(rows[i].pattern, " ")
		rows[i].pattern = method + " /api/v1/queues/{q}/" + path
		rows[i].path = "/api/v1/queues/orders/" + rows[i].path
	}
	return rows
}

func (a *api) jobRoutes() []route {
	rows := []route{
		{pattern: "POST jobs", about: "push: an object, an array, or NDJSON (curl --data-binary @file); the answer is per job, with ?wait=10s once its payload has ended", path: "jobs",
			query: []string{"wait", "keep"}, body: `{"id":"a","payload":{"any":"JSON"}}`, role: auth.Push, serve: a.ofQueue(a.push)},
		{pattern: "GET replies/{id}/{token}", about: "how the payload of a push with ?wait= has ended, under the token that it answered", path: "replies/a/AAAAAAAAAAAAAAAAAAAAAA",
			role: auth.Push, serve: a.ofQueue(a.reply)},
		{pattern: "GET jobs", about: "jobs by id, due time or retries, of one state or all; with contains, tag or error those that say so; or the one that ?id= names", query: jobsQuery,
			path: "jobs?state=retry&by=due&limit=10", serve: a.jobs},
		{pattern: "GET jobs/{id}", about: "one job, wherever it is", path: "jobs/a", serve: a.oneJob},
		{pattern: "GET jobs/{id}/history", about: "how the runs of a job ended, the last one first", query: historyQuery, path: "jobs/a/history", serve: a.ofQueue(a.history)},
		{pattern: "GET journal", about: "how runs of a queue ended, the last one first; with after= those behind a cursor", query: journalQuery,
			path: "journal?verdict=failed,exhausted&since=1h", serve: a.ofQueue(a.journal)},
		{pattern: "POST jobs/{id}/track", about: "keep every run of a job in the journal, whatever its rule is, or no longer", path: "jobs/a/track",
			body: `{"undo":true}`, serve: a.ofQueue(a.track)},
		{pattern: "GET rules", about: "the rules of a queue: each value, where it comes from, who has set it, until when", path: "rules", serve: a.ofQueue(a.rules)},
		{pattern: "PATCH rules", about: "change rules on all nodes, for a time or until they are unset; wants If-Match with the revision", path: "rules",
			body: `{"set":{"batch_size":10},"for":"2h","why":"a backlog"}`, serve: a.ofQueue(a.changeRules)},
		{pattern: "POST jobs/{id}/cancel", about: "end the run of a job: its handler is told to stop, and it is retried, held, buried or deleted", path: "jobs/fly/cancel",
			body: `{"then":"bury","why":"it hangs"}`, serve: a.ofQueue(a.cancel)},
		{pattern: "GET holds", about: "what people hold of a queue: ids and prefixes that no handler gets, by whom and until when", path: "holds", serve: a.ofQueue(a.holds)},
		{pattern: "POST holds", about: "hold an id, or all ids with a prefix, for a time or until it is undone; or undo that", path: "holds",
			body: `{"prefix":"acme:","for":"1h","why":"they move"}`, serve: a.ofQueue(a.hold)},
		{pattern: "POST jobs/{id}/note", about: "how far a job is, from its handler, with the Lowkiq-Fence and Lowkiq-Flight that it was given", path: "jobs/a/note",
			body: `{"progress":0.5,"log":"page 12"}`, role: auth.Push, serve: a.ofQueue(a.note)},
		{pattern: "GET in-flight", about: "what handlers have", query: listQuery, path: "in-flight", serve: a.list(flightLists)},
		{pattern: "GET morgue", about: "buried jobs by time, id or retries; with contains, tag or error those that say so", query: morgueQuery, path: "morgue?by=time&reverse=true", serve: a.list(morgueLists)},
		{pattern: "GET tags", about: "how many jobs have which tags, part by part", query: tagsQuery, path: "tags", serve: a.ofQueue(a.tags)},
		{pattern: "GET errors", about: "errors of failed, blocked or buried jobs, grouped by kind", query: []string{"state"}, path: "errors?state=morgue", serve: a.ofQueue(a.errorGroups)},
	}
	examples := map[*browse.Action]string{ // the others name ids
		browse.Delete: `{"all":true,"state":"retry","limit":1000}`, browse.Requeue: `{"all":true,"kind":"no account #"}`,
	}
	for _, action := range browse.Actions() {
		if action.Path == "" {
			continue
		}
		row := route{pattern: "POST " + action.Path, about: action.Brief, path: action.Path, serve: a.perform(action)}
		if !action.All {
			row.body = cmp.Or(examples[action], `{"ids":["a","b"]}`)
		}
		rows = append(rows, row)
	}
	return onQueue(rows)
}
