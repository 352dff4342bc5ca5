package web

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/queue"
)

// serveFunc answers a request, or returns why not.
type serveFunc = func(http.ResponseWriter, *http.Request) error

// route is a row of the table: all that is known of one path.
type route struct {
	pattern string
	about   string   // one line for people
	query   []string // the parameters it takes
	path    string   // an example
	body    string   // an example, for curl -d; a file if it begins with @
	open    bool     // needs no token
	serve   serveFunc
}

// method is the HTTP method of the route.
func (rt route) method() string {
	method, _, _ := strings.Cut(rt.pattern, " ")
	return method
}

// routes are all there is.
func (a *api) routes() []route {
	all := []route{
		{pattern: "GET /{$}", about: "this page", path: "/", serve: a.index},
		{pattern: "GET /healthz", about: "is the process alive?", path: "/healthz", open: true, serve: a.healthz},
		{pattern: "GET /readyz", about: "may this node be counted on? 503 says why not", path: "/readyz", open: true, serve: a.readyz},
		{pattern: "GET /metrics", about: "figures for Prometheus", query: anyQuery, path: "/metrics", serve: a.metrics()},
		{pattern: "GET /debug/pprof/{name...}", about: "profiles of the process, for go tool pprof", query: anyQuery, path: "/debug/pprof/goroutine?debug=1", serve: a.profile},
		{pattern: "GET /api/v1/status", about: "cluster, nodes and queues", path: "/api/v1/status", serve: a.status},
		{pattern: "GET /api/v1/stats", about: "figures as Ruby Lowkiq gives them", path: "/api/v1/stats", serve: a.stats},
		{pattern: "GET /api/v1/queues", about: "all queues with their figures", path: "/api/v1/queues", serve: a.queues},
		{pattern: "GET /api/v1/queues/{q}", about: "one queue", path: "/api/v1/queues/orders", serve: a.oneQueue},
		{pattern: "POST /api/v1/queues/{q}/pause", about: "stop handling, go on taking pushes", path: "/api/v1/queues/orders/pause", serve: a.setPaused(true)},
		{pattern: "POST /api/v1/queues/{q}/resume", about: "go on", path: "/api/v1/queues/orders/resume", serve: a.setPaused(false)},
	}
	return slices.Concat(all, a.clusterRoutes(), a.jobRoutes())
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
	const ids = `{"ids":["a","b"]}`
	return onQueue([]route{
		{pattern: "POST jobs", about: "push: an object, an array, or NDJSON (curl --data-binary @file); the answer is per job", path: "jobs",
			body: `{"id":"a","payload":{"any":"JSON"}}`, serve: a.push},
		{pattern: "GET jobs", about: "jobs by id, due time or retries, of one state or all; or the one that ?id= names", query: jobsQuery,
			path: "jobs?state=retry&by=due&limit=10", serve: a.jobs},
		{pattern: "GET jobs/{id}", about: "one job, wherever it is", path: "jobs/a", serve: a.oneJob},
		{pattern: "GET in-flight", about: "what handlers have", query: rangeQuery, path: "in-flight", serve: a.list(inFlightKind)},
		{pattern: "GET morgue", about: "buried jobs by time or id", query: rangeQuery, path: "morgue?by=time&reverse=true", serve: a.list(morgueKind)},
		{pattern: "POST jobs/run-now", about: "make waiting jobs due now", path: "jobs/run-now", body: ids,
			serve: a.onIDs("run-now", (*queue.Queue).RunNow)},
		{pattern: "POST jobs/kill", about: "send waiting jobs to the morgue", path: "jobs/kill", body: ids,
			serve: a.onIDs("kill", killAnywhere)},
		{pattern: "POST jobs/delete", about: "forget waiting jobs", path: "jobs/delete", body: ids,
			serve: a.onIDs("delete", deleteAnywhere)},
		{pattern: "POST run-all-now", about: "make every scheduled and failed job due now", path: "run-all-now",
			serve: a.onAll("run-all-now", (*queue.Queue).RunAllNow)},
		{pattern: "POST kill-all-failed", about: "send every failed job to the morgue", path: "kill-all-failed",
			serve: a.onAll("kill-all-failed", (*queue.Queue).KillAllFailed)},
		{pattern: "POST delete-all-failed", about: "forget every failed job", path: "delete-all-failed",
			serve: a.onAll("delete-all-failed", (*queue.Queue).DeleteAllFailed)},
		{pattern: "POST morgue/requeue", about: "bring jobs back from the morgue", path: "morgue/requeue", body: ids,
			serve: a.onIDsOrAll("requeue", (*queue.Queue).Requeue, (*queue.Queue).RequeueAllDead)},
		{pattern: "POST morgue/delete", about: "forget buried jobs", path: "morgue/delete", body: `{"all":true}`,
			serve: a.onIDsOrAll("delete-dead", (*queue.Queue).DeleteDead, (*queue.Queue).DeleteAllDead)},
		{pattern: "POST blocked/requeue", about: "let blocked ids go on", path: "blocked/requeue", body: ids,
			serve: a.onIDs("unblock", (*queue.Queue).Unblock)},
		{pattern: "POST blocked/skip", about: "bury the oldest payload of blocked ids and go on", path: "blocked/skip", body: ids,
			serve: a.onIDs("skip", skipBlocked)},
		{pattern: "POST blocked/bury", about: "send blocked ids to the morgue", path: "blocked/bury", body: ids,
			serve: a.onIDs("bury", buryBlocked)},
	})
}

func killAnywhere(q *queue.Queue, ctx context.Context, ids ...string) (int, error) {
	return q.Kill(ctx, queue.Anywhere, ids...)
}

func deleteAnywhere(q *queue.Queue, ctx context.Context, ids ...string) (int, error) {
	return q.Delete(ctx, queue.Anywhere, ids...)
}

func skipBlocked(q *queue.Queue, ctx context.Context, ids ...string) (int, error) {
	return q.KillOldest(ctx, queue.Blocked, ids...)
}

func buryBlocked(q *queue.Queue, ctx context.Context, ids ...string) (int, error) {
	return q.Kill(ctx, queue.Blocked, ids...)
}
