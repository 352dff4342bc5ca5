package web

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/web/auth"
)

// unreachable is a Redis URL behind which nothing listens.
const unreachable = "redis://127.0.0.1:1/0"

func TestOtherSitesMayNotChangeAnything(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	target := ordersPath + "jobs/delete"
	for _, c := range []struct {
		name    string
		headers []string
		status  int
		says    string
	}{
		{"cross-site", []string{"Sec-Fetch-Site", "cross-site"}, 403, "a page of another site"},
		{"same-site", []string{"Sec-Fetch-Site", "same-site"}, 403, "a page of another site"},
		{"cross-site, whatever a proxy says", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example", "X-Forwarded-Host", "evil.example"}, 403, "a page of another site"},
		{"other origin", []string{"Origin", "https://evil.example"}, 403, "a page of another site, https://evil.example, may not change anything at example.com. If they are the same site, a proxy between them rewrites Host"},
		{"other origin behind a proxy", []string{"Origin", "https://evil.example", "X-Forwarded-Host", "jobs.example"}, 403, "a page of another site, https://evil.example,"},
		{"no origin to be told", []string{"Origin", "null"}, 403, "a page of another site"},
		{"no origin to be told behind a proxy", []string{"Origin", "null", "X-Forwarded-Host", "null"}, 403, "a page of another site"},
		{"same origin", []string{"Sec-Fetch-Site", "same-origin"}, 200, ""},
		{"own origin", []string{"Origin", "http://example.com"}, 200, ""},
		{"own origin behind a proxy that rewrites Host", []string{"Origin", "https://jobs.example:8443", "X-Forwarded-Host", "Jobs.example:8443"}, 200, ""},
		{"no browser", []string{"User-Agent", "curl/8"}, 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, w.do("POST", target, `{"ids":["r1"]}`, c.headers...), c.status, c.says)
			expect(t, w.do("GET", ordersPath+"jobs", "", c.headers...), 200)
			if c.status == 403 {
				expect(t, w.do("GET", ordersPath+"jobs/r1", ""), 200)
			}
		})
	}
}

func TestMisses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, unreachable)
	for _, c := range []struct {
		name, method, target string
		status               int
		allow                string
	}{
		{"unknown path", "GET", "/api/v1/nowhere", 404, ""},
		{"unknown path, post", "POST", "/nowhere", 404, ""},
		{"beyond a path", "GET", "/healthz/", 404, ""},
		{"read only", "POST", "/api/v1/status", 405, "GET, HEAD"},
		{"change only", "GET", ordersPath + "run-all-now", 405, "POST"},
		{"both", "DELETE", ordersPath + "jobs", 405, "GET, HEAD, POST"},
		{"page", "PUT", "/api/v1/", 405, "GET, HEAD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := w.do(c.method, c.target, "")
			expect(t, answer, c.status, `"type":"about:blank"`, `"title":"`+http.StatusText(c.status)+`"`)
			if got := answer.Header().Get("Allow"); got != c.allow {
				t.Errorf("got Allow %q, want %q", got, c.allow)
			}
		})
	}
	expect(t, w.do("HEAD", "/healthz", ""), 200)
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	w := newWorld(t, unreachable)
	w.node.notReady = errNotReady
	expect(t, w.do("GET", "/readyz", ""), 503, `"detail":"lease not held"`)
	expect(t, w.do("GET", "/healthz", ""), 200, "ok")
}

func TestSecurityHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, unreachable, func(cfg *Config) { cfg.Tokens = someTokens })
	for _, target := range []string{"/healthz", "/api/v1/", "/nowhere"} {
		h := w.do("GET", target, "").Header()
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "X-Frame-Options": "DENY", "Cache-Control": "no-store",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: got %s %q, want %q", target, name, got, want)
			}
		}
		policy := h.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: got policy %q", target, policy)
		}
	}
}

func TestPageKeepsItsPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, unreachable, func(cfg *Config) { cfg.Version = "<script>alert(1)</script>" })
	answer := w.do("GET", "/api/v1/", "")
	expect(t, answer, 200, "&lt;script&gt;", "curl -X POST -d")
	page := answer.Body.String()
	for _, banned := range []string{"<script", "style=", "onclick", "https://", "src="} {
		if strings.Contains(page, banned) {
			t.Errorf("the page has %q", banned)
		}
	}
	_, rest, _ := strings.Cut(page, "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(style))
	if hash := base64.StdEncoding.EncodeToString(sum[:]); !strings.Contains(answer.Header().Get("Content-Security-Policy"), "'sha256-"+hash+"'") {
		t.Errorf("the policy %q does not allow the style with sha256-%s", answer.Header().Get("Content-Security-Policy"), hash)
	}
}

func TestPageWithoutStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, unreachable, func(cfg *Config) { cfg.Tokens = someTokens })
	w.node.away = errors.New("redis is away")
	expect(t, w.do("GET", "/api/v1/", "", "Authorization", "Bearer "+adminToken), 200, `Bearer $TOKEN`)
	expect(t, w.do("GET", "/api/v1/status", "", "Authorization", "Bearer "+adminToken), 500, "redis is away")
}

