package web

import (
	"context"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"time"
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
		// Not no-referrer: a browser would send Origin: null with forms, and where Sec-Fetch-Site is
		// missing, which is on plain HTTP beyond loopback, none could be told from another site's.
		h.Set("Referrer-Policy", "same-origin")
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
	certificates bool     // a verified client certificate is wanted
	names        []string // of the node, as plainName has them; only asked for while idle
	doors        *doors
	memory       *memory // of all admitted requests
}

// right is what the sender of a request may do.
type right struct {
	role  role
	until time.Time // when his session ends; zero if it is not by one
}

// idle reports whether nobody is asked for anything.
func (g *guard) idle() bool { return len(g.tokens) == 0 && !g.certificates }

// wanted is the role that a request asks for.
func (g *guard) wanted(r *http.Request) role {
	if _, pattern := g.mux.Handler(r); pattern != "" {
		return g.needs[pattern]
	}
	switch at := r.URL.Path; {
	case at == loginPath || at == logoutPath:
		return visitor
	case reads(r) && strings.HasPrefix(at, staticPath) && path.Clean(at) == at:
		return visitor
	case reads(r):
		return read
	}
	return admin
}

func reads(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// right is what the sender of a request may do.
func (g *guard) right(r *http.Request) right {
	if len(g.tokens) == 0 {
		return right{role: admin}
	}
	if token, ok := bearer(r); ok {
		if of, known := owner(g.tokens, token); known {
			return right{role: of.role}
		}
		return right{role: visitor} // not the cookie's: whoever names a token means it
	}
	return g.doors.sessions.right(r)
}

// verified reports whether the client has shown a certificate of the configured CA.
func verified(r *http.Request) bool { return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 }

// wrap lets through who may ask what he asks.
func (g *guard) wrap(next http.Handler) http.Handler {
	if g.idle() {
		return g.withOwnNames(g.admit(next))
	}
	next = g.admit(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, have := g.wanted(r), g.right(r)
		switch {
		case g.certificates && want != probe && !verified(r):
			newProblem(http.StatusForbidden, "this node wants a client certificate (node.tls.client_auth); only /healthz and /readyz need none").write(w)
		case have.role.may(want):
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), rightKey{}, have)))
		case have.role > visitor && wantsPage(r) && !reads(r):
			g.doors.show(w, http.StatusForbidden, "/", "Nothing was changed: this wants "+want.wants()+", and you are logged in with the "+have.role.String()+" token.")
		case have.role > visitor:
			newProblem(http.StatusForbidden, "%s with the %s token: this wants %s", r.Method, have.role, want.wants()).write(w)
		default:
			g.ask(w, r, want)
		}
	})
}

// ask asks the sender of a request for a token, in the way that he can give one.
func (g *guard) ask(w http.ResponseWriter, r *http.Request, want role) {
	person := wantsPage(r)
	if person && reads(r) {
		http.Redirect(w, r, loginFor(r.URL), http.StatusSeeOther)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="lowkiq"`)
	if person {
		g.doors.show(w, http.StatusUnauthorized, "/", "Your session has ended, and nothing was changed. Log in and do it again.")
		return
	}
	newProblem(http.StatusUnauthorized, "this wants the header Authorization: Bearer TOKEN, with %s", want.wants()).write(w)
}

// rightKey is the key of the sender's right in the context of a request.
type rightKey struct{}

// MayChange reports whether the sender of a request may change something, so that pages can
// leave out what would be refused. It is true where nobody is asked for a token, and for requests
// that have not come through the handler of [New].
func MayChange(r *http.Request) bool {
	have, asked := r.Context().Value(rightKey{}).(right)
	return !asked || have.role.may(admin)
}

// Sender is what a log line says of who sent a request: the role of his token, and his address.
func Sender(r *http.Request) slog.Attr {
	role := "anyone" // nobody is asked for a token
	if have, asked := r.Context().Value(rightKey{}).(right); asked {
		role = have.role.String()
	}
	return slog.Group("", slog.String("role", role), slog.String("address", r.RemoteAddr))
}

// SessionEnd is when the session ends that allowed a request; zero if none did. An answer that
// goes on and on, as a stream of events does, has to end with it.
func SessionEnd(r *http.Request) time.Time {
	have, _ := r.Context().Value(rightKey{}).(right)
	return have.until
}

// wantsPage reports whether a person with a browser asks, for a page or by a form.
func wantsPage(r *http.Request) bool {
	return forPeople(r.URL.Path) && strings.Contains(r.Header.Get("Accept"), "text/html")
}

func forPeople(path string) bool { return !strings.HasPrefix(path, "/api/") || path == "/api/v1/" }

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
