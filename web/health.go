package web

import (
	_ "embed" // the description
	"io"
	"net/http"
	"net/http/pprof"
	runtimepprof "runtime/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// checkHealth answers that the process is alive, whatever the state of Redis or the cluster, because a restart
// would mend neither.
func (a *api) checkHealth(w http.ResponseWriter, _ *http.Request) (any, error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n")
	return nil, nil
}

// checkReady answers whether the node serves all its shards. A rolling update waits for that before it replaces
// the next node.
func (a *api) checkReady(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := a.node.Ready(); err != nil {
		return nil, NewProblem(http.StatusServiceUnavailable, "%v", err)
	}
	return a.checkHealth(w, r)
}

// writeMetrics answers a scrape. It reads the figures of the shards that this node owns, and on the leader
// those of shards without an owner. So the scrapes of all nodes together read each shard once.
func (a *api) writeMetrics(w http.ResponseWriter, r *http.Request) (any, error) {
	promhttp.HandlerFor(a.node.Metrics(), promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil, nil
}

// writeProfile serves Go's profiles. Its route needs the role Admin. It leaves out the command line, which may
// hold secrets.
func (a *api) writeProfile(w http.ResponseWriter, r *http.Request) (any, error) {
	switch name := r.PathValue("name"); name {
	case "profile":
		pprof.Profile(w, r)
	case "trace":
		pprof.Trace(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	default:
		if name != "" && runtimepprof.Lookup(name) == nil {
			return nil, NewProblem(http.StatusNotFound, "no profile %q; GET /debug/pprof/ lists them", name)
		}
		pprof.Index(w, r)
	}
	return nil, nil
}

// openapiText describes the API for programs. TestOpenAPIIsCurrent makes it from the table of routes.
//
//go:embed openapi.yaml
var openapiText []byte

func (a *api) writeOpenAPI(w http.ResponseWriter, _ *http.Request) (any, error) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openapiText)
	return nil, nil
}
