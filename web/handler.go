package web

import (
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/web/auth"
)

// api serves the routes.
type api struct {
	node   Node
	client *queue.Client
	cfg    Config
	page   *page
	mux    *http.ServeMux
	needs  map[string]auth.Role // by pattern of mux
	memory *memory              // of all admitted requests
	events *events.Hub
}

// New builds the HTTP face of a node, for a server of the program's own; see [Serve]. The files of
// cfg.TLS are not looked at: with ClientAuth that server must verify the certificates of clients.
func New(n Node, cfg Config) (http.Handler, error) {
	of := cfg.TLS
	cfg.TLS = TLS{}
	cfg, err := cfg.withDefaults()
	cfg.TLS = of
	if err != nil {
		return nil, fmt.Errorf("web: %w", err)
	}
	handler, _, err := build(n, cfg)
	return handler, err
}

// build makes the handler and the pages in it; no pages are nil.
func build(n Node, cfg Config) (http.Handler, Pages, error) {
	page, err := newPage()
	if err != nil {
		return nil, nil, err
	}
	var pages Pages
	people := http.Handler(http.HandlerFunc(nowhere))
	if cfg.Pages != nil {
		if pages, err = cfg.Pages(n, cfg); err != nil {
			return nil, nil, err
		}
		people = pages
	}
	a := &api{node: n, client: n.Client(), cfg: cfg, page: page, mux: http.NewServeMux(), needs: map[string]auth.Role{}, memory: &memory{most: cfg.RequestMemory},
		events: events.NewHub(maxEventStreams, n.Client().Events)}
	for _, rt := range a.routes() {
		a.mux.Handle(rt.pattern, a.handler(rt))
		a.needs[rt.pattern] = rt.needs()
	}
	guard, err := auth.New(auth.Config{
		Tokens: cfg.Tokens, Certificates: cfg.TLS.ClientAuth, Names: cfg.ownNames(), Wanted: a.wanted, Pages: people, Log: cfg.Log,
		Refuse: func(w http.ResponseWriter, status int, detail string) { NewProblem(status, "%s", detail).write(w) },
	})
	if err != nil {
		return nil, nil, fmt.Errorf("web: %w", err)
	}
	return a.withHeaders(guard.Wrap(a.admit(withOrigin(withMisses(a.mux, guard.Pages()))))), pages, nil
}

// handler checks a route's query, serves it, and answers its errors.
func (a *api) handler(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		err := checkQuery(r.URL.RawQuery, rt.query)
		if err == nil {
			answer, err = rt.serve(w, r)
		}
		switch {
		case err != nil:
			a.fail(w, r, err)
		case answer != nil:
			writeAs(w, "application/json", http.StatusOK, answer)
		}
	})
}

// What every request goes through, from the outside in: headers, the guard, admission, the origin,
// the routes.

// withHeaders says what a browser may do with any answer: show it, with what this node
// serves and nothing else.
func (a *api) withHeaders(next http.Handler) http.Handler {
	policy := "default-src 'none'; script-src 'self'; style-src 'self' '" + a.page.styleHash + "'; img-src 'self' data:; " +
		"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		// Not no-referrer: a browser would send Origin: null with forms, and where Sec-Fetch-Site
		// is missing, which is on plain HTTP beyond loopback, none could be told from another
		// site's.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// wanted is the role that a request asks for.
func (a *api) wanted(r *http.Request) auth.Role {
	if _, pattern := a.mux.Handler(r); pattern != "" {
		return a.needs[pattern]
	}
	switch at := r.URL.Path; {
	case auth.IsLogin(at):
		return auth.Anonymous
	case auth.Reads(r) && strings.HasPrefix(at, "/static/") && path.Clean(at) == at:
		return auth.Anonymous
	case auth.Reads(r):
		return auth.Read
	}
	return auth.Admin
}

// withOrigin refuses what the page of another site makes a browser send.
func withOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		NewProblem(http.StatusForbidden, "a page of another site may not change anything here").write(w)
	}))
	return protection.Handler(next)
}

// withMisses answers unknown paths and wrong methods as problems; the mux itself
// answers with plain text.
// What is no API path either is the pages'.
func withMisses(mux *http.ServeMux, pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		miss, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		answer := &dryAnswer{header: http.Header{}}
		miss.ServeHTTP(answer, r)
		if answer.status == http.StatusMethodNotAllowed {
			allow := answer.header.Get("Allow")
			w.Header().Set("Allow", allow)
			NewProblem(answer.status, "%s is not possible here: %s is", r.Method, allow).write(w)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/api/") {
			nowhere(w, r)
			return
		}
		pages.ServeHTTP(w, r)
	})
}

func nowhere(w http.ResponseWriter, r *http.Request) {
	NewProblem(http.StatusNotFound, "nothing is at %s; GET /api/v1/ lists what there is", r.URL.Path).write(w)
}

// dryAnswer keeps what a handler would have answered, but for the body.
type dryAnswer struct {
	header http.Header
	status int
}

func (d *dryAnswer) Header() http.Header         { return d.header }
func (d *dryAnswer) Write(b []byte) (int, error) { return len(b), nil }
func (d *dryAnswer) WriteHeader(status int)      { d.status = status }
