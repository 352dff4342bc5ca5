package auth

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
)

// Refusal answers a request that is refused.
type Refusal = func(w http.ResponseWriter, status int, detail string)

// Config says who may do what. All fields but Names are required; of Tokens and Certificates, the
// zero value asks for none.
type Config struct {
	Tokens       Tokens
	Certificates bool                     // a verified client certificate is wanted, but for [Probe]
	Names        []string                 // of the node, see [Guard.Wrap]
	Wanted       func(*http.Request) Role // the role that a request asks for
	Pages        http.Handler             // what is behind the login pages
	Log          *slog.Logger
	Refuse       Refusal
}

// Guard decides who may ask for what.
type Guard struct {
	cfg    Config
	tokens []hashed
	names  []string // as plainName has them
	pages  *loginPages
}

// New builds a guard.
func New(cfg Config) (*Guard, error) {
	pages, err := newLoginPages(cfg)
	if err != nil {
		return nil, err
	}
	g := &Guard{cfg: cfg, tokens: pages.sessions.tokens, pages: pages}
	for _, name := range cfg.Names {
		g.names = append(g.names, plainName(name))
	}
	return g, nil
}

// Pages are the login pages and what is behind them.
func (g *Guard) Pages() http.Handler { return g.pages }

// IsLogin reports whether a path is that of a login page.
func IsLogin(path string) bool { return path == loginPath || path == logoutPath }

// access is what the sender of a request may do.
type access struct {
	role  Role
	until time.Time // when his session ends; zero if it is not by one
}

// open reports whether neither a token nor a certificate is asked for.
func (g *Guard) open() bool { return len(g.tokens) == 0 && !g.cfg.Certificates }

// Reads reports whether the method of a request only reads.
func Reads(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// access is what the sender of a request may do.
func (g *Guard) access(r *http.Request) access {
	if len(g.tokens) == 0 {
		return access{role: Admin}
	}
	if token, ok := bearer(r); ok {
		if of, known := owner(g.tokens, token); known {
			return access{role: of.role}
		}
		return access{role: Anonymous} // not the cookie's: the token that is named counts
	}
	return g.pages.sessions.access(r)
}

// verified reports whether the client has shown a certificate of the configured CA.
func verified(r *http.Request) bool { return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 }

// Wrap passes on the requests that are allowed. Where neither a token nor a certificate is asked
// for, those under names of other sites are refused.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	if g.open() {
		return g.withOwnNames(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, have := g.cfg.Wanted(r), g.access(r)
		switch {
		case g.cfg.Certificates && want != Probe && !verified(r):
			g.cfg.Refuse(w, http.StatusForbidden, "this node wants a client certificate (node.tls.client_auth); only /healthz and /readyz need none")
		case have.role.may(want):
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accessKey{}, have)))
		case have.role > Anonymous && wantsPage(r) && !Reads(r):
			g.pages.show(w, http.StatusForbidden, "/", "Nothing was changed: this wants "+want.wants()+", and you are logged in with the "+have.role.String()+" token.")
		case have.role > Anonymous:
			g.cfg.Refuse(w, http.StatusForbidden, fmt.Sprintf("%s with the %s token: this wants %s", r.Method, have.role, want.wants()))
		default:
			g.ask(w, r, want)
		}
	})
}

// ask asks the sender of a request for a token, in the way that he can give one.
func (g *Guard) ask(w http.ResponseWriter, r *http.Request, want Role) {
	person := wantsPage(r)
	if person && Reads(r) {
		http.Redirect(w, r, loginFor(r.URL), http.StatusSeeOther)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="lowkiq"`)
	if person {
		g.pages.show(w, http.StatusUnauthorized, "/", "Your session has ended, and nothing was changed. Log in and do it again.")
		return
	}
	g.cfg.Refuse(w, http.StatusUnauthorized, "this wants the header Authorization: Bearer TOKEN, with "+want.wants())
}

// accessKey is the key of the sender's access in the context of a request.
type accessKey struct{}

// MayChange reports whether the sender of a request may change something, so that pages can
// leave out what would be refused. It is true where no token is asked for, and for requests
// that have not come through a guard.
func MayChange(r *http.Request) bool {
	have, asked := r.Context().Value(accessKey{}).(access)
	return !asked || have.role.may(Admin)
}

// UserHeader is where a client says who its user is. Nobody has checked it.
const UserHeader = "X-Lowkiq-User"

// maxUser bounds what a client says of its user, bytes.
const maxUser = 256

// Who is what is known of the sender of a request: the role of his token, the name of his certificate or else what he
// says of himself, and his address.
func Who(r *http.Request) changes.Who {
	who := changes.Who{Role: "anyone", Address: r.RemoteAddr} // no token is asked for
	if have, asked := r.Context().Value(accessKey{}).(access); asked {
		who.Role = have.role.String()
	}
	if verified(r) {
		who.Name = r.TLS.VerifiedChains[0][0].Subject.CommonName
	}
	if said := strings.TrimSpace(r.Header.Get(UserHeader)); who.Name == "" && said != "" {
		who.Name, who.Claimed = strings.ToValidUTF8(said[:min(len(said), maxUser)], "�"), true
	}
	return who
}

// Sender is what a log line says of who sent a request.
func Sender(r *http.Request) slog.Attr {
	who := Who(r)
	attrs := []any{slog.String("role", who.Role), slog.String("address", who.Address)}
	if who.Name != "" {
		attrs = append(attrs, slog.String("user", who.Name), slog.Bool("claimed", who.Claimed))
	}
	return slog.Group("", attrs...)
}

// SessionEnd is when the session ends that allowed a request; zero if none did. An answer that
// goes on and on, as a stream of events does, has to end with it.
func SessionEnd(r *http.Request) time.Time {
	have, _ := r.Context().Value(accessKey{}).(access)
	return have.until
}

// wantsPage reports whether a person with a browser asks, for a page or by a form.
func wantsPage(r *http.Request) bool {
	return ForPeople(r.URL.Path) && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// ForPeople reports whether a path is that of a page.
func ForPeople(path string) bool { return !strings.HasPrefix(path, "/api/") || path == "/api/v1/" }

// withOwnNames refuses requests under the name of another site. Such a site can have its name lead
// to the node, on loopback or in a network that the browser's host reaches (DNS rebinding); to a
// browser it and the node are one site then, and its page may read answers and send changes. Where
// tokens or certificates are asked for it has neither, so this is for nodes that ask for neither.
func (g *Guard) withOwnNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ownName(r.Host, g.names) && g.cfg.Wanted(r) != Probe {
			g.cfg.Refuse(w, http.StatusForbidden, fmt.Sprintf("%q is no name of this node, which asks for no token: want localhost, an IP address, a name without a dot, "+
				"one of node.http_names, or a token (node.token_file)", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownName reports whether a host's name is one of those configured, or no other can own it: an
// address, localhost, what is below it, or a name without a dot, which no site of the Internet has.
func ownName(host string, configured []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = plainName(strings.Trim(host, "[]"))
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") || net.ParseIP(host) != nil || slices.Contains(configured, host)
}

// plainName is a host name as names are compared.
func plainName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }
