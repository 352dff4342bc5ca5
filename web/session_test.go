package web

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/logbuf"
)

// login posts the form and returns the answer and the session's cookie.
func (w *world) login(token, next string, headers ...string) (*httptest.ResponseRecorder, *http.Cookie) {
	form := url.Values{"token": {token}, "next": {next}}.Encode()
	answer := w.do("POST", "/login", form, append([]string{"Content-Type", "application/x-www-form-urlencoded"}, headers...)...)
	for _, c := range answer.Result().Cookies() {
		if c.Name == "lowkiq_session" {
			return answer, c
		}
	}
	return answer, nil
}

func expectPage(t *testing.T, answer *httptest.ResponseRecorder, status int, words ...string) {
	t.Helper()
	if answer.Code != status || answer.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("got %d %s, want a page with %d", answer.Code, answer.Header().Get("Content-Type"), status)
	}
	for _, word := range words {
		if !strings.Contains(answer.Body.String(), word) {
			t.Errorf("the page lacks %q: %s", word, answer.Body)
		}
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, token    string
		status         int
		reads, changes bool
	}{
		{"admin", adminToken, 303, true, true},
		{"old admin", oldToken, 303, true, true},
		{"pasted with a newline", adminToken + "\n", 303, true, true},
		{"read", readToken, 303, true, false},
		{"push", pushToken, 403, false, false},
		{"wrong", "wrong-token-0123456789", 403, false, false},
		{"none", "", 403, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := guarded(t)
			answer, session := w.login(c.token, "/queues/orders?page=2")
			if c.status != 303 {
				if session != nil {
					t.Errorf("got the session %v", session)
				}
				expectPage(t, answer, c.status, `role="alert"`, "neither the read nor the admin token", `value="/queues/orders?page=2"`)
				return
			}
			expect(t, answer, c.status)
			if got, want := answer.Header().Get("Location"), "/queues/orders?page=2"; got != want {
				t.Errorf("got location %q, want %q", got, want)
			}
			if !session.HttpOnly || session.SameSite != http.SameSiteStrictMode || session.Path != "" || session.Secure || session.MaxAge != 12*60*60 {
				t.Errorf("got cookie %s", session)
			}
			if strings.Contains(session.Value, "token") {
				t.Errorf("the cookie tells the token: %s", session)
			}
			cookie := session.Name + "=" + session.Value
			allowed := func(method, target string) bool {
				code := w.do(method, target, "", "Cookie", cookie).Code
				return code != 401 && code != 403
			}
			if got := allowed("GET", "/metrics"); got != c.reads {
				t.Errorf("reads: got %t, want %t", got, c.reads)
			}
			if got := allowed("POST", ordersPath+"pause"); got != c.changes {
				t.Errorf("changes: got %t, want %t", got, c.changes)
			}
			expect(t, w.do("GET", "/metrics", "", "Cookie", cookie, "Authorization", "Bearer wrong"), 401)
		})
	}
}

func TestSecureCookie(t *testing.T) {
	t.Parallel()
	w := guarded(t)
	if _, session := w.login(readToken, "/", "X-Forwarded-Proto", "https"); !session.Secure {
		t.Errorf("behind a proxy with TLS: got %s, want it secure", session)
	}
	r := httptest.NewRequest("POST", "https://example.com/login", strings.NewReader("token="+readToken))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r)
	if got := answer.Header().Get("Set-Cookie"); !strings.Contains(got, "; Secure") {
		t.Errorf("with TLS: got %q, want it secure", got)
	}
}

// The session's cookie is no licence for the pages of other sites.
func TestSessionIsSafeFromOtherSites(t *testing.T) {
	t.Parallel()
	w := guarded(t)
	_, session := w.login(adminToken, "/")
	cookie := session.Name + "=" + session.Value
	for _, target := range []string{"/login", "/logout", "/queues/orders/pause", ordersPath + "pause", ordersPath + "jobs"} {
		expect(t, w.do("POST", target, "", "Cookie", cookie, "Sec-Fetch-Site", "cross-site"), 403, "another site")
		expect(t, w.do("POST", target, "", "Cookie", cookie, "Origin", "https://evil.example"), 403, "another site")
		if got := w.do("POST", target, "", "Cookie", cookie, "Sec-Fetch-Site", "same-origin").Body.String(); strings.Contains(got, "another site") {
			t.Errorf("%s from this site: got %s", target, got)
		}
	}
}

