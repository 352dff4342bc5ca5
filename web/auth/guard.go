package auth

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
)

// Refusal answers a request that is refused.
type Refusal = func(w http.ResponseWriter, status int, detail string)

// Config says who may do what. All fields except Names are required. The zero value of Tokens or
// Certificates asks for none.
type Config struct {
	Tokens       Tokens
	Certificates bool                     // a request needs a verified client certificate, except for [Probe]
	Names        []string                 // of the node, see [Guard.Wrap]
	Required     func(*http.Request) Role // returns the role that a request needs
	Pages        http.Handler             // all other pages
	Log          *slog.Logger
	Refuse       Refusal
}

// Guard decides which requests are served.
type Guard struct {
	cfg    Config
	tokens []hashed
	names  []string // as plainName has them
	pages  *loginPages

	refused limitedLog // bearer tokens
}

// limitedLog bounds the lines that strangers cause in the log. It writes a line in refusedEvery, with the
// number of lines that were left out.
type limitedLog struct {
	mu   sync.Mutex
	last time.Time
	left int
}

const refusedEvery = 10 * time.Second

func (s *limitedLog) warnSeldom(log *slog.Logger, text string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.last) < refusedEvery {
		s.left++
		return
	} else {
		s.last = now
	}
	log.Warn(text, append(args, "left_out", s.left)...)
	s.left = 0
}

// New returns a guard.
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

// Pages returns the handler of the login pages and of all pages behind them.
func (g *Guard) Pages() http.Handler { return g.pages }

// IsLogin reports whether a path is that of a login page.
func IsLogin(path string) bool { return path == loginPath || path == logoutPath }

// access says what the sender of a request may do.
type access struct {
	role  Role
	until time.Time // when the session ends; zero without a session
}

// asksForNothing reports whether the guard asks for neither tokens nor certificates.
func (g *Guard) asksForNothing() bool { return len(g.tokens) == 0 && !g.cfg.Certificates }

// IsRead reports whether the method of a request only reads.
func IsRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// findAccess returns what the sender of a request may do. A token in the header counts before the cookie.
func (g *Guard) findAccess(r *http.Request) access {
	if len(g.tokens) == 0 {
		return access{role: Admin}
	}
	if token, ok := bearerToken(r); ok {
		if of, known := findOwner(g.tokens, token); known {
			return access{role: of.role}
		}
		return access{role: Anonymous} // even if the cookie has a valid session
	}
	return g.pages.sessions.findAccess(r)
}

// hasCertificate reports whether the client has shown a certificate of the configured CA.
func hasCertificate(r *http.Request) bool { return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 }

// Wrap passes allowed requests on to next. If the guard asks for neither tokens nor certificates, it
// refuses requests under the names of other sites.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	if g.asksForNothing() {
		return g.withOwnNames(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, have := g.cfg.Required(r), g.findAccess(r)
		switch {
		case g.cfg.Certificates && want != Probe && !hasCertificate(r):
			g.cfg.Refuse(w, http.StatusForbidden, "this node needs a client certificate (node.tls.client_auth); only /healthz and /readyz need none")
		case have.role.may(want):
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accessKey{}, have)))
		case have.role > Anonymous && wantsPage(r) && !IsRead(r):
			g.pages.showLogin(w, r, http.StatusForbidden, "/", "Nothing was changed. This needs "+want.nameTokens()+", and you are logged in with the "+have.role.String()+" token.")
		case have.role > Anonymous:
			g.cfg.Refuse(w, http.StatusForbidden, fmt.Sprintf("%s with the %s token; this needs %s", r.Method, have.role, want.nameTokens()))
		default:
			g.askForToken(w, r, want)
		}
	})
}