func TestIndexHasEveryRoute(t *testing.T) {
	t.Parallel()
	page := newWorld(t, unreachable).do("GET", "/api/v1/", "").Body.String()
	for _, rt := range (&api{}).listRoutes() {
		path := strings.TrimSuffix(strings.TrimPrefix(rt.pattern, rt.method()+" "), "{$}")
		if !strings.Contains(page, "<code>"+path+"</code>") {
			t.Errorf("the page does not name %s", path)
		}
		if rt.about == "" || rt.path == "" {
			t.Errorf("%s: it is not said what it does, or there is no example", rt.pattern)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	tokens := auth.Tokens{Admin: []string{adminToken}}
	mutual := TLS{CertFile: "c", KeyFile: "k", CAFile: "a", ClientAuth: true}
	for _, c := range []struct {
		name  string
		cfg   Config
		want  string // "" = accepted
		warns string // of an accepted one
	}{
		{"nothing", Config{}, "", ""},
		{"short token", Config{Tokens: auth.Tokens{Read: []string{"short"}}}, "read token: it has 5 bytes, must have at least 16", ""},
		{"negative limit", Config{BodyLimit: -1}, "must not be negative", ""},
		{"a name with a port", Config{Names: []string{"lowkiq.internal:80"}}, "http_names: ", ""},
		{"loopback", Config{Address: "localhost:0"}, "", ""},
		{"loopback, IPv6", Config{Address: "[::1]:0"}, "", ""},
		{"every address", Config{Address: "0.0.0.0:0", Advertise: "n1"}, "http 0.0.0.0:0 is reachable from other hosts: set a token (node.token_file)", ""},
		{"all interfaces", Config{Address: ":7948", Advertise: "n1"}, "http :7948 is reachable", ""},
		{"TLS, no token", Config{Address: "10.0.0.1:1", TLS: TLS{CertFile: "c", KeyFile: "k"}}, "set a token (node.token_file), ask for client certificates (node.tls.client_auth", ""},
		{"a token", Config{Address: "10.0.0.1:1", Tokens: tokens}, "", "takes tokens unencrypted: set node.tls"},
		{"a token and TLS", Config{Address: "10.0.0.1:1", Tokens: tokens, TLS: TLS{CertFile: "c", KeyFile: "k"}}, "", ""},
		{"client certificates", Config{Address: "10.0.0.1:1", TLS: mutual}, "", ""},
		{"insecure", Config{Address: ":1", Advertise: "n1", Insecure: true}, "", "insecure: http :1 is reachable"},
		{"loopback, insecure", Config{Address: "127.0.0.1:1", Insecure: true}, "", ""},
		{"no key", Config{TLS: TLS{CertFile: "c"}}, "tls: key_file is missing", ""},
		{"authority alone", Config{TLS: TLS{CAFile: "a"}}, "tls: cert_file and key_file are missing", ""},
		{"clients of whom", Config{TLS: TLS{CertFile: "c", KeyFile: "k", ClientAuth: true}}, "tls: client_auth: require wants ca_file", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := c.cfg.withDefaults()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got error %v, want %q", err, c.want)
			}
			if lines := cfg.listWarnings(); err == nil && strings.Join(lines, "") != "" != (c.warns != "") || !strings.Contains(strings.Join(lines, ""), c.warns) {
				t.Errorf("got warnings %q, want %q", lines, c.warns)
			}
		})
	}
}

// Who presses a button after the end of his session gets a page that says so, and no JSON.
func TestFormWithoutSession(t *testing.T) {
	t.Parallel()
	w := guarded(t, func(cfg *Config) {
		cfg.Pages = pagesOf(func(http.ResponseWriter, *http.Request) { t.Error("got the form, want it refused") })
	})
	_, session := w.login(readToken, "/")
	reader := w.do("POST", "/do", "do=delete-all-dead&queue=orders", "Accept", "text/html", "Cookie", session.Name+"="+session.Value)
	expectPage(t, reader, 403, `role="alert"`, "Nothing was changed. This needs the admin token, and you are logged in with the read token.")
	answer := w.do("POST", "/do", "do=delete-all-dead&queue=orders", "Accept", "text/html", "Content-Type", "application/x-www-form-urlencoded")
	expectPage(t, answer, 401, `role="alert"`, "Your session has ended, and nothing was changed", `action="./login"`, `aria-describedby="problem"`, `id="problem"`)
	if answer.Header().Get("WWW-Authenticate") == "" {
		t.Error("got no WWW-Authenticate, which a 401 must have")
	}
}

// Answers that go on and on learn when they have to end.
func TestSessionEnd(t *testing.T) {
	t.Parallel()
	var end time.Time
	w := guarded(t, func(cfg *Config) {
		cfg.Pages = pagesOf(func(_ http.ResponseWriter, r *http.Request) { end = auth.SessionEnd(r) })
	})
	began := time.Now()
	_, session := w.login(readToken, "/")
	w.do("GET", "/events", "", "Cookie", session.Name+"="+session.Value)
	if left := end.Sub(began); left < 12*time.Hour-time.Second || left > 12*time.Hour+time.Minute {
		t.Errorf("with a session: got its end in %s, want %s", left, 12*time.Hour)
	}
	for name, header := range map[string][]string{
		"with a token":              {"Authorization", "Bearer " + readToken},
		"with a token and a cookie": {"Authorization", "Bearer " + readToken, "Cookie", session.Name + "=" + session.Value},
	} {
		if w.do("GET", "/events", "", header...); !end.IsZero() {
			t.Errorf("%s: got an end at %s, want none", name, end)
		}
	}
	if end := auth.SessionEnd(httptest.NewRequest("GET", "/", nil)); !end.IsZero() {
		t.Errorf("where nobody is asked: got an end at %s, want none", end)
	}
}
