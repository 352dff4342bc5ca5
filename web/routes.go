package web

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// serveFunc returns the answer to a request, which is written as JSON, or an error. It returns nil if it
// has written the answer itself.
type serveFunc = func(http.ResponseWriter, *http.Request) (any, error)

// ofQueue returns the serveFunc of a route below a queue.
func (a *api) ofQueue(serve func(*protocol.Queue, http.ResponseWriter, *http.Request) (any, error)) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		q, err := a.queueNamed(r.Context(), r.PathValue("q"))
		if err != nil {
			return nil, err
		}
		return serve(q, w, r)
	}
}

// route is a row of the table of requests. The page at /api/v1/ and openapi.yaml are made from it.
type route struct {
	name     string // in programs made from openapi.yaml
	pattern  string
	about    string    // a line for people
	more     string    // more for programs
	query    []param   // the parameters it takes
	headers  []param   // the headers it reads
	path     string    // an example
	body     string    // an example, for curl -d
	takes    any       // a value of the body's type, nil without a body
	optional bool      // the body may be missing
	gives    any       // a value of the answer's type, nil for text
	media    string    // of the answer; default: JSON
	creates  bool      // the answer has status 201 if the request has created something, else 200
	sends    []param   // headers of the answer
	fails    []int     // statuses of errors, besides those of all routes of its kind
	role     auth.Role // that a request needs; by default read for GET, and admin for all others
	serve    serveFunc
	group    string // of routes in openapi.yaml
}

// nothing is a body without fields.
type nothing struct{}

// anyOf is the answer of a route that has several.
type anyOf []any

// partial is a body with some of the fields of a type.
type partial struct{ of any }

// method returns the HTTP method of the route.
func (rt route) method() string {
	method, _, _ := strings.Cut(rt.pattern, " ")
	return method
}

// requiredRole returns the role that a route needs. A route that names none needs Admin unless it only reads, so a
// forgotten role locks people out and lets nobody in.
func (rt route) requiredRole() auth.Role {
	switch {
	case rt.role != auth.Unset:
		return rt.role
	case rt.method() == http.MethodGet:
		return auth.Read
	}
	return auth.Admin
}

// listRoutes returns the table.
func (a *api) listRoutes() []route {
	return slices.Concat(
		inGroup("operate", a.operateRoutes()), inGroup("cluster", a.clusterRoutes()), inGroup("queues", a.queueRoutes()),
		inGroup("recurring", a.recurringRoutes()), inGroup("workflows", a.workflowRoutes()), inGroup("jobs", a.jobRoutes()), inGroup("actions", a.actionRoutes()),
	)
}

// inGroup puts rows into a group of openapi.yaml.
func inGroup(name string, rows []route) []route {
	for i := range rows {
		rows[i].group = name
	}
	return rows
}

// addPrefix adds prefixes to the paths of rows and of their examples.
func addPrefix(prefix, example string, rows []route) []route {
	for i := range rows {
		method, path, _ := strings.Cut(rows[i].pattern, " ")
		rows[i].pattern = method + " " + prefix + path
		rows[i].path = example + rows[i].path
	}
	return rows
}

func (a *api) operateRoutes() []route {
	return []route{
		{name: "index", pattern: "GET /api/v1/{$}", about: "this page", path: "/api/v1/", media: "text/html", serve: a.showIndex},
		{name: "openapi", pattern: "GET /api/v1/openapi.yaml", about: "the description of all routes for programs, OpenAPI 3.1",
			path: "/api/v1/openapi.yaml", media: "application/yaml", serve: a.writeOpenAPI},
		{name: "healthz", pattern: "GET /healthz", about: "is the process alive?", path: "/healthz", role: auth.Probe,
			media: "text/plain", serve: a.checkHealth},
		{name: "readyz", pattern: "GET /readyz", about: "may this node be counted on? 503 says why not", path: "/readyz", role: auth.Probe,
			media: "text/plain", fails: []int{503}, serve: a.checkReady},
		{name: "metrics", pattern: "GET /metrics", about: "figures for Prometheus", query: anyQuery, path: "/metrics",
			more:  "An Accept header may ask for another of Prometheus's formats. 500: a figure could not be gathered.",
			media: "text/plain", fails: []int{500}, serve: a.writeMetrics},
		{name: "profile", pattern: "GET /debug/pprof/{name...}", about: "profiles of the process, for go tool pprof", query: anyQuery,
			more: "As package net/http/pprof gives them. 500: a CPU profile or a trace is being taken already.",
			path: "/debug/pprof/goroutine?debug=1", role: auth.Admin, media: "*/*", fails: []int{404, 500}, serve: a.writeProfile},
		{name: "redis", pattern: "GET /api/v1/redis", about: "the figures of the Redis servers", path: "/api/v1/redis",
			gives: Redis{}, serve: a.showRedis},
	}
}

