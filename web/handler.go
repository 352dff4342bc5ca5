package web

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// api serves the routes.
type api struct {
	node   Node
	client *protocol.Client
	cfg    Config
	page   *page
	mux    *http.ServeMux
	roles  map[string]auth.Role // that routes need, by pattern of mux
	memory *memory.Budget       // of all admitted requests
	events *events.Hub

	operator *actions.Operator
}

// New builds the HTTP handler of a node, for a server of the program's own; see [Serve]. All links are
// relative, so the handler may be mounted below any prefix of a [http.ServeMux], with [http.StripPrefix] or
// without, and behind proxies that strip a prefix.
//
// The pages of cfg.Pages show figures while the node runs, so with pages New must be called before the
// node's Run. New does not listen at cfg.Address, and other nodes do not learn where the program serves the
// handler. It does not read the files of cfg.TLS. With ClientAuth the program's server must verify the
// certificates of clients.
func New(n Node, cfg Config) (http.Handler, error) {
	of := cfg.TLS
	cfg.TLS = TLS{}
	cfg, err := cfg.withDefaults()
	cfg.TLS = of
	if err != nil {
		return nil, fmt.Errorf("web: %w", err)
	}
	handler, pages, err := buildHandler(n, cfg)
	if err != nil {
		return nil, err
	}
	if pages != nil {
		if err := n.Attach(func() (url string, err error) { return "", nil }, pages.Run); err != nil {
			return nil, fmt.Errorf("web: %w", err)
		}
	}
	return stripMount(handler), nil
}

