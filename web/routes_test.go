package web

import (
	"maps"
	"strings"
	"testing"
)

// routeCase is one request to a filled world; the routes are named by their patterns.
type routeCase struct {
	name   string
	target string
	body   string
	status int
	want   []string // parts of the body
}

const (
	ordersPath    = "/api/v1/queues/orders/"
	recurringPath = "/api/v1/recurring/"
	workflowsPath = "/api/v1/workflows"
)

// cases has every route at its best and at its worst.
var cases = map[string][]routeCase{
	"GET /api/v1/{$}": {
		{"page", "/api/v1/", "", 200, []string{"<h1>Lowkiq</h1>", "/api/v1/openapi.yaml", "POST", "curl"}},
		{"query", "/api/v1/?x=1", "", 400, []string{`"field":"x"`}},
	},
	"GET /healthz": {{"alive", "/healthz", "", 200, []string{"ok"}}},
	"GET /readyz":  {{"ready", "/readyz", "", 200, []string{"ok"}}},
	"GET /metrics": {{"figures", "/metrics", "", 200, []string{"lowkiq_test 7"}}},
	"GET /debug/pprof/{name...}": {
		{"index", "/debug/pprof/", "", 200, []string{"goroutine"}},
		{"goroutines", "/debug/pprof/goroutine?debug=1", "", 200, []string{"goroutine profile"}},
		{"cpu", "/debug/pprof/profile?seconds=1", "", 200, nil},
		{"trace", "/debug/pprof/trace?seconds=0.01", "", 200, nil},
		{"symbol", "/debug/pprof/symbol", "", 200, []string{"num_symbols"}},
		{"none", "/debug/pprof/cmdline", "", 404, []string{`no profile \"cmdline\"`, "GET /debug/pprof/ lists them"}},
	},
	"GET /api/v1/status": {
		{"all", "/api/v1/status", "", 200, []string{
			`{"cluster":"default","generation":{"record":"01J","index":42},"leader":"n1","warnings":[],`,
			`"nodes":[{"name":"n1","instance":"n1/01J.1","state":"live","lease_age_s":0.25,"voter":true,"shards":4,"http":"127.0.0.1:7948","version":"0.1.0","since":0,"applied":0}]`,
			`{"name":"orders","shards":1,"paused":false,"unhandled":true,"lag_s":`, `"jobs":{"ready":4,"scheduled":1,"retry":2,"held":0,"in_flight":1,"blocked":1,"failed":2},"morgue":2`}},
		{"parameter", "/api/v1/status?verbose=1", "", 400, []string{`"field":"verbose"`, "takes none"}},
	},
	"GET /api/v1/shards": {{"all", "/api/v1/shards", "", 200, []string{
		`[{"queue":"orders","index":0,"assigned":"n1","owner":"n1/01J.1","fence":7,"state":"owned","lag_s":1.5}]`}}},
	"GET /api/v1/members": {{"all", "/api/v1/members", "", 200, []string{
		`[{"node":"n1","instance":"n1/01J.1","boot":"01J","state":"alive","address":"127.0.0.1:7946","since":1763600000,"draining":false}]`}}},
	"GET /api/v1/plan": {
		{"nothing", "/api/v1/plan", "", 200, []string{`{"moves":[]}`}},
		{"add", "/api/v1/plan?add=n6,n7", "", 200, []string{`{"moves":[{"queue":"orders","index":0,"from":"n1","to":"n6","reason":"owner above its share"}]}`}},
		{"unknown", "/api/v1/plan?remove=n9", "", 404, []string{`unknown node \"n9\" (known: n1)`}},
		{"name", "/api/v1/plan?add=n+6", "", 400, []string{`"field":"add"`, "use letters"}},
		{"twice", "/api/v1/plan?remove=n1,n1", "", 400, []string{`"field":"remove"`, "twice"}},
	},
	"GET /api/v1/why": {
		{"one", "/api/v1/why?queue=orders&id=s1", "", 200, []string{
			`{"id":"s1","queue":"orders","shard":0,"state":"scheduled","reason":"it is due later","due_s":12.5}`}},
		{"no id", "/api/v1/why?queue=orders", "", 400, []string{`"field":"id"`}},
		{"no queue", "/api/v1/why?id=a", "", 400, []string{`"field":"queue"`}},
		{"unknown queue", "/api/v1/why?queue=nowhere&id=a", "", 404, []string{`unknown queue \"nowhere\" (known: mail, orders)`}},
		{"no name of a queue", "/api/v1/why?queue=no+where&id=a", "", 404, []string{"unknown queue", "use letters"}},
	},
	"POST /api/v1/nodes/{n}/drain": {
		{"on", "/api/v1/nodes/n1/drain", "", 200, []string{`{"draining":true,"instance":"n1/01J.1","node":"n1","noticed":true,"shards":0}`}},
		{"undo", "/api/v1/nodes/n1/drain", `{"undo":true}`, 200, []string{`{"draining":false,`}},
		{"field", "/api/v1/nodes/n1/drain", `{"un":true}`, 400, []string{`"field":"un"`}},
		{"unknown", "/api/v1/nodes/n9/drain", "", 404, []string{`unknown node \"n9\" (known: n1, n2)`}},
		{"not heard", "/api/v1/nodes/n2/drain", "", 409, []string{"nobody listens"}},
	},
	"GET /api/v1/stats": {{"lowkiq", "/api/v1/stats", "", 200, []string{
		`{"total":{"length":8,"morgue_length":2,"lag":`, `"by_worker":{"mail":{"length":0,`, `"orders":{"length":8,`,
		`"failed":4,"busy":1,"enqueued":8,"fresh":5,"retries":3,"dead":2}`}}},
	"GET /api/v1/events": {
		{"all", "/api/v1/events?for=20ms", "", 200, []string{": listening"}},
		{"some", "/api/v1/events?for=1ms&queue=orders&id=a&verdict=done,failed", "", 200, []string{": listening"}},
		{"unknown queue", "/api/v1/events?queue=nowhere", "", 404, []string{`unknown queue \"nowhere\" (known: mail, orders)`}},
		{"verdict", "/api/v1/events?verdict=fine", "", 400, []string{`"field":"verdict"`}},
		{"for", "/api/v1/events?for=0s", "", 400, []string{`"field":"for"`, "as in 10s"}},
	},
	"GET /api/v1/stats/days": {
		{"none", "/api/v1/stats/days", "", 200, []string{`{"days":[]}`}},
		{"of a queue", "/api/v1/stats/days?queue=orders&days=92", "", 200, []string{`{"days":[]}`}},
		{"too many", "/api/v1/stats/days?days=93", "", 400, []string{`"field":"days"`, "from 1 to 92"}},
		{"unknown queue", "/api/v1/stats/days?queue=nowhere", "", 404, []string{`unknown queue \"nowhere\"`}},
	},
	"GET /api/v1/queues":     {{"all", "/api/v1/queues", "", 200, []string{`{"queues":[{"name":"mail","shards":3,"paused":false,"unhandled":true,`, `{"name":"orders"`}}},
	"GET /api/v1/queues/{q}": {{"one", "/api/v1/queues/orders", "", 200, []string{`{"name":"orders","shards":1,"paused":false`, `"processed":0`, `"codec":"","limits":{"payload_bytes":1048576,"id_payloads":10000,"id_bytes":16777216},"causes":[`}}},
	"POST /api/v1/queues/{q}/pause": {
		{"pause", ordersPath + "pause", "", 200, []string{`{"paused":true,"queue":"orders"}`}},
		{"field", ordersPath + "pause", `{"for":1}`, 400, []string{`"field":"for"`, `"line":1`}},
	},
	"POST /api/v1/queues/{q}/resume": {{"resume", ordersPath + "resume", "{}", 200, []string{`{"paused":false,"queue":"orders"}`}}},
	"POST /api/v1/queues/{q}/delete": {
		{"owned", ordersPath + "delete", `{"force":true}`, 409, []string{`shard orders/0: the queue is handled: instance n1/01J.1 owns the shard`}},
		{"empty", "/api/v1/queues/mail/delete", "", 200, []string{`{"queue":"mail","deleted":true,"needs_force":false,"jobs":0,"morgue":0}`}},
		{"dry run", "/api/v1/queues/mail/delete", `{"dry_run":true}`, 200, []string{`{"queue":"mail","deleted":false,`, `"needed_by":["the rule then.dead of queue orders passes payloads to it","the recurring entry report pushes to it"`}},
		{"filled", ordersPath + "delete", `{"dry_run":true}`, 200, []string{`"deleted":false,"needs_force":true,"jobs":9,"morgue":2`}},
		{"unknown", "/api/v1/queues/nowhere/delete", "", 404, []string{`unknown queue \"nowhere\" (known: mail, orders)`}},
		{"field", ordersPath + "delete", `{"forced":true}`, 400, []string{`"field":"forced"`}},
	},
	"POST /api/v1/queues/{q}/jobs": {
		{"object", ordersPath + "jobs", `{"id":"x","payload":{"a":1},"score":1,"perform_in":1763600000}`, 200, []string{`{"results":[{"id":"x","ok":true,"merged":false}]}`}},
		{"urgent", ordersPath + "jobs", `{"id":"x","urgent":true}`, 200, []string{`{"results":[{"id":"x","ok":true,"merged":false}]}`}},
		{"urgency", ordersPath + "jobs", `{"id":"x","urgent":"very"}`, 400, []string{`"field":"urgent"`, "must be true or false"}},
		{"array, one merged", ordersPath + "jobs", `[{"id":"x"},{"id":"r1","payload":{"n":1}}]`, 200, []string{`{"id":"x","ok":true,"merged":false}`, `{"id":"r1","ok":true,"merged":true}`}},
		{"ndjson", ordersPath + "jobs", "{\"id\":\"x\"}\n{\"id\":\"y\"}\n", 200, []string{`"id":"x"`, `"id":"y"`}},
		{"id that is not utf-8", ordersPath + "jobs", `{"id_base64":"/w==","payload":1}`, 200, []string{`{"results":[{"id_base64":"/w==","ok":true,"merged":false}]}`}},
		{"malformed line", ordersPath + "jobs", "{\"id\":\"x\"}\n{\"id\":}\n", 400, []string{`"line":2`, `"column":7`, "line 2, column 7"}},
		{"unknown field", ordersPath + "jobs", `{"id":"x","payloads":1}`, 400, []string{"payloads", `"line":1`}},
		{"empty id", ordersPath + "jobs", `{"id":""}`, 400, []string{`"field":"id"`}},
		{"empty body", ordersPath + "jobs", ``, 400, []string{`"line":1`}},
		{"parameter", ordersPath + "jobs?strict=1", `{"id":"x"}`, 400, []string{`"field":"strict"`}},
		{"wait", ordersPath + "jobs?wait=1ms", `[{"id":"x"},{"id":""}]`, 400, []string{`"field":"[1].id"`}},
		{"call", ordersPath + "jobs?wait=50ms&keep=1h", `{"id":"x"}`, 200, []string{`{"id":"x","ok":true,"merged":false,"state":"pending","token":"`}},
		{"no wait", ordersPath + "jobs?wait=0s", `{"id":"x"}`, 400, []string{`"field":"wait"`, `got \"0s\", must be a duration from 1ms to 5m0s`}},
		{"long wait", ordersPath + "jobs?wait=6m", `{"id":"x"}`, 400, []string{`"field":"wait"`}},
		{"empty wait", ordersPath + "jobs?wait=", `{"id":"x"}`, 400, []string{`"field":"wait"`}},
		{"long keep", ordersPath + "jobs?wait=1s&keep=169h", `{"id":"x"}`, 400, []string{`"field":"keep"`}},
		{"keep alone", ordersPath + "jobs?keep=1h", `{"id":"x"}`, 400, []string{`"field":"keep"`, "add wait=10s"}},
		{"calls", ordersPath + "jobs?wait=1ms", "[" + strings.Repeat(`{"id":"x"},`, MaxCalls) + `{"id":"y"}]`, 400, []string{`"field":"wait"`, "1001 jobs"}},
	},
	"GET /api/v1/queues/{q}/replies/{id}/{token}": {
		{"stranger", ordersPath + "replies/w1/AAAAAAAAAAAAAAAAAAAAAA", "", 404, []string{"no reply under this token"}},
		{"no token", ordersPath + "replies/w1/0", "", 404, []string{"is not a token"}},
	},
	"GET /api/v1/queues/{q}/jobs/{id}/history": {
		{"failed", ordersPath + "jobs/f1/history", "", 200, []string{`{"runs":[{"id":"f1","verdict":"failed","attempt":4,"retry_count":3,"shard":`, `"error":"no stock"`, `"cursor":`}},
		{"nobody's", ordersPath + "jobs/nobody/history?limit=1", "", 200, []string{`{"runs":[],"cursor":`}},
		{"limit", ordersPath + "jobs/f1/history?limit=0", "", 400, []string{`"field":"limit"`}},
	},
	"GET /api/v1/queues/{q}/journal": {
		{"newest first", ordersPath + "journal?limit=1", "", 200, []string{`{"runs":[{"id":"`, `"oldest":`}},
		{"from the beginning", ordersPath + "journal?after=0&verdict=failed&contains=stock", "", 200, []string{`{"runs":[{"id":"f1",`}},
		{"of nobody", ordersPath + "journal?node=nobody&since=1h", "", 200, []string{`{"runs":[],`}},
		{"verdict", ordersPath + "journal?verdict=failed,fine", "", 400, []string{`"field":"verdict"`, `got \"fine\", must be some of done, failed, exhausted, crashed, postponed`}},
		{"since", ordersPath + "journal?since=yesterday", "", 400, []string{`"field":"since"`, "a duration before now like 90m"}},
		{"after", ordersPath + "journal?after=x", "", 400, []string{`"field":"after"`}},
	},
	"POST /api/v1/queues/{q}/jobs/{id}/note": {
		{"of another claim", ordersPath + "jobs/w1/note", `{"progress":0.5}`, 409, []string{"fenced: the shard is claimed by another instance"}},
	},
	"GET /api/v1/recurring": {{"all", "/api/v1/recurring", "", 200, []string{
		`{"recurring":[{"name":"report","schedule":"at 06:00, Monday to Friday, Europe/Berlin","cron":"0 6 * * 1-5","zone":"Europe/Berlin","queue":"mail","id":"report","payload":{"day":"{tick}"},"missed":"one","origin":"file","edited":false,"paused":false,"next":`,
		`{"name":"sync","schedule":"every 24h","every":"24h","queue":"mail","id":"all","missed":"one","origin":"run time"`}}},
	"GET /api/v1/recurring/{entry}": {
		{"one", recurringPath + "sync", "", 200, []string{`{"name":"sync",`, `"missed_ticks":0,"late_s":0}`}},
		{"unknown", recurringPath + "nightly", "", 404, []string{`there is no recurring entry with this name: \"nightly\" (known: report, sync)`}},
	},
	"GET /api/v1/recurring/{entry}/next": {
		{"ten", recurringPath + "report/next", "", 200, []string{`{"name":"report","times":[`}},
		{"one", recurringPath + "sync/next?limit=1", "", 200, []string{`{"name":"sync","times":[1`}},
		{"limit", recurringPath + "sync/next?limit=0", "", 400, []string{`"field":"limit"`}},
		{"unknown", recurringPath + "nightly/next", "", 404, []string{`there is no recurring entry with this name`}},
	},
	"POST /api/v1/recurring/{entry}": {
		{"new", recurringPath + "tick", `{"every":"1h","offset":"5m","jitter":"2s","queue":"orders","id":"t","payload":{"at":"{tick}"},"header":{"a":"b"},"missed":"all"}`, 200,
			[]string{`{"name":"tick","schedule":"every 1h + 5m","every":"1h","offset":"5m","jitter":"2s","queue":"orders","id":"t","payload":{"at":"{tick}"},"header":{"a":"b"},"missed":"all","backlog":100,"origin":"run time"`}},
		{"there already", recurringPath + "sync", `{"every":"1s","queue":"orders"}`, 409, []string{"there is a recurring entry with this name", "edit changes it"}},
		{"never", recurringPath + "tick", `{"cron":"0 0 31 2 *","queue":"orders"}`, 400, []string{`"field":"cron"`, "never comes: no February has a day 31"}},
		{"neither", recurringPath + "tick", `{"queue":"orders"}`, 400, []string{"want cron, as in"}},
		{"unknown queue", recurringPath + "tick", `{"every":"1s","queue":"nowhere"}`, 404, []string{`unknown queue \"nowhere\" (known: mail, orders)`}},
		{"field", recurringPath + "tick", `{"every":"1s","que":"orders"}`, 400, []string{`"field":"que"`}},
		{"duration", recurringPath + "tick", `{"every":"often","queue":"orders"}`, 400, []string{`\"often\" is not a duration such as 30s or 1h30m`}},
		{"number", recurringPath + "tick", `{"every":30,"queue":"orders"}`, 400, []string{`"field":"every"`}},
		{"name", recurringPath + "a%20b", `{"every":"1s","queue":"orders"}`, 400, []string{"use letters"}},
		{"empty body", recurringPath + "tick", "", 400, []string{"body is empty"}},
	},
	"POST /api/v1/recurring/{entry}/edit": {
		{"interval", recurringPath + "sync/edit", `{"every":"48h"}`, 200, []string{`"schedule":"every 48h"`, `"id":"all"`}},
		{"of a file", recurringPath + "report/edit", `{"every":"1h","payload":null,"id":"x"}`, 200, []string{`"schedule":"every 1h","every":"1h","queue":"mail","id":"x","payload":null,"missed":"one","origin":"file","edited":true`}},
		{"wrong", recurringPath + "sync/edit", `{"jitter":"96h"}`, 400, []string{`"field":"jitter"`}},
		{"field", recurringPath + "nightly/edit", `{"jiter":"96h"}`, 400, []string{`"field":"jiter"`}},
		{"unknown", recurringPath + "nightly/edit", `{"every":"1s"}`, 404, []string{"there is no recurring entry with this name"}},
	},
	"POST /api/v1/recurring/{entry}/pause": {
		{"one", recurringPath + "report/pause", "", 200, []string{`"paused":true`}},
		{"unknown", recurringPath + "nightly/pause", "", 404, []string{"there is no recurring entry with this name"}},
		{"field", recurringPath + "report/pause", `{"for":1}`, 400, []string{`"field":"for"`}},
	},
	"POST /api/v1/recurring/{entry}/resume": {{"one", recurringPath + "report/resume", "{}", 200, []string{`"paused":false`}}},
	"POST /api/v1/recurring/{entry}/reset": {
		{"of a file", recurringPath + "report/reset", "", 200, []string{`"edited":false`}},
		{"of no file", recurringPath + "sync/reset", "", 400, []string{"it is in no file"}},
	},
	"POST /api/v1/recurring/{entry}/run": {
		{"one", recurringPath + "sync/run", "", 200, []string{`{"results":[{"id":"all","ok":true,"merged":false}]}`}},
		{"unknown", recurringPath + "nightly/run", "", 404, []string{"there is no recurring entry with this name"}},
	},
	"POST /api/v1/recurring/{entry}/remove": {
		{"one", recurringPath + "sync/remove", "", 200, []string{`{"name":"sync","removed":true}`}},
		{"of a file", recurringPath + "report/remove", "", 409, []string{"it comes from the file of a node; pause it, or take it out of the file"}},
	},
	"GET /api/v1/queues/{q}/jobs": {
		{"by due time", ordersPath + "jobs", "", 200, []string{`{"jobs":[{"id":"r1",`, `"state":"ready","shard":0,`, `"perform_in":4102444800`, `"more":false,`}},
		{"retry", ordersPath + "jobs?state=retry", "", 200, []string{`{"jobs":[{"id":"f1",`, `"retry_count":3,"error":"no stock","state":"retry"`, `{"id":"f2",`}},
		{"retries", ordersPath + "jobs?by=retries&from=0&to=0", "", 200, []string{`{"jobs":[{"id":"f2",`, `"payload_count":1,"payload_bytes":7,"cut":false}],"more":false,"next":"","examined":2,"ordered":true}`}},
		{"blocked", ordersPath + "jobs?state=blocked", "", 200, []string{`"id":"b1"`, `"state":"blocked"`}},
		{"limit", ordersPath + "jobs?by=id&limit=1", "", 200, []string{`{"jobs":[{"id":"a/b",`, `],"more":true,"next":"ey`}},
		{"one of them", ordersPath + "jobs?id=a/b", "", 200, []string{`{"id":"a/b",`}},
		{"one in base64", ordersPath + "jobs?id_base64=/w==", "", 200, []string{`{"id_base64":"/w==",`}},
		{"bad base64", ordersPath + "jobs?id_base64=%25", "", 400, []string{`"field":"id_base64"`}},
		{"one and more", ordersPath + "jobs?id=a&limit=1", "", 400, []string{`"field":"id"`}},
		{"unknown parameter", ordersPath + "jobs?limt=1", "", 400, []string{`"field":"limt"`, "known are id, id_base64, state"}},
	},
	"GET /api/v1/queues/{q}/jobs/{id}": {
		{"waiting", ordersPath + "jobs/r1", "", 200, []string{`{"id":"r1","payloads":[{"score":`, `"payload":{"n":1}}]`, `"state":"ready"`}},
		{"escaped", ordersPath + "jobs/a%2Fb", "", 200, []string{`{"id":"a/b",`}},
		{"not utf-8", ordersPath + "jobs/%FF", "", 200, []string{`{"id_base64":"/w==",`}},
		{"in flight", ordersPath + "jobs/w1", "", 200, []string{`"state":"in_flight","shard":0,"flight":1,"parked":0,"since":`}},
		{"in the morgue", ordersPath + "jobs/d1", "", 200, []string{`"state":"morgue"`, `"perform_in":null`, `"buried_at":`}},
		{"none", ordersPath + "jobs/nobody", "", 404, []string{`no job \"nobody\"`}},
	},
	"GET /api/v1/queues/{q}/in-flight": {
		{"list", ordersPath + "in-flight", "", 200, []string{`{"jobs":[{"id":"w1",`, `"more":false,`}},
		{"order", ordersPath + "in-flight?by=retries", "", 400, []string{`"field":"by"`}},
	},
	"GET /api/v1/queues/{q}/morgue": {
		{"by time", ordersPath + "morgue", "", 200, []string{`{"jobs":[{"id":"d1",`, `{"id":"d2",`}},
		{"reverse by id", ordersPath + "morgue?by=id&reverse", "", 200, []string{`{"jobs":[{"id":"d2",`}},
		{"limit", ordersPath + "morgue?limit=1001", "", 400, []string{`"field":"limit"`, "1 to 1000"}},
	},
	"GET /api/v1/queues/{q}/tags": {
		{"all", ordersPath + "tags", "", 200, []string{`{"tags":[{"tag":"new","jobs":1,"payloads":1},{"tag":"vip","jobs":1,"payloads":1}],"more":false,"next":"","examined":9,"through":1}`}},
		{"state", ordersPath + "tags?state=retry", "", 400, []string{`"field":"state"`}},
		{"cursor", ordersPath + "tags?state=morgue&cursor=x", "", 400, []string{"cursor is damaged"}},
	},
	"GET /api/v1/queues/{q}/errors": {
		{"failed", ordersPath + "errors", "", 200, []string{`{"state":"failed","groups":[{"kind":"no price","jobs":1,"payloads":1,"newest":`, `"example":{"id":"f2"},"error":"no price"}`, `"examined":2,"all":true}`}},
		{"buried", ordersPath + "errors?state=morgue", "", 200, []string{`{"kind":"dead","jobs":1,`, `"example":{"id":"d1"}`}},
		{"ready", ordersPath + "errors?state=ready", "", 400, []string{`"field":"state"`}},
	},
	"GET /api/v1/openapi.yaml":             {{"text", "/api/v1/openapi.yaml", "", 200, []string{"openapi: 3.1.0", "/api/v1/queues/{q}/jobs"}}},
	"GET /api/v1/redis":                    {{"one", "/api/v1/redis", "", 200, []string{`{"url":"127.0.0.1:`, `"version":"`, `"role":"master"`, `"used_memory_human":"`}}},
	"POST /api/v1/queues/{q}/jobs/run-now": {{"ids", ordersPath + "jobs/run-now", `{"ids":["s1","f1","nobody"]}`, 200, []string{`{"changed":2,"skipped":`}}},
	"POST /api/v1/queues/{q}/jobs/kill":    {{"ids", ordersPath + "jobs/kill", `{"ids":["r1"]}`, 200, []string{`{"changed":1,"skipped":`}}},
	"POST /api/v1/queues/{q}/run-all-now":  {{"all", ordersPath + "run-all-now", "", 200, []string{`{"changed":3,"skipped":`}}},
	"POST /api/v1/queues/{q}/kill-all-failed": {
		{"all", ordersPath + "kill-all-failed", "{}", 200, []string{`{"changed":2,"skipped":`}},
		{"in steps", ordersPath + "kill-all-failed", `{"limit":1}`, 200, []string{`{"changed":1,"skipped":0,"left":1,"next":"ey`}},
		{"ids", ordersPath + "kill-all-failed", `{"ids":["f1"]}`, 400, []string{`"field":"ids"`}},
	},
	"POST /api/v1/queues/{q}/jobs/{id}/track": {
		{"on", ordersPath + "jobs/a%2Fb/track", `{"why":"a ticket"}`, 200, []string{`{"id":"a/b","queue":"orders","tracked":true,"count":1}`}},
		{"not on", ordersPath + "jobs/a/track", `{"undo":true}`, 200, []string{`{"id":"a","queue":"orders","tracked":false,"count":0}`}},
		{"not UTF-8", ordersPath + "jobs/%FF/track", ``, 400, []string{`"field":"id"`}},
		{"no undo", ordersPath + "jobs/a/track", `{"off":true}`, 400, []string{`"field":"off"`}},
	},
	"POST /api/v1/queues/{q}/jobs/{id}/cancel": {
		{"runs", ordersPath + "jobs/w1/cancel", `{"why":"it hangs"}`, 200, []string{`{"id":"w1","queue":"orders","cancelled":true,"then":"retry"}`}},
		{"and hold", ordersPath + "jobs/w1/cancel", `{"then":"hold"}`, 200, []string{`"then":"hold"`}},
		{"does not run", ordersPath + "jobs/f1/cancel", ``, 409, []string{`not running`}},
		{"no answer", ordersPath + "jobs/frozen/cancel", ``, 409, []string{`try again`}},
		{"no such end", ordersPath + "jobs/w1/cancel", `{"then":"kill"}`, 400, []string{`"field":"then"`, "must be retry, hold, bury or delete"}},
		{"not UTF-8", ordersPath + "jobs/%FF/cancel", `{"then":"hold"}`, 400, []string{`"field":"id"`}},
		{"no queue", "/api/v1/queues/none/jobs/w1/cancel", ``, 404, []string{"none"}},
	},
	"GET /api/v1/queues/{q}/reshard":  {{"none", ordersPath + "reshard", "", 200, []string{`{"queue":"orders","phase":"none","from":`}}},
	"POST /api/v1/queues/{q}/reshard": {{"dry run", ordersPath + "reshard", `{"shards":7,"dry_run":true}`, 200, []string{`"to":7`, `"estimate":{"jobs":`}}},
	"GET /api/v1/workflows": {
		{"none", workflowsPath, "", 200, []string{`{"workflows":[]}`}},
		{"state", workflowsPath + "?state=dead", "", 200, []string{`{"workflows":[]}`}},
		{"no such state", workflowsPath + "?state=stored", "", 400, []string{`state \"stored\": must be running, done`}},
		{"cursor", workflowsPath + "?cursor=x", "", 400, []string{"must be the cursor of a page before"}},
		{"limit", workflowsPath + "?limit=0", "", 400, []string{"must be a number from 1"}},
	},
	"GET /api/v1/workflows/{workflow}": {{"none", workflowsPath + "/none", "", 404, []string{`no such workflow \"none\"`}}},
	"PUT /api/v1/workflows/{workflow}": {
		{"start", workflowsPath + "/w1", `{"jobs":[{"queue":"orders","id":"w1"}],"done":{"queue":"orders","id":"d"}}`, 201, []string{`{"id":"w1","state":"stored","total":1,"done":0,"dead":0,"waiting":0,"running":1,"dropped":0,"open":false,"dead_names":[]}`}},
		{"unknown queue", workflowsPath + "/w2", `{"jobs":[{"queue":"none","id":"w1"}]}`, 404, []string{`unknown queue \"none\"`}},
		{"unknown name", workflowsPath + "/w2", `{"jobs":[{"queue":"orders","id":"w1","after":["x"]}]}`, 400, []string{`no job of this call has that name`}},
		{"id", workflowsPath + "/a%20b", `{"jobs":[]}`, 400, []string{"without spaces"}},
		{"forged address", workflowsPath + "/w2", `{"jobs":[{"queue":"orders","id":"w1","reply_to":"fw 1 1 x"}]}`, 400, []string{`unknown field \"reply_to\"`}},
		{"urgent", workflowsPath + "/w2", `{"jobs":[{"queue":"orders","id":"w1","urgent":true}]}`, 400, []string{"must not be urgent"}},
	},
	"POST /api/v1/workflows/{workflow}/jobs":  {{"none", workflowsPath + "/none/jobs", `{"jobs":[{"queue":"orders","id":"w1"}]}`, 404, []string{"no such workflow"}}},
	"POST /api/v1/workflows/{workflow}/close": {{"none", workflowsPath + "/none/close", "", 404, []string{"no such workflow"}}},
	"DELETE /api/v1/workflows/{workflow}":     {{"none", workflowsPath + "/none", "", 404, []string{"no such workflow"}}},
	"GET /api/v1/queues/{q}/outgoing":         {{"none", ordersPath + "outgoing", "", 200, []string{`{"queue":"orders","waiting":0,"first":[]}`}}},
	"POST /api/v1/queues/{q}/outgoing/drop": {
		{"none", ordersPath + "outgoing/drop", `{"drop":1}`, 200, []string{`{"dropped":0,"waiting":0}`}},
		{"not a number", ordersPath + "outgoing/drop", `{"drop":0}`, 400, []string{"drop: must be a whole number of at least 1, got 0"}},
	},
	"DELETE /api/v1/queues/{q}/reshard": {{"none", ordersPath + "reshard", "", 409, []string{"it is not being resharded"}}},
	"GET /api/v1/queues/{q}/holds":      {{"none", ordersPath + "holds", "", 200, []string{`{"queue":"orders","held":0,"holds":[]}`}}},
	"POST /api/v1/queues/{q}/holds": {
		{"a prefix", ordersPath + "holds", `{"prefix":"acme:","for":"1h","why":"sale"}`, 200, []string{`{"prefix":"acme:","queue":"orders","undone":false,"held":true,"until":`, `"count":1}`}},
		{"an id", ordersPath + "holds", `{"id":"a/b"}`, 200, []string{`{"id":"a/b","queue":"orders","undone":false,"held":true,"count":1}`}},
		{"not held", ordersPath + "holds", `{"id":"a","undo":true}`, 200, []string{`{"id":"a","queue":"orders","undone":false,"held":false,"count":0}`}},
		{"neither", ordersPath + "holds", `{}`, 400, []string{"there must be an id or a prefix of ids; to hold all of a queue, pause it"}},
		{"both", ordersPath + "holds", `{"id":"a","prefix":"b"}`, 400, []string{"not both"}},
		{"bad time", ordersPath + "holds", `{"id":"a","for":"soon"}`, 400, []string{`"field":"for"`, "as in 2h"}},
		{"time of nothing", ordersPath + "holds", `{"id":"a","for":"1h","undo":true}`, 400, []string{`"field":"for"`}},
		{"no key", ordersPath + "holds", `{"prefixes":["a"]}`, 400, []string{`"field":"prefixes"`}},
		{"no queue", "/api/v1/queues/none/holds", `{"id":"a"}`, 404, []string{"none"}},
	},
	"GET /api/v1/queues/{q}/rules": {{"all", ordersPath + "rules", "", 200, []string{`{"queue":"orders","revision":0,"handled":true,"rules":[{"key":"batch_size","value":3,"from":"node.yaml:5:17"}`, `"fixed":"the count says`}}},
	"PATCH /api/v1/queues/{q}/rules": {
		{"set", ordersPath + "rules", `{"set":{"batch_size":10},"for":"2h","why":"sale"}`, 200, []string{`"revision":1`, `{"key":"batch_size","value":10,"from":"run time","by":{"role":"anyone","address":"192.0.2.1:1234","node":"n1"},"at":`, `"why":"sale","otherwise":3}`}},
		{"unset", ordersPath + "rules", `{"unset":["batch_size"]}`, 200, []string{`"revision":1`}},
		{"nothing", ordersPath + "rules", `{"why":"sale"}`, 400, []string{"nothing is set or unset"}},
		{"unknown key", ordersPath + "rules", `{"set":{"batchsize":10}}`, 400, []string{`did you mean \"batch_size\"?`}},
		{"fixed key", ordersPath + "rules", `{"set":{"shards":10}}`, 400, []string{"shards does not change at run time"}},
		{"bad value", ordersPath + "rules", `{"set":{"batch_size":0}}`, 400, []string{"want a whole number, 1 to 1000, got 0"}},
		{"bad time", ordersPath + "rules", `{"set":{"batch_size":1},"for":"-1h"}`, 400, []string{`"field":"for"`}},
		{"time of nothing", ordersPath + "rules", `{"unset":["batch_size"],"for":"1h"}`, 400, []string{`"field":"for"`, "applies to settings"}},
		{"both", ordersPath + "rules", `{"set":{"batch_size":1},"unset":["batch_size"]}`, 400, []string{"set and unset at once"}},
		{"no body", ordersPath + "rules", ``, 400, []string{"body is empty"}},
		{"no queue", "/api/v1/queues/none/rules", `{"set":{"batch_size":1}}`, 404, []string{"none"}},
	},
	"GET /api/v1/changes": {
		{"none", "/api/v1/changes", "", 200, []string{`{"changes":[],"cursor":""}`}},
		{"after", "/api/v1/changes?after=0&queue=orders&action=rules&user=ann&id=a&since=1h&limit=3", "", 200, []string{`{"changes":[],"cursor":"0"}`}},
		{"bad cursor", "/api/v1/changes?after=x", "", 400, []string{`"field":"after"`}},
		{"bad time", "/api/v1/changes?since=x", "", 400, []string{`"field":"since"`}},
		{"bad limit", "/api/v1/changes?limit=0", "", 400, []string{`"field":"limit"`}},
	},
	"POST /api/v1/queues/{q}/delete-all-failed": {{"all", ordersPath + "delete-all-failed", "", 200, []string{`{"changed":2,"skipped":`}}},
	"POST /api/v1/queues/{q}/blocked/requeue":   {{"ids", ordersPath + "blocked/requeue", `{"ids":["b1","f1"]}`, 200, []string{`{"changed":1,"skipped":`}}},
	"POST /api/v1/queues/{q}/blocked/skip":      {{"ids", ordersPath + "blocked/skip", `{"ids":["b1","f1"]}`, 200, []string{`{"changed":1,"skipped":`}}},
	"POST /api/v1/queues/{q}/blocked/bury":      {{"ids", ordersPath + "blocked/bury", `{"ids":["b1","f1"]}`, 200, []string{`{"changed":1,"skipped":`}}},
	"POST /api/v1/queues/{q}/jobs/delete": {
		{"ids", ordersPath + "jobs/delete", `{"ids":["r1"],"ids_base64":["/w=="]}`, 200, []string{`{"changed":2,"skipped":`}},
		{"no ids", ordersPath + "jobs/delete", `{"ids":[]}`, 400, []string{`"field":"ids"`}},
		{"no body", ordersPath + "jobs/delete", ``, 400, []string{"body is empty"}},
		{"all", ordersPath + "jobs/delete", `{"all":true}`, 200, []string{`{"changed":7,"skipped":0,"left":0,"next":""}`}},
		{"some of all", ordersPath + "jobs/delete", `{"all":true,"state":"ready","limit":3}`, 200, []string{`{"changed":3,"skipped":0,"left":1,"next":"ey`}},
		{"state", ordersPath + "jobs/delete", `{"all":true,"state":"blocked"}`, 400, []string{`"field":"state"`}},
	},
	"POST /api/v1/queues/{q}/morgue/requeue": {
		{"ids", ordersPath + "morgue/requeue", `{"ids":["d1","r1"]}`, 200, []string{`{"changed":1,"skipped":`}},
		{"all", ordersPath + "morgue/requeue", `{"all":true}`, 200, []string{`{"changed":2,"skipped":`}},
		{"neither", ordersPath + "morgue/requeue", `{"all":false}`, 400, []string{`"field":"ids"`}},
		{"both", ordersPath + "morgue/requeue", `{"all":true,"ids":["d1"]}`, 400, []string{`"field":"all"`}},
	},
	"POST /api/v1/queues/{q}/morgue/delete": {
		{"ids", ordersPath + "morgue/delete", `{"ids":["d2"]}`, 200, []string{`{"changed":1,"skipped":`}},
		{"all", ordersPath + "morgue/delete", `{"all":true}`, 200, []string{`{"changed":2,"skipped":`}},
	},
}