func (a *api) queueRoutes() []route {
	return []route{
		{name: "stats", pattern: "GET /api/v1/stats", about: "figures as Ruby Lowkiq gives them", path: "/api/v1/stats", gives: Stats{}, serve: a.showStats},
		{name: "statsOfDays", pattern: "GET /api/v1/stats/days", about: "figures of queues by day or hour", query: daysQuery,
			more: "By queue and then by day or hour, by Redis's clock in UTC. Days and hours in which no process counted anything of a queue are left out. " +
				"Processes write their counts every ten seconds.",
			path: "/api/v1/stats/days?queue=orders&days=14", gives: Days{}, fails: []int{404}, serve: a.statsOfDays},
		{name: "queues", pattern: "GET /api/v1/queues", about: "all queues with their figures", path: "/api/v1/queues", gives: Queues{}, serve: a.listQueues},
		{name: "queue", pattern: "GET /api/v1/queues/{q}", about: "a queue with its figures", path: "/api/v1/queues/orders", gives: status.Queue{},
			serve: a.ofQueue(a.showQueue)},
		{name: "rules", pattern: "GET /api/v1/queues/{q}/rules", about: "the rules of a queue, each with its value, its source, who has set it, and until when",
			path:  "/api/v1/queues/orders/rules",
			more:  "Values of a configuration are those of the node that answers. Nodes with other files follow their own files.",
			gives: Rules{}, sends: revisionHeader, serve: a.ofQueue(a.listRules)},
		{name: "reshardProgress", pattern: "GET /api/v1/queues/{q}/reshard", about: "the progress of a queue's reshard", path: "/api/v1/queues/orders/reshard",
			gives: actions.Resharding{}, fails: []int{404}, serve: a.showReshard},
		routeOf(actions.Reshard, route{
			more: "The leader does the rest. Handlers of the queue pause meanwhile, and pushes wait for a moment. If running handler calls do not end within patience, nothing is " +
				"changed. 409 says what is in the way, or that the reshard costs too much. The same request again answers with the progress.",
			body: `{"shards":64,"patience":"30s","dry_run":true}`, takes: actions.ReshardChange{}, gives: actions.Resharding{}, fails: []int{404, 409}, serve: a.beginReshard}),
		{name: "cancelReshard", pattern: "DELETE /api/v1/queues/{q}/reshard", about: actions.CancelReshard.Brief, path: "/api/v1/queues/orders/reshard",
			more:  "409 if its jobs move already, or if none is under way.",
			gives: actions.Resharding{}, fails: []int{404, 409}, serve: a.cancelReshard},
		routeOf(actions.ChangeRules, route{name: "changeRules", pattern: "PATCH", headers: rulesHeaders,
			more: "Needs If-Match with the revision. A change is in force on every node within two renewals of its lease, and in programs that push within 10 s. It overrides the " +
				"values of configurations until its time is over or it is unset.",
			body: `{"set":{"batch_size":10},"for":"2h","why":"a backlog"}`, takes: actions.RulesChange{},
			gives: Rules{}, sends: revisionHeader, fails: []int{412, 428}, serve: a.ofQueue(a.changeRules)}),
		{name: "outgoing", pattern: "GET /api/v1/queues/{q}/outgoing", about: "the follow-ups of a queue that wait to be delivered to other queues",
			more: "Usually they wait for milliseconds. If a queue refuses a follow-up, later follow-ups from the same shard to the same shard wait behind it, and reason says why.",
			path: "/api/v1/queues/orders/outgoing", gives: Outgoing{}, serve: a.ofQueue(a.listOutgoing)},
		routeOf(actions.DropOutgoing, route{
			more: "They are never delivered. Their jobs stay done or buried.",
			body: `{"drop":1}`, takes: OutgoingDrop{}, gives: OutgoingDropped{}, serve: a.ofQueue(a.dropOutgoing)}),
		{name: "holds", pattern: "GET /api/v1/queues/{q}/holds", about: "the holds of a queue: ids and prefixes that no handler gets, by whom and until when",
			path: "/api/v1/queues/orders/holds", gives: Holds{}, serve: a.ofQueue(a.listHolds)},
		routeOf(actions.Hold, route{
			more: "A hold lasts for a time, or until the same request with undo. No job of a held id runs. Pushed payloads wait in order, and the lag does not count them. A job that runs when the hold begins " +
				"runs on. A hold is in force on all nodes within two renewals. A queue has at most 1,000 holds; a hold replaces an earlier hold of the same ids.",
			body: `{"prefix":"acme:","for":"1h","why":"they move"}`, takes: actions.HoldChange{}, gives: actions.HoldChanged{}, serve: a.ofQueue(a.changeHold)}),
	}
}

