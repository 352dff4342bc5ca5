package web

import (
	_ "embed" // the description
	"io"
	"net/http"
	"net/http/pprof"
	runtimepprof "runtime/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// healthz says that the process is alive, whatever the state of Redis or the cluster:
// a restart would mend neither.
func (a *api) healthz(w http.ResponseWriter, _ *http.Request) (any, error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n")
	return nil, nil
}

func (a *api) readyz(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := a.node.Ready(); err != nil {
		return nil, NewProblem(http.StatusServiceUnavailable, "%v", err)
	}
	return a.healthz(w, r)
}

func (a *api) metrics(w http.ResponseWriter, r *http.Request) (any, error) {
	promhttp.HandlerFor(a.node.Metrics(), promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil, nil
}

// profile serves Go's profiles, but for the command line, which may hold secrets.
func (a *api) profile(w http.ResponseWriter, r *http.Request) (any, error) {
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

// openapiText describes the API for programs. A test holds it against the routes and
// their answers.
//
//go:embed openapi.yaml
var openapiText []byte

func (a *api) openapi(w http.ResponseWriter, _ *http.Request) (any, error) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openapiText)
	return nil, nil
}
