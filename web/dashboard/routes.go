package dashboard

import "net/http"

// Where forms go.
const (
	confirmPath = "/confirm"
	doPath      = "/do"
)

// routes are all pages there are. Nothing that is read by GET changes anything.
func (d *Dashboard) routes() {
	get := func(path string, load func(*http.Request) (view, error)) { d.mux.Handle("GET "+path, d.page(load)) }
	get("/{$}", d.overviewPage)
	get("/queues/{q}", d.queuePage)
	for _, kind := range listKinds() {
		get("/queues/{q}/"+kind.path, d.listPage(kind))
	}
	get("/queues/{q}/errors", d.errorsPage)
	get("/queues/{q}/job", d.jobPage)
	get("/shards", d.shardsPage)
	get("/nodes", d.nodesPage)
	get("/plan", d.planPage)
	get("/redis", d.redisPage)
	get(resultPath, d.resultPage)
	get("/", d.nowhere)
	d.mux.HandleFunc("GET /search", d.search)
	d.mux.HandleFunc("GET /static/{file}", d.static)
	d.mux.HandleFunc("GET /events", d.events)
	d.mux.HandleFunc("POST "+confirmPath, d.confirm)
	d.mux.HandleFunc("POST "+doPath, d.perform)
	for _, pattern := range []string{"GET " + confirmPath, "GET " + doPath, "/"} {
		d.mux.HandleFunc(pattern, d.wrongMethod)
	}
}