func (a *api) jobRoutes() []route {
	rows := addPrefix("/api/v1/queues/{q}/", "/api/v1/queues/orders/", []route{
		{name: "push", pattern: "POST jobs", path: "jobs", query: pushQuery, role: auth.Push,
			about: "push: an object, an array, or NDJSON (curl --data-binary @file); the answer is per job, with ?wait=10s once its payload has ended",
			more: "A refused job has \"ok\": false and an error, and the status is still 200. " +
				"At most 32 MiB and 100,000 jobs; with wait at most 1,000. All jobs are read before the first is stored. The push of a shard is one " +
				"step. It is safe to push a failed job again.",
			body: `{"id":"a","payload":{"any":"JSON"}}`, takes: []PushedJob{}, gives: Pushed{}, serve: a.ofQueue(a.pushJobs)},
		{name: "reply", pattern: "GET replies/{id}/{token}", about: "how the payload of a push with ?wait= has ended, by the token of its answer",
			more: "A failure that will be retried is no end. If many payloads wait for an id, its replies are pending until all of them have ended.",
			path: "replies/a/AAAAAAAAAAAAAAAAAAAAAA", role: auth.Push, gives: Reply{}, serve: a.ofQueue(a.showReply)},
		{name: "jobs", pattern: "GET jobs", path: "jobs?state=retry&by=due&limit=10", query: jobsQuery,
			about: "jobs by id, due time or retries, of one state or all; with contains, tag or error those that say so; or the job that ?id= names",
			more: "With id or id_base64 (and then nothing else), the answer is that job. With contains, tag or error, and without by and state, all jobs " +
				"are searched as they are stored, except those of the morgue. An answer comes within a second, and may have no job and a next.",
			gives: anyOf{JobPage[Job]{}, Job{}}, serve: a.listOrShowJobs},
		{name: "job", pattern: "GET jobs/{id}", about: "a single job in any state", path: "jobs/a", gives: Job{}, serve: a.showJobOfPath},
		{name: "history", pattern: "GET jobs/{id}/history", about: "how the runs of a job ended, newest first", query: historyQuery,
			more: "A run is a handler call for an id. The queue's rule journal says which runs are kept; by default the last failed runs are. " +
				"A job that is done has its history until other runs take its place.",
			path: "jobs/a/history", gives: Runs{}, serve: a.ofQueue(a.listRunsOfJob)},
		{name: "journal", pattern: "GET journal", query: journalQuery, path: "journal?verdict=failed,exhausted&since=1h",
			about: "how runs of a queue ended, newest first; with after= those behind a cursor",
			more: "With after they come oldest first, each once, unless the clock of Redis is set back. Ask again with the cursor of the answer. " +
				"All runs of a millisecond come together, so an answer may have more runs than the limit.",
			gives: Runs{}, serve: a.ofQueue(a.listRuns)},
		{name: "note", pattern: "POST jobs/{id}/note", path: "jobs/a/note", headers: noteHeaders, role: auth.Push,
			about: "the progress of a job, from its handler, with the Lowkiq-Fence and Lowkiq-Flight of its batch",
			more:  "An HTTP endpoint sends this while it works on the job, at most a note per job and second. A field that is left out stays as it was.",
			body:  `{"progress":0.5,"log":"page 12"}`, takes: Note{}, gives: Noted{}, fails: []int{409}, serve: a.ofQueue(a.storeNote)},
		{name: "inFlight", pattern: "GET in-flight", about: "jobs in flight", query: flightQuery, path: "in-flight",
			gives: JobPage[Job]{}, serve: a.listJobs(flightLists)},
		{name: "morgue", pattern: "GET morgue", about: "buried jobs by time, id or retries; with contains, tag or error those that say so",
			query: morgueQuery, path: "morgue?by=time&reverse=true", gives: JobPage[Job]{}, serve: a.listJobs(morgueLists)},
		{name: "tags", pattern: "GET tags", about: "the number of jobs with each tag, part by part", query: tagsQuery, path: "tags",
			more:  "An answer comes within a second. Add the counts of all answers, up to the answer with an empty next.",
			gives: Tags{}, serve: a.ofQueue(a.countTags)},
		{name: "errors", pattern: "GET errors", about: "errors of failed, blocked or buried jobs, grouped by kind", query: errorsQuery,
			more: "A request examines the newest 5,000 jobs; all says whether there are no others. A list or an action with a kind is about the jobs of that kind.",
			path: "errors?state=morgue", gives: Errors{}, serve: a.ofQueue(a.errorGroups)},
	})
	return append(rows,
		routeOf(actions.Track, route{
			more: "The runs are kept whatever the rule journal says, until undo. A queue tracks at most 1,000 ids. They are its rule tracked.",
			body: `{"undo":true}`, takes: Track{}, optional: true, gives: Tracked{}, serve: a.ofQueue(a.trackJob)}),
		routeOf(actions.Cancel, route{path: "/api/v1/queues/orders/jobs/fly/cancel",
			more: "The context of its handler ends. If the handler still answers that the job is done, it is done. Otherwise, once the handler has returned, the payloads " +
				"of this run are retried at once, held, buried or deleted. Other ids of the same batch are put back. None of this counts as a retry. " +
				"409 if no handler has the id, or its node does not answer.",
			body: `{"then":"bury","why":"it hangs"}`, takes: Cancel{}, optional: true, gives: Cancelled{}, fails: []int{409}, serve: a.ofQueue(a.cancelRun)}),
		route{name: "why", pattern: "GET /api/v1/why", about: "why is an id not being handled now?", query: whyQuery,
			path: "/api/v1/why?queue=orders&id=a", gives: status.Why{}, fails: []int{404}, serve: a.explainID})
}

