package node

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

// leaks returns the secrets that a text tells, as they are or as they are usually
// written.
func leaks(text string, secrets map[string]string) (found []string) {
	for name, secret := range secrets {
		for _, form := range []string{
			secret, url.PathEscape(secret), url.QueryEscape(secret), hex.EncodeToString([]byte(secret)),
			base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)),
		} {
			if strings.Contains(text, form) {
				found = append(found, name)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}

func TestLeaksAreFound(t *testing.T) {
	t.Parallel()
	secrets := map[string]string{"password": "a/b c", "key": "\x00\x01\x02\x03"}
	for text, want := range map[string]string{
		"nothing": "", "redis://u:a%2Fb%20c@h": "password", "x=a%2Fb+c": "password", `"a/b c"`: "password",
		"00010203": "key", "key AAECAw==": "key", "a/b c AAECAw": "key password",
	} {
		if got := strings.Join(leaks(text, secrets), " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestNoSecretIsTold checks that no secret is in any output of a node, at any level.
func TestNoSecretIsTold(t *testing.T) {
	t.Parallel()
	secrets := map[string]string{
		"redis password": "p4ss/w:rd of redis", "admin token": "admin-token-0123456789", "push token": "push-token-0123456789",
		"read token": "read-token-0123456789", "old token": "old-token-0123456789", "gossip key": "gossip-key-0123456789-abcdef-012",
	}
	redis := redistest.Start(t, "--requirepass", secrets["redis password"])
	address := "redis://:" + url.PathEscape(secrets["redis password"]) + "@" + redis.Addr() + "/0"
	var log lines
	cfg := Config{
		Name: "n1", Redis: address, TTL: 3 * time.Second, GossipKeys: [][]byte{[]byte(secrets["gossip key"])},
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	api := web.Config{
		Tokens: auth.Tokens{Admin: []string{secrets["admin token"], secrets["old token"]}, Push: []string{secrets["push token"]}, Read: []string{secrets["read token"]}},
		Pages:  dashboard.New, Log: cfg.Log,
	}
	served := func(n *Node) error { return web.Serve(n, api) }
	n1 := startMember(t, cfg, 4, served)
	cfg.Name, cfg.GossipKeys = "n2", [][]byte{[]byte("another-key-0123456789-abcdef-01")} // its gossip cannot be read
	n2 := startMember(t, cfg, 4, served)
	await(t, "n1 serves", func() bool { return n1.owns() > 0 })
	await(t, "n2 has a lease", func() bool { return n2.current.Load() != nil })
	said := answers(t, n1.URL(), secrets)
	redis.Pause() // what is said of an outage
	time.AfterFunc(100*time.Millisecond, redis.Resume)
	said += answers(t, n1.URL(), secrets)
	n2.stop()
	n1.stop()
	said += refusals(t, cfg, api, redis.Addr()) + log.String()
	if got := leaks(said, secrets); len(got) > 0 {
		t.Errorf("told: %q, in:\n%s", got, said)
	}
	if !strings.Contains(said, "lowkiq_lease_remaining_seconds") || !strings.Contains(said, `"cluster":"default"`) || !strings.Contains(said, "level=DEBUG") {
		t.Errorf("metrics, status or log are missing: the test has looked at nothing:\n%s", said)
	}
}

// answers asks for everything, with the right token, a wrong one and none.
func answers(t *testing.T, base string, secrets map[string]string) string {
	t.Helper()
	var said strings.Builder
	for _, path := range []string{
		"/", "/login", "/healthz", "/readyz", "/metrics", "/nowhere", "/api/v1/", "/api/v1/status", "/api/v1/stats", "/api/v1/members", "/api/v1/shards",
		"/api/v1/queues", "/api/v1/queues/orders", "/api/v1/queues/nowhere", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2",
	} {
		for _, token := range []string{secrets["admin token"], secrets["old token"], secrets["read token"], secrets["push token"], "", "wrong"} {
			_, body := get(t, base+path, token)
			said.WriteString(body)
		}
	}
	resp, err := http.PostForm(base+"/login", url.Values{"token": {secrets["push token"]}, "next": {"/x"}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := resp.Header.Write(&said); err != nil {
		t.Fatal(err)
	}
	return said.String()
}

// refusals are the errors of configurations that do not work.
func refusals(t *testing.T, cfg Config, api web.Config, addr string) string {
	t.Helper()
	nothing := lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil })
	var said []error
	for _, change := range []func(*Config, *web.Config){
		func(c *Config, _ *web.Config) { c.Redis = strings.Replace(c.Redis, addr, "127.0.0.1:1", 1) },
		func(c *Config, _ *web.Config) { c.Redis = strings.Replace(c.Redis, "redis://:", "redis://nobody:", 1) },
		func(c *Config, _ *web.Config) { c.Redis += "x" },
		func(c *Config, _ *web.Config) { c.Redis = strings.Replace(c.Redis, "redis://", "http://", 1) },
		func(_ *Config, c *web.Config) { c.Tokens.Read = c.Tokens.Push },
		func(_ *Config, c *web.Config) { c.Tokens.Read = []string{c.Tokens.Read[0] + " "} },
		func(c *Config, _ *web.Config) { c.GossipKeys = [][]byte{append(c.GossipKeys[0], 'x')} },
		func(c *Config, _ *web.Config) { c.Bind = "0.0.0.0:0" },
		func(_ *Config, c *web.Config) { c.Address, c.Tokens = "0.0.0.0:0", auth.Tokens{} },
	} {
		bad, badAPI := cfg, api
		change(&bad, &badAPI)
		n, err := New(bad)
		if err == nil {
			err = errors.Join(n.Handle(QueueConfig{Name: "orders", Shards: 4}, nothing), web.Serve(n, badAPI))
		}
		if err == nil {
			err = n.Run(t.Context())
		}
		if err == nil {
			t.Errorf("%+v, %+v: got no error", bad, badAPI)
			continue
		}
		said = append(said, err)
	}
	return errors.Join(said...).Error()
}

func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
