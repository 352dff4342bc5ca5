package web

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/web/auth"
)

const (
	readToken  = "read-token-0123456789"
	pushToken  = "push-token-0123456789"
	adminToken = "admin-token-0123456789"
	oldToken   = "admin-token-of-yesterday"
)

var someTokens = auth.Tokens{Read: []string{readToken}, Push: []string{pushToken}, Admin: []string{adminToken, oldToken}}

func guarded(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	set := func(cfg *Config) { cfg.Tokens = someTokens }
	return newWorld(t, unreachable, append([]func(*Config){set}, change...)...)
}

// example puts examples in place of the wildcards of a pattern.
var example = strings.NewReplacer("{q}", "orders", "{n}", "n1", "{id}", "a", "{entry}", "report", "{name...}", "cmdline", "{$}", "")

// What a token may do is said once more here, by hand: a route whose role is forgotten
// in the table shows.
func TestEveryRouteAsksForItsRole(t *testing.T) {
	w := newWorld(t, shared(t), func(cfg *Config) { cfg.Tokens = someTokens })
	tokens := map[string]string{"": "", "read": readToken, "push": pushToken, "admin": adminToken, "old admin": oldToken, "wrong": "wrong-token-0123456789"}
	for _, rt := range (&api{}).listRoutes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		may := map[string]bool{"admin": true, "old admin": true, "read": method == "GET"}
		switch {
		case path == "/healthz" || path == "/readyz":
			may = map[string]bool{"": true, "read": true, "push": true, "admin": true, "old admin": true, "wrong": true}
		case strings.HasPrefix(path, "/debug/pprof/"):
			may["read"] = false
		case rt.pattern == "POST /api/v1/queues/{q}/jobs", strings.HasSuffix(path, "/note"),
			method != "GET" && strings.Contains(path, "/workflows/"):
			may["push"] = true
		case strings.Contains(path, "/replies/"): // who pushes has the reply's token
			may["push"], may["read"] = true, false
		}
		if path == "/api/v1/events" {
			path += "?for=1ms" // it has no end
		}
		for name, token := range tokens {
			header := "Bearer " + token
			if token == "" {
				header = ""
			}
			answer := w.do(method, example.Replace(path), "{", "Authorization", header)
			want, refused := http.StatusForbidden, answer.Code == http.StatusUnauthorized || answer.Code == http.StatusForbidden
			if name == "" || name == "wrong" {
				want = http.StatusUnauthorized
			}
			if refused == may[name] || refused && answer.Code != want {
				t.Errorf("%s with token %q: got %d, want allowed: %t, or else %d", rt.pattern, name, answer.Code, may[name], want)
			}
		}
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	w := guarded(t)
	for _, c := range []struct {
		name, method, target, header string
		status                       int
		says                         string
	}{
		{"none", "GET", "/api/v1/", "", 401, "Authorization: Bearer TOKEN, with the read or the admin token"},
		{"none, unknown path", "GET", "/nowhere", "", 401, ""},
		{"none, page that changes", "POST", "/queues/orders/pause", "", 401, "with the admin token"},
		{"none, wrong method", "PUT", "/metrics", "", 401, ""},
		{"none, push", "POST", ordersPath + "jobs", "", 401, "the push or the admin token"},
		{"none, health", "GET", "/healthz", "", 200, ""},
		{"none, unclean path", "GET", "/healthz/../metrics", "", 401, ""},
		{"none, style", "GET", "/static/style.css", "", 404, ""},
		{"none, unclean style", "GET", "/static/../metrics", "", 401, ""},
		{"none, page below style", "GET", "/static/../queues", "", 401, ""},
		{"none, writing a style", "POST", "/static/style.css", "", 401, ""},
		{"empty", "GET", "/metrics", "Bearer ", 401, ""},
		{"prefix", "GET", "/metrics", "Bearer " + adminToken[:20], 401, ""},
		{"another scheme", "GET", "/metrics", "Basic " + adminToken, 401, ""},
		{"bare", "GET", "/metrics", adminToken, 401, ""},
		{"right", "GET", "/metrics", "Bearer " + adminToken, 200, ""},
		{"right, any case of the scheme", "GET", "/metrics", "bearer " + readToken, 200, ""},
		{"right, unknown path", "GET", "/nowhere", "Bearer " + readToken, 404, ""},
		{"read, page", "GET", "/queues/orders", "Bearer " + readToken, 404, ""},
		{"read, page that changes", "POST", "/queues/orders/pause", "Bearer " + readToken, 403, "POST with the read token; this needs the admin token"},
		{"push, page", "GET", "/", "Bearer " + pushToken, 403, "GET with the push token; this needs the read or the admin token"},
		{"push, head", "HEAD", ordersPath + "jobs", "Bearer " + pushToken, 403, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := w.do(c.method, c.target, "", "Authorization", c.header)
			expect(t, answer, c.status, c.says)
			challenge := answer.Header().Get("WWW-Authenticate")
			if got, want := challenge != "", c.status == 401; got != want {
				t.Errorf("got WWW-Authenticate %q with status %d", challenge, c.status)
			}
			if body := answer.Body.String(); strings.Contains(body, "-token-0") {
				t.Errorf("the body tells a token: %s", body)
			}
		})
	}
}

func TestTokensValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		tokens auth.Tokens
		want   string
	}{
		{"none", auth.Tokens{}, ""},
		{"all", someTokens, ""},
		{"short", auth.Tokens{Push: []string{"0123456789abcde"}}, "push token: it has 15 bytes, must have at least 16"},
		{"second one short", auth.Tokens{Admin: []string{adminToken, ""}}, "admin token 2: it has 0 bytes"},
		{"space", auth.Tokens{Read: []string{"0123456789 abcdef"}}, "read token: it has a space"},
		{"not ascii", auth.Tokens{Read: []string{"0123456789äbcdef"}}, "read token: it has a space or a character beyond ASCII"},
		{"one letter", auth.Tokens{Admin: []string{strings.Repeat("a", 16)}}, "admin token: it has 1 different characters, must have at least 5 so that nobody can guess it"},
		{"two digits", auth.Tokens{Admin: []string{strings.Repeat("01", 20)}}, "admin token: it has 2 different characters"},
		{"five digits", auth.Tokens{Admin: []string{"0123401234012340"}}, ""},
		{"one for two", auth.Tokens{Read: []string{readToken}, Admin: []string{readToken}}, "admin token is also a token for read"},
	} {
		err := c.tokens.Validate()
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		case err != nil && strings.Contains(err.Error(), "0123456789"):
			t.Errorf("%s: the error tells the token: %v", c.name, err)
		}
	}
}

func TestPrintedTokensAreCounted(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(format, Config{Tokens: someTokens}); strings.Contains(got, "token-0") || !strings.Contains(got, "1 read, 1 push, 2 admin") {
			t.Errorf("%s: got %s", format, got)
		}
	}
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	shown := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
	for _, c := range []struct {
		name, target, header string
		tokens               auth.Tokens
		tls                  *tls.ConnectionState
		status               int
	}{
		{"none", "/metrics", "", auth.Tokens{}, &tls.ConnectionState{}, 403},
		{"none, plain", "/metrics", "", auth.Tokens{}, nil, 403},
		{"none, not verified", "/metrics", "", auth.Tokens{}, &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}, 403},
		{"none, style", "/static/x", "", auth.Tokens{}, nil, 403},
		{"none, login", "/login", "", someTokens, nil, 403},
		{"none, token", "/metrics", "Bearer " + adminToken, someTokens, nil, 403},
		{"none, health", "/healthz", "", someTokens, nil, 200},
		{"none, readiness", "/readyz", "", someTokens, nil, 200},
		{"shown", "/metrics", "", auth.Tokens{}, shown, 200},
		{"shown, token wanted", "/metrics", "", someTokens, shown, 401},
		{"shown, token", "/metrics", "Bearer " + readToken, someTokens, shown, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, unreachable, func(cfg *Config) {
				cfg.Tokens, cfg.TLS = c.tokens, TLS{CertFile: "c", KeyFile: "k", CAFile: "a", ClientAuth: true}
			})
			r := httptest.NewRequest("GET", c.target, nil)
			r.TLS = c.tls
			r.Header.Set("Authorization", c.header)
			answer := httptest.NewRecorder()
			w.handler.ServeHTTP(answer, r)
			expect(t, answer, c.status)
		})
	}
}

// A wrong token is told from none, and leaves a line in the log with the address: not one for each try, and without the token.
func TestWrongTokenIsToldAndLogged(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	logger := logbuf.Logger(slog.New(slog.NewTextHandler(&log, nil)))
	w := guarded(t, func(cfg *Config) { cfg.Log = logger })
	expect(t, w.do("GET", "/api/v1/status", ""), 401, "this needs the header Authorization: Bearer TOKEN, with the read or the admin token")
	for range 20 {
		expect(t, w.do("GET", "/api/v1/status", "", "Authorization", "Bearer wrong-token-0123456789"), 401,
			"the token is not one of this node's; this needs the read or the admin token")
	}
	logbuf.Flush(logger, time.Minute)
	got := log.String()
	if strings.Count(got, "token refused") != 1 || !strings.Contains(got, "address=192.0.2.1:1234") || strings.Contains(got, "wrong-token") {
		t.Errorf("got log %q, want one line with the address", got)
	}
}