func (a *api) actionRoutes() []route {
	rows := []route{
		routeOf(actions.Pause, route{
			more: "Nodes notice with the next renewal of their leases, every sixth of node.ttl. The answer waits for them for at most 30 s. The instances in " +
				"may_begin have not noticed it by then.",
			takes: nothing{}, optional: true, gives: Paused{}, serve: a.setPaused(actions.Pause)}),
		routeOf(actions.Resume, route{
			more:  "Nodes notice with the next renewal of their leases, within a second or two.",
			takes: nothing{}, optional: true, gives: Paused{}, serve: a.setPaused(actions.Resume)}),
		routeOf(actions.DeleteQueue, route{
			more: "409 names the nodes that handle it, also with force. Without force it must be empty. Later pushes to it are refused until " +
				"it is registered anew. It may be repeated; an interrupted deletion then goes on.",
			body: `{"force":true,"dry_run":true}`, takes: Deletion{}, optional: true, gives: Deleted{}, fails: []int{409}, serve: a.deleteQueue}),
	}
	examples := map[*browse.Action]string{ // the others name ids
		browse.Delete: `{"all":true,"state":"retry","limit":1000}`, browse.Requeue: `{"all":true,"kind":"no account #"}`,
	}
	for _, action := range actions.All() {
		switch {
		case action.Jobs == nil || action.Path == "":
		case action.Jobs.All:
			rows = append(rows, routeOf(action, route{takes: Filter{}, optional: true, gives: Changed{}, serve: a.changeJobs(action)}))
		default:
			rows = append(rows, routeOf(action, route{takes: Selection{}, body: cmp.Or(examples[action.Jobs], `{"ids":["a","b"]}`), gives: Changed{}, serve: a.changeJobs(action)}))
		}
	}
	return rows
}

// targets has the path of each target of actions, and an example.
var targets = map[actions.Target][2]string{
	actions.OnQueue: {"/api/v1/queues/{q}/", "/api/v1/queues/orders/"},
	actions.OnJobs:  {"/api/v1/queues/{q}/", "/api/v1/queues/orders/"},
	actions.OnJob:   {"/api/v1/queues/{q}/jobs/{id}/", "/api/v1/queues/orders/jobs/a/"},
	actions.OnNode:  {"/api/v1/nodes/{n}/", "/api/v1/nodes/n2/"},
	actions.OnEntry: {"/api/v1/recurring/{entry}/", "/api/v1/recurring/report/"},
}

// routeOf fills in the fields of a route from the table of actions. The pattern of rt may name a method.
func routeOf(a *actions.Action, rt route) route {
	target := targets[a.On]
	rt.name, rt.about = cmp.Or(rt.name, camelCase(a.Name)), a.Brief
	rt.more = strings.TrimSpace(a.About + " " + rt.more)
	rt.pattern = cmp.Or(rt.pattern, "POST") + " " + strings.TrimRight(target[0]+a.Path, "/")
	rt.path = cmp.Or(rt.path, strings.TrimRight(target[1]+a.Path, "/"))
	return rt
}

// camelCase joins words as programs name methods.
func camelCase(name string) string {
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == ' ' })
	for i := range words[1:] {
		words[1+i] = strings.ToUpper(words[1+i][:1]) + words[1+i][1:]
	}
	return strings.Join(words, "")
}