func TestLogout(t *testing.T) {
	t.Parallel()
	w := guarded(t)
	answer := w.do("POST", "/logout", "")
	expect(t, answer, 303)
	if got := answer.Header().Get("Set-Cookie"); !strings.Contains(got, "lowkiq_session=;") || !strings.Contains(got, "Max-Age=0") {
		t.Errorf("got cookie %q, want it cleared", got)
	}
	if got := answer.Header().Get("Location"); got != "/login" {
		t.Errorf("got location %q, want /login", got)
	}
	expect(t, w.do("GET", "/logout", ""), 405)
}

func TestLoginPage(t *testing.T) {
	t.Parallel()
	w := guarded(t)
	const html = "text/html,application/xhtml+xml"
	for target, want := range map[string]string{
		"/":                    "/login",
		"/queues/orders?a=b&c": "/login?next=%2Fqueues%2Forders%3Fa%3Db%26c",
		"/debug/pprof/":        "/login?next=%2Fdebug%2Fpprof%2F",
		"/api/v1/":             "/login?next=%2Fapi%2Fv1%2F",
	} {
		answer := w.do("GET", target, "", "Accept", html)
		expect(t, answer, 303)
		if got := answer.Header().Get("Location"); got != want {
			t.Errorf("%s: got location %q, want %q", target, got, want)
		}
	}
	expect(t, w.do("GET", "/api/v1/status", "", "Accept", html), 401)
	expect(t, w.do("GET", "/", "", "Accept", "*/*"), 401)
	expect(t, w.do("POST", "/", "", "Accept", "*/*"), 401)
	expect(t, w.do("POST", ordersPath+"pause", "", "Accept", html), 401)
	page := w.do("GET", "/login?next=/queues", "")
	expect(t, page, 200, `method="post"`, `type="password"`, `value="/queues"`, "/static/style.css")
	if strings.Contains(page.Body.String(), "<script") || strings.Contains(page.Body.String(), "style=") {
		t.Error("the page has a script or a style of its own")
	}
	expect(t, w.do("GET", "/login?next=%22%3E%3Cscript%3E", ""), 200, `value="/"`)
	expect(t, w.do("PUT", "/login", ""), 405)
}

// Without tokens nobody is asked for one.
func TestNoLoginWithoutTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, unreachable)
	expect(t, w.do("GET", "/login", ""), 303)
	expect(t, w.do("POST", "/login", "token=x", "Content-Type", "application/x-www-form-urlencoded"), 303)
	expect(t, w.do("GET", "/metrics", ""), 200)
}

// Who tries tokens leaves lines in the log, without the token.
func TestRefusedLoginIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	into := logbuf.Logger(slog.New(slog.NewTextHandler(&log, nil)))
	w := guarded(t, func(cfg *Config) { cfg.Log = into })
	w.login("wrong-token-0123456789", "/")
	logbuf.Flush(into, time.Minute)
	if got := log.String(); !strings.Contains(got, `msg="login refused" address=192.0.2.1:1234`) || strings.Contains(got, "wrong-token") {
		t.Errorf("got %q, want the address and no token", got)
	}
	log.Reset()
	w.login(adminToken, "/")
	logbuf.Flush(into, time.Minute)
	if got := log.String(); got != "" {
		t.Errorf("a good one: got %q, want nothing", got)
	}
}

func TestLoginsAreBounded(t *testing.T) {
	t.Parallel()
	w := guarded(t)
	synctest.Test(t, func(t *testing.T) { // its clock stands still
		limited := 0
		for range 50 {
			if answer, session := w.login(adminToken, "/nodes"); session == nil {
				expectPage(t, answer, http.StatusTooManyRequests, "Too many attempts", `value="/nodes"`)
				limited++
			}
		}
		if want := 50 - 3; limited != want {
			t.Errorf("got %d of 50 attempts refused, want %d", limited, want)
		}
	})
}

// A form of any size does no harm.
func TestLoginFormIsBounded(t *testing.T) {
	t.Parallel()
	answer, session := guarded(t).login(strings.Repeat("x", 10<<10), "/")
	expectPage(t, answer, 403)
	if session != nil {
		t.Errorf("got the session %v", session)
	}
}
