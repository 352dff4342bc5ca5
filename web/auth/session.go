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

// A browser cannot send a token with every request, so it gets a session for one. A
// session is stateless: role and expiry, sealed with a key made of the token. Any node
// with the same token knows it, and it ends with the token.

const (
	loginPath     = "/login"
	logoutPath    = "/logout"
	sessionCookie = "lowkiq_session"
	sessionLife   = 12 * time.Hour
	loginLimit    = 4 << 10 // bytes of the form
	nextLimit     = 2 << 10 // bytes of the path to go on to
	loginsASecond = 3       // attempts from one address; as many may come at once
	loginsInTotal = 30      // attempts a second from all addresses; as many may come at once
	loginSources  = 1000    // addresses that are remembered
)

//go:embed login.html
var loginText string

// sessions makes sessions and knows them again.
type sessions struct {
	tokens []hashed
	now    func() time.Time
}

// seal is the cookie's value for the owner of a token.
func (s sessions) seal(of hashed) string {
	text := of.role.String() + "." + strconv.FormatInt(s.now().Add(sessionLife).Unix(), 10)
	return text + "." + signature(of, text)
}

func signature(of hashed, text string) string {
	mac := hmac.New(sha256.New, of.sum[:])
	mac.Write([]byte("lowkiq session " + text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// access is what the request's session allows; that of a Anonymous if it has none that is valid.
func (s sessions) access(r *http.Request) access {
	for _, cookie := range r.CookiesNamed(sessionCookie) {
		if have := s.open(cookie.Value); have.role > Anonymous {
			return have
		}
	}
	return access{role: Anonymous}
}

func (s sessions) open(value string) access {
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
		if of.role == have && hmac.Equal([]byte(signature(of, text)), []byte(sealed)) {
			return access{have, time.Unix(until, 0)}
		}
	}
	return none
}

// loginPages are the pages by which a browser gets a session, and ends it.
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
	return &loginPages{sessions: sessions{cfg.Tokens.hashed(), time.Now}, attempts: newAttempts(time.Now), page: page, next: cfg.Pages, log: cfg.Log, refuse: cfg.Refuse}, nil
}

// ServeHTTP serves the login pages and passes the rest on.
func (p *loginPages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	post := r.Method == http.MethodPost
	switch {
	case r.URL.Path != loginPath && r.URL.Path != logoutPath:
		p.next.ServeHTTP(w, r)
	case len(p.sessions.tokens) == 0:
		http.Redirect(w, r, "/", http.StatusSeeOther) // no request needs a token
	case r.URL.Path == loginPath && post:
		p.login(w, r)
	case r.URL.Path == logoutPath && post:
		http.SetCookie(w, cookie(r, "", -1))
		http.Redirect(w, r, loginPath, http.StatusSeeOther)
	case r.URL.Path == loginPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		p.show(w, http.StatusOK, nextPath(r.URL.Query().Get("next")), "")
	default:
		allow := map[string]string{loginPath: "GET, HEAD, POST", logoutPath: "POST"}[r.URL.Path]
		w.Header().Set("Allow", allow)
		p.refuse(w, http.StatusMethodNotAllowed, r.Method+" is not possible here: "+allow+" is")
	}
}

// login gives a session for a token. Whatever is wrong with one, the answer is the same.
func (p *loginPages) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, loginLimit)
	next := nextPath(r.PostFormValue("next"))
	if !p.attempts.take(sourceOf(r)) {
		w.Header().Set("Retry-After", "1")
		p.show(w, http.StatusTooManyRequests, next, "Too many attempts at once. Wait a second and try again.")
		return
	}
	of, ok := owner(p.sessions.tokens, strings.TrimSpace(r.PostFormValue("token")))
	if !ok || !of.role.may(Read) {
		p.log.Warn("login refused", "address", r.RemoteAddr)
		p.show(w, http.StatusForbidden, next, "That is neither the read nor the admin token of this node.")
		return
	}
	http.SetCookie(w, cookie(r, p.sessions.seal(of), int(sessionLife.Seconds())))
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// cookie is for this host alone, out of reach of scripts, and never sent from elsewhere.
// A proxy that ends TLS says so; believing it can only keep the cookie from plain HTTP.
func cookie(r *http.Request, value string, seconds int) *http.Cookie {
	return &http.Cookie{
		Name: sessionCookie, Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"),
	}
}

func (p *loginPages) show(w http.ResponseWriter, status int, next, problem string) {
	var out bytes.Buffer
	if err := p.page.Execute(&out, struct{ Next, Problem string }{next, problem}); err != nil {
		p.refuse(w, http.StatusInternalServerError, "login page: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes())
}

// loginFor is the login page that leads on to the page that was asked for.
func loginFor(to *url.URL) string {
	if next := nextPath(to.RequestURI()); next != "/" {
		return loginPath + "?next=" + url.QueryEscape(next)
	}
	return loginPath
}

// nextPath is LocalPath for what the login page leads on to: a long one is not carried along.
func nextPath(next string) string {
	if len(next) > nextLimit {
		return "/"
	}
	return LocalPath(next)
}

// LocalPath is a path of this node, as it is; "/" for all else, so that no page can be made to lead
// elsewhere.
func LocalPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil ||
		!strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\t\r\n") {
		return "/"
	}
	return next
}

// attempts bounds how often a login may be tried: from one address, so that one client does not
// keep the others out, and in total.
type attempts struct {
	now func() time.Time

	mu  sync.Mutex // guards the following
	all bucket
	of  map[string]*bucket // by address
}

// bucket holds attempts that are left: up to rate, and rate more each second.
type bucket struct {
	left float64
	last time.Time
}

func newAttempts(now func() time.Time) *attempts {
	return &attempts{now: now, of: map[string]*bucket{}}
}

// take reports whether an address may make one more now.
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

// sourceOf is the address that a request came from; of IPv6 the network, as one client has many
// addresses of it.
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
