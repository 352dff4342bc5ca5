package auth

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	_ "embed" // the login page
	"encoding/base64"
	"fmt"
	"html/template"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A browser cannot send a token with every request, so it gets a session for a token. A session is stateless.
// It consists of role and expiry, with a signature by a key made of the token. Any node with the same token
// accepts it, and it ends with the token.

const (
	loginPath     = "/login"
	logoutPath    = "/logout"
	sessionCookie = "lowkiq_session"
	sessionLife   = 12 * time.Hour
	loginLimit    = 4 << 10 // bytes of the form
	nextLimit     = 2 << 10 // bytes of the path to go on to
	loginsASecond = 3       // attempts a second from an address; also the maximum at once
	loginsInTotal = 30      // attempts a second from all addresses; also the maximum at once
	loginSources  = 1000    // addresses that are remembered
)

//go:embed login.html
var loginText string

// sessions makes sessions, and checks them.
type sessions struct {
	tokens []hashed
	now    func() time.Time
}

// sealCookie returns the value of the cookie for the owner of a token.
func (s sessions) sealCookie(of hashed) string {
	text := of.role.String() + "." + strconv.FormatInt(s.now().Add(sessionLife).Unix(), 10)
	return text + "." + signSession(of, text)
}

func signSession(of hashed, text string) string {
	mac := hmac.New(sha256.New, of.sum[:])
	mac.Write([]byte("lowkiq session " + text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// findAccess returns what the request's session allows. Without a valid session that is the access of Anonymous.
func (s sessions) findAccess(r *http.Request) access {
	for _, cookie := range r.CookiesNamed(sessionCookie) {
		if have := s.openCookie(cookie.Value); have.role > Anonymous {
			return have
		}
	}
	return access{role: Anonymous}
}

func (s sessions) openCookie(value string) access {
	none := access{role: Anonymous}
	cut := strings.LastIndexByte(value, '.')
	if cut < 0 {
		return none
	}
	text, sealed := value[:cut], value[cut+1:]
	name, expiry, _ := strings.Cut(text, ".")
	have, known := roleNamed(name)
	until, err := strconv.ParseInt(expiry, 10, 64)
	if !known || err != nil || s.now().Unix() >= until {
		return none
	}
	for _, of := range s.tokens {
		if of.role == have && hmac.Equal([]byte(signSession(of, text)), []byte(sealed)) {
			return access{have, time.Unix(until, 0)}
		}
	}
	return none
}

// loginPages serves the pages that begin and end the session of a browser.
type loginPages struct {
	sessions sessions
	attempts *attempts
	page     *template.Template
	log      *slog.Logger
	next     http.Handler // all other paths
	refuse   Refusal
}

func newLoginPages(cfg Config) (*loginPages, error) {
	page, err := template.New("login").Parse(loginText)
	if err != nil {
		return nil, fmt.Errorf("login page: %w", err)
	}
	return &loginPages{sessions: sessions{cfg.Tokens.hashAll(), time.Now}, attempts: newAttempts(time.Now), page: page, next: cfg.Pages, log: cfg.Log, refuse: cfg.Refuse}, nil
}

// ServeHTTP serves the login pages and passes the rest on.
func (p *loginPages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	post := r.Method == http.MethodPost
	switch {
	case r.URL.Path != loginPath && r.URL.Path != logoutPath:
		p.next.ServeHTTP(w, r)
	case len(p.sessions.tokens) == 0:
		Redirect(w, r, "/") // no request needs a token
	case r.URL.Path == loginPath && post:
		p.logIn(w, r)
	case r.URL.Path == logoutPath && post:
		http.SetCookie(w, newCookie(r, "", -1))
		Redirect(w, r, loginPath)
	case r.URL.Path == loginPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		p.showLogin(w, r, http.StatusOK, nextPath(r.URL.Query().Get("next")), "")
	default:
		allow := map[string]string{loginPath: "GET, HEAD, POST", logoutPath: "POST"}[r.URL.Path]
		w.Header().Set("Allow", allow)
		p.refuse(w, http.StatusMethodNotAllowed, r.Method+" is not possible here, but "+allow+" is")
	}
}

// logIn answers a token with a session. The answer to a wrong token does not tell why it is refused.
func (p *loginPages) logIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, loginLimit)
	next := nextPath(r.PostFormValue("next"))
	if !p.attempts.take(sourceOf(r)) {
		w.Header().Set("Retry-After", "1")
		p.showLogin(w, r, http.StatusTooManyRequests, next, "Too many attempts at once. Wait a second and try again.")
		return
	}
	of, ok := findOwner(p.sessions.tokens, strings.TrimSpace(r.PostFormValue("token")))
	if !ok || !of.role.may(Read) {
		p.log.Warn("login refused", "address", r.RemoteAddr)
		p.showLogin(w, r, http.StatusForbidden, next, "That is neither the read nor the admin token of this node.")
		return
	}
	http.SetCookie(w, newCookie(r, p.sessions.sealCookie(of), int(sessionLife.Seconds())))
	Redirect(w, r, next)
}

// newCookie returns a cookie for this host alone, out of reach of scripts, and never sent by pages of other
// sites. It has no Path, so the browser takes the directory of the login page, below any prefix. A
// proxy that ends TLS says so in a header. If the header lies, the browser only withholds the cookie
// from plain HTTP.
func newCookie(r *http.Request, value string, seconds int) *http.Cookie {
	return &http.Cookie{
		Name: sessionCookie, Value: value, MaxAge: seconds, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"),
	}
}

func (p *loginPages) showLogin(w http.ResponseWriter, r *http.Request, status int, next, problem string) {
	var out bytes.Buffer
	if err := p.page.Execute(&out, struct{ Root, Next, Problem string }{Root(r), next, problem}); err != nil {
		p.refuse(w, http.StatusInternalServerError, "login page: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes())
}

// loginFor returns the login page that leads on to the requested page.
func loginFor(to *url.URL) string {
	if next := nextPath(to.RequestURI()); next != "/" {
		return loginPath + "?next=" + url.QueryEscape(next)
	}
	return loginPath
}

// nextPath returns the LocalPath that follows the login page. Long paths are left out.
func nextPath(next string) string {
	if len(next) > nextLimit {
		return "/"
	}
	return LocalPath(next)
}

// attempts bounds the attempts to log in, per address and in total. The bound per address keeps a single
// client from locking out the others.
type attempts struct {
	now func() time.Time

	mu  sync.Mutex // guards the following
	all bucket
	of  map[string]*bucket // by address
}

// bucket counts the attempts that are left. There are at most rate, and rate more each second.
type bucket struct {
	left float64
	last time.Time
}

func newAttempts(now func() time.Time) *attempts {
	return &attempts{now: now, of: map[string]*bucket{}}
}

// take reports whether an address may make another attempt now, and counts it.
func (a *attempts) take(from string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	a.all.fill(now, loginsInTotal)
	mine := a.of[from]
	if mine == nil {
		if len(a.of) >= loginSources {
			maps.DeleteFunc(a.of, func(_ string, b *bucket) bool { return now.Sub(b.last) >= time.Second }) // they are full
		}
		if len(a.of) >= loginSources {
			return false
		}
		mine = &bucket{}
		a.of[from] = mine
	}
	if mine.fill(now, loginsASecond); mine.left < 1 || a.all.left < 1 {
		return false
	}
	mine.left--
	a.all.left--
	return true
}

func (b *bucket) fill(now time.Time, rate float64) {
	b.left = min(rate, b.left+now.Sub(b.last).Seconds()*rate)
	b.last = now
}

// sourceOf returns the address of a client. For IPv6 it is the network, because a client has many
// addresses in it.
func sourceOf(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address := from.Addr().Unmap()
	if address.Is4() {
		return address.String()
	}
	network, err := address.Prefix(64)
	if err != nil {
		return address.String()
	}
	return network.String()
}