func TestEveryRoute(t *testing.T) {
	url := shared(t)
	for pattern, list := range cases {
		method, _, _ := strings.Cut(pattern, " ")
		for _, c := range list {
			t.Run(pattern+" "+c.name, func(t *testing.T) {
				t.Parallel()
				expect(t, newWorld(t, url).fill().do(method, c.target, c.body), c.status, c.want...)
			})
		}
	}
}

// Every route below a queue answers for one that does not exist.
func TestUnknownQueue(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	for pattern, list := range cases {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.HasPrefix(path, "/api/v1/queues/{q}") {
			continue
		}
		t.Run(pattern, func(t *testing.T) {
			target := strings.Replace(list[0].target, "orders", "nowhere", 1)
			expect(t, w.do(method, target, list[0].body), 404, `unknown queue \"nowhere\" (known: mail, orders)`)
			target = strings.Replace(list[0].target, "orders", "no%20where", 1)
			expect(t, w.do(method, target, list[0].body), 404, "unknown queue", "use letters")
		})
	}
}

// TestEmptyPart checks that a path with an empty name or id gets an error, and does not lead to another route.
func TestEmptyPart(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	for _, path := range []string{"GET /api/v1/workflows/", "GET /api/v1/queues//jobs", "PUT /api/v1/workflows/", "POST /api/v1/queues/orders/jobs//kill"} {
		method, target, _ := strings.Cut(path, " ")
		expect(t, w.do(method, target, "{}"), 404, "nothing is at "+target+", as a part of the path is empty, such as a name or an id")
	}
	w.push(job("a//"))
	expect(t, w.do("GET", "/api/v1/queues/orders/jobs/a%2F%2F/history", ""), 200)
}

func TestNoRouteIsUntested(t *testing.T) {
	t.Parallel()
	left := maps.Clone(cases)
	for _, rt := range (&api{}).listRoutes() {
		if len(cases[rt.pattern]) == 0 {
			t.Errorf("%s has no case", rt.pattern)
		}
		delete(left, rt.pattern)
	}
	for pattern := range left {
		t.Errorf("%s has cases, but is no route", pattern)
	}
}

// A node without a cluster says so.
func TestNoCluster(t *testing.T) {
	w := newWorld(t, shared(t))
	w.node.alone = true
	for _, target := range []string{"/api/v1/members", "/api/v1/plan"} {
		expect(t, w.do("GET", target, ""), 409, "not in a cluster")
	}
}