// stripMount passes requests on to next without the handler's mount prefix.
func stripMount(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, _, _ := strings.Cut(r.RequestURI, "?")
		pattern := r.Pattern[max(0, strings.IndexByte(r.Pattern, '/')):] // without method and host
		prefix := strings.TrimSuffix(pattern, "/")
		switch at := r.URL.Path; {
		case at == "" && !strings.HasSuffix(asked, "/"): // relative links need a page whose path ends with a slash
			w.Header().Set("Location", "./"+path.Base(asked)+"/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case !strings.HasPrefix(at, "/"): // a prefix with a slash at its end was stripped
			u := *r.URL
			u.Path = "/" + at
			if u.RawPath != "" {
				u.RawPath = "/" + u.RawPath
			}
			below := *r
			below.URL = &u
			next.ServeHTTP(w, &below)
		case prefix != "" && asked == r.URL.EscapedPath() && strings.HasPrefix(at, prefix+"/"): // the prefix is not stripped yet
			http.StripPrefix(prefix, next).ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// buildHandler returns the handler and its pages, which are nil if none are configured.
func buildHandler(n Node, cfg Config) (http.Handler, Pages, error) {
	if cfg.Cluster == nil {
		cfg.Cluster = status.Of(n)
	}
	page, err := newPage()
	if err != nil {
		return nil, nil, err
	}
	var pages Pages
	people := http.Handler(http.HandlerFunc(writeNotFound))
	if cfg.Pages != nil {
		if pages, err = cfg.Pages(n, cfg); err != nil {
			return nil, nil, err
		}
		people = pages
	}
	a := &api{node: n, client: n.Client().Protocol(), cfg: cfg, page: page, mux: http.NewServeMux(), roles: map[string]auth.Role{}, memory: memory.New(cfg.RequestMemory),
		events: events.NewHub(maxEventStreams, n.Client().Events), operator: actions.New(n, cfg.Cluster, cfg.Log)}
	for _, rt := range a.listRoutes() {
		a.mux.Handle(rt.pattern, a.handleRoute(rt))
		a.roles[rt.pattern] = rt.requiredRole()
	}
	guard, err := auth.New(auth.Config{
		Tokens: cfg.Tokens, Certificates: cfg.TLS.ClientAuth, Names: cfg.ownNames(), Required: a.requiredRole, Pages: people, Log: cfg.Log,
		Refuse: func(w http.ResponseWriter, status int, detail string) { NewProblem(status, "%s", detail).write(w) },
	})
	if err != nil {
		return nil, nil, fmt.Errorf("web: %w", err)
	}
	return a.withHeaders(guard.Wrap(a.admitRequests(withOrigin(withMisses(a.mux, guard.Pages()))))), pages, nil
}

// handleRoute returns the handler of a route. It checks the query, serves the request, and answers errors. The
// role was checked before, by the guard.
func (a *api) handleRoute(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		err := checkQuery(r.URL.RawQuery, rt.query)
		if err == nil {
			answer, err = rt.serve(w, r)
		}
		code := http.StatusOK
		if of, ok := answer.(createdAnswer); ok {
			answer, code = of.answer, http.StatusCreated
		}
		switch {
		case err != nil:
			a.writeError(w, r, err)
		case answer != nil:
			writeAs(w, "application/json", code, answer)
		}
	})
}

// The layers of the handler, from the outside in, are headers, the guard, admission, the origin and the routes.
// Headers come first, so that refusals have them, too. The guard comes before admission, so that requests
// without a token take neither a place nor memory. The guard alone does not stop pages of
// other sites. A browser sends its client certificate with their forms, too, and a node that asks for no token
// allows them.

// withHeaders adds headers that make browsers use only files of this node in pages.
func (a *api) withHeaders(next http.Handler) http.Handler {
	policy := "default-src 'none'; script-src 'self'; style-src 'self' '" + a.page.styleHash + "'; img-src 'self' data:; " +
		"connect-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		// With no-referrer a browser would send Origin: null with forms. Without Sec-Fetch-Site, which
		// is missing on plain HTTP beyond loopback, withOrigin could not tell these forms from forms of
		// another site.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// requiredRole returns the role that a request needs. Paths outside the table of routes belong to the pages. To
// read them needs the role Read. Everything else needs Admin, so a form of a page need not ask for a role, and
// a page that is added later cannot change anything by mistake. The files below /static/ need no token, because
// the login page uses them.
func (a *api) requiredRole(r *http.Request) auth.Role {
	if _, pattern := a.mux.Handler(r); pattern != "" {
		return a.roles[pattern]
	}
	switch at := r.URL.Path; {
	case auth.IsLogin(at):
		return auth.Anonymous
	case auth.IsRead(r) && strings.HasPrefix(at, "/static/") && path.Clean(at) == at:
		return auth.Anonymous
	case auth.IsRead(r):
		return auth.Read
	}
	return auth.Admin
}

// withOrigin refuses requests that the page of another site makes a browser send. If a proxy has
// rewritten Host, X-Forwarded-Host has the host that the browser asked for. The header can be believed
// from any sender, because no page can make a browser send it to another site, unless that site allows
// it.
func withOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
		from, err := url.Parse(origin)
		switch {
		case site != "" || err != nil || from.Host == "":
			NewProblem(http.StatusForbidden, "a page of another site may not change anything here").write(w)
		case strings.EqualFold(from.Host, r.Header.Get("X-Forwarded-Host")):
			next.ServeHTTP(w, r)
		default:
			NewProblem(http.StatusForbidden, "a page of another site, %.300s, may not change anything at %.300s. If they are the same site, a proxy between them rewrites Host; "+
				"it must pass Host on, or set X-Forwarded-Host to it", origin, r.Host).write(w)
		}
	}))
	return protection.Handler(next)
}

// withMisses answers unknown paths and wrong methods of the API as problems, where the mux itself would
// answer with plain text. A path with an empty part is such a path. It passes all other paths on to the pages.
func withMisses(mux *http.ServeMux, pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api/v1/"); ok && strings.Contains(rest+"/", "//") {
			NewProblem(http.StatusNotFound, "nothing is at %s, as a part of the path is empty, such as a name or an id", r.URL.Path).write(w)
			return // the mux would redirect
		}
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
			NewProblem(answer.status, "%s is not possible here, but %s is", r.Method, allow).write(w)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/api/") {
			writeNotFound(w, r)
			return
		}
		pages.ServeHTTP(w, r)
	})
}

// writeNotFound answers a path of the API that no route has.
func writeNotFound(w http.ResponseWriter, r *http.Request) {
	NewProblem(http.StatusNotFound, "nothing is at %s; GET /api/v1/ lists all routes", r.URL.Path).write(w)
}

// dryAnswer keeps the headers and the status of an answer, and drops its body.
type dryAnswer struct {
	header http.Header
	status int
}

func (d *dryAnswer) Header() http.Header         { return d.header }
func (d *dryAnswer) Write(b []byte) (int, error) { return len(b), nil }
func (d *dryAnswer) WriteHeader(status int)      { d.status = status }