// askForToken asks the sender of a request for a token. A browser gets the login page, a program a status and
// the name of the header.
func (g *Guard) askForToken(w http.ResponseWriter, r *http.Request, want Role) {
	person := wantsPage(r)
	if person && IsRead(r) {
		Redirect(w, r, loginFor(r.URL))
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="lowkiq"`)
	if person {
		g.pages.showLogin(w, r, http.StatusUnauthorized, "/", "Your session has ended, and nothing was changed. Log in and do it again.")
		return
	}
	if _, sent := bearerToken(r); sent {
		g.refused.warnSeldom(g.cfg.Log, "token refused", "address", r.RemoteAddr, "method", r.Method, "path", r.URL.Path)
		g.cfg.Refuse(w, http.StatusUnauthorized, "the token is not one of this node's; this needs "+want.nameTokens())
		return
	}
	g.cfg.Refuse(w, http.StatusUnauthorized, "this needs the header Authorization: Bearer TOKEN, with "+want.nameTokens())
}

// accessKey is the key of the sender's access in the context of a request.
type accessKey struct{}

// MayChange reports whether the sender of a request may change something. Pages leave out forms that
// would be refused. It is true if no token is needed, and for requests that did not come through a
// guard.
func MayChange(r *http.Request) bool {
	have, asked := r.Context().Value(accessKey{}).(access)
	return !asked || have.role.may(Admin)
}

// UserHeader is the header that names the user of a client. Nobody checks the name.
const UserHeader = "X-Lowkiq-User"

// maxUser bounds the name in UserHeader, bytes.
const maxUser = 256

// Who returns the role, the name and the address of the sender of a request. The name is that of the client certificate.
// Without a certificate it is the name in UserHeader, and claimed.
func Who(r *http.Request) changes.Who {
	who := changes.Who{Role: "anyone", Address: r.RemoteAddr} // no token is asked for
	if have, asked := r.Context().Value(accessKey{}).(access); asked {
		who.Role = have.role.String()
	}
	if hasCertificate(r) {
		who.Name = r.TLS.VerifiedChains[0][0].Subject.CommonName
	}
	if said := strings.TrimSpace(r.Header.Get(UserHeader)); who.Name == "" && said != "" {
		who.Name, who.Claimed = strings.ToValidUTF8(said[:min(len(said), maxUser)], "�"), true
	}
	return who
}

// SessionEnd returns when the session that allowed a request ends. It is zero if no session did. An
// endless answer, such as a stream of events, must end with it.
func SessionEnd(r *http.Request) time.Time {
	have, _ := r.Context().Value(accessKey{}).(access)
	return have.until
}

// SessionOver reports whether the session that allowed a request has ended. It asks the wall clock, because a timer would not notice
// that the host was suspended.
func SessionOver(r *http.Request) bool {
	end := SessionEnd(r)
	return !end.IsZero() && !time.Now().Before(end)
}

// wantsPage reports whether a person with a browser asks, for a page or by a form.
func wantsPage(r *http.Request) bool {
	return ForPeople(r.URL.Path) && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// ForPeople reports whether a path is that of a page.
func ForPeople(path string) bool { return !strings.HasPrefix(path, "/api/") || path == "/api/v1/" }

// withOwnNames refuses requests under the name of another site. Such a site can let its name resolve
// to the node, on loopback or in a network that the browser's host reaches (DNS rebinding). To the
// browser the two are then the same site, and a page of the other site may read answers and send
// changes. It has neither tokens nor certificates, so only nodes that ask for neither need this.
func (g *Guard) withOwnNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ownName(r.Host, g.names) && g.cfg.Required(r) != Probe {
			g.cfg.Refuse(w, http.StatusForbidden, fmt.Sprintf("%q is no name of this node, which asks for no token; use localhost, an IP address, a name without a dot "+
				"or a name of node.http_names (Names of web.Config), or set a token (node.token_file)", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownName reports whether a host's name is configured, or cannot belong to another site. Such names are
// addresses, localhost, names below localhost, and names without a dot, which no site of the Internet
// has.
func ownName(host string, configured []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = plainName(strings.Trim(host, "[]"))
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") || net.ParseIP(host) != nil || slices.Contains(configured, host)
}

// plainName returns a host name in the form for comparisons.
func plainName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }
