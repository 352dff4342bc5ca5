package web

import (
	"context"
	"net/http"
	"path"
	"strings"
)

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
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// needs is the role that a route asks for.
func (rt route) needs() role {
	switch {
	case rt.role != byMethod:
		return rt.role
	case rt.method() == http.MethodGet:
		return read
	}
	return admin
}

// guard decides who may ask for what.
type guard struct {
	mux          *http.ServeMux
	needs        map[string]role // by pattern of mux
	tokens       []hashed
	certificates bool // a verified client certificate is wanted
	sessions     sessions
}

// idle reports whether nobody is asked for anything.
func (g *guard) idle() bool { return len(g.tokens) == 0 && !g.certificates }

// wanted is the role that a request asks for.
func (g *guard) wanted(r *http.Request) role {
	if _, pattern := g.mux.Handler(r); pattern != "" {
		return g.needs[pattern]
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch at := r.URL.Path; {
	case at == loginPath || at == logoutPath:
		return visitor
	case reads && strings.HasPrefix(at, staticPath) && path.Clean(at) == at:
		return visitor
	case reads:
		return read
	}
	return admin
}

// role is what the sender of a request may do.
func (g *guard) role(r *http.Request) role {
	if len(g.tokens) == 0 {
		return admin
	}
	if token, ok := bearer(r); ok {
		if of, known := owner(g.tokens, token); known {
			return of.role
		}
		return visitor // not the cookie's role: whoever names a token means it
	}
	return g.sessions.role(r)
}

// verified reports whether the client has shown a certificate of the configured CA.
func verified(r *http.Request) bool { return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 }

// wrap lets through who may ask what he asks.
func (g *guard) wrap(next http.Handler) http.Handler {
	if g.idle() {
		return g.withOwnNames(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, have := g.wanted(r), g.role(r)
		switch {
		case g.certificates && want != probe && !verified(r):
			newProblem(http.StatusForbidden, "this node wants a client certificate (node.tls.client_auth); only /healthz and /readyz need none").write(w)
		case have.may(want):
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), roleKey{}, have)))
		case have > visitor:
			newProblem(http.StatusForbidden, "%s with the %s token: this wants %s", r.Method, have, want.wants()).write(w)
		case wantsPage(r):
			http.Redirect(w, r, loginFor(r.URL), http.StatusSeeOther)
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="lowkiq"`)
			newProblem(http.StatusUnauthorized, "this wants the header Authorization: Bearer TOKEN, with %s", want.wants()).write(w)
		}
	})
}

// roleKey is the key of the sender's role in the context of a request.
type roleKey struct{}

// MayChange reports whether the sender of a request may change something, so that pages can
// leave out what would be refused. It is true where nobody is asked for a token, and for requests
// that have not come through the handler of [New].
func MayChange(r *http.Request) bool {
	have, asked := r.Context().Value(roleKey{}).(role)
	return !asked || have.may(admin)
}

// wantsPage reports whether a person with a browser asks for a page.
func wantsPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		!strings.HasPrefix(r.URL.Path, "/api/") && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// withOrigin refuses what the page of another site makes a browser send.
func withOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		newProblem(http.StatusForbidden, "a page of another site may not change anything here").write(w)
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
			newProblem(answer.status, "%s is not possible here: %s is", r.Method, allow).write(w)
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
	newProblem(http.StatusNotFound, "nothing is at %s; GET /api/v1/ lists what there is", r.URL.Path).write(w)
}

// dryAnswer keeps what a handler would have answered, but for the body.
type dryAnswer struct {
	header http.Header
	status int
}

func (d *dryAnswer) Header() http.Header         { return d.header }
func (d *dryAnswer) Write(b []byte) (int, error) { return len(b), nil }
func (d *dryAnswer) WriteHeader(status int)      { d.status = status }
