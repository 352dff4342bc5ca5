package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// withHeaders says what a browser may do with any answer: nothing but show it.
func (a *api) withHeaders(next http.Handler) http.Handler {
	policy := "default-src 'none'; style-src '" + a.page.styleHash + "'; img-src data:; " +
		"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
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

// withToken asks for the token on every route that is not open, and on unknown ones.
func (a *api) withToken(mux *http.ServeMux, open map[string]bool, next http.Handler) http.Handler {
	if a.cfg.Token == "" {
		return next
	}
	want := sha256.Sum256([]byte(a.cfg.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); !open[pattern] && !bears(r, want) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="lowkiq"`)
			newProblem(http.StatusUnauthorized, "this node wants the header Authorization: Bearer TOKEN, with the right token").write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bears compares hashes: the time it takes tells neither the token nor its length.
func bears(r *http.Request, want [sha256.Size]byte) bool {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(token))
	return ok && strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1
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
func withMisses(mux *http.ServeMux) http.Handler {
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
		newProblem(http.StatusNotFound, "nothing is at %s; GET / lists what there is", r.URL.Path).write(w)
	})
}

// dryAnswer keeps what a handler would have answered, but for the body.
type dryAnswer struct {
	header http.Header
	status int
}

func (d *dryAnswer) Header() http.Header         { return d.header }
func (d *dryAnswer) Write(b []byte) (int, error) { return len(b), nil }
func (d *dryAnswer) WriteHeader(status int)      { d.status = status }
