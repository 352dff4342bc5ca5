//go:build linux

package browser

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

// embedded starts a node in this process, and returns the handler of its dashboard, which asks for a token.
func (w *world) embedded() http.Handler {
	w.t.Helper()
	n, err := node.New(node.Config{Redis: w.redis.URL(), Name: "embedded"})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := n.Handle(node.QueueConfig{Name: "orders", Shards: 2}, lowkiq.HandlerFunc(func(context.Context,
		*lowkiq.Batch) error {
		return nil
	})); err != nil {
		w.t.Fatal(err)
	}
	handler, err := web.New(n, web.Config{Pages: dashboard.New, Tokens: auth.Tokens{Admin: []string{adminToken}}})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	await(w.t, "the node is ready", patience, func() bool { return n.Ready() == nil })
	return handler
}

// TestBelowAPrefix logs in, looks around, acts and logs out, on the mux of a program and behind a proxy that strips a
// prefix and rewrites Host.
func TestBelowAPrefix(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	w := newWorld(t)
	jobs := w.embedded()
	own := http.NewServeMux()
	own.Handle("/jobs/", jobs)
	behind := httptest.NewServer(jobs)
	t.Cleanup(behind.Close)
	to, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := http.NewServeMux()
	proxy.Handle("/ops/lowkiq/", http.StripPrefix("/ops/lowkiq", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to) // and Host
		r.SetXForwarded()
	}}))
	for _, c := range []struct {
		name, prefix, id string
		handler          http.Handler
	}{{"own mux", "/jobs", "later-mux", own}, {"proxy", "/ops/lowkiq", "later-proxy", proxy}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(c.handler)
			server.Listener.Close() // beyond loopback a browser sends no Sec-Fetch-Site
			server.Listener = listen(t)
			server.Start()
			t.Cleanup(server.Close)
			w.schedule("orders", c.id)
			b := newTab(t, browser, looks[3])
			at := func(path string) string { return `location.pathname === "` + c.prefix + path + `"` }
			b.open(server.URL + c.prefix + "/")
			b.sees("the form", at("/login")+` && document.querySelector("#token") !== null`)
			b.logIn(adminToken)
			b.sees("the overview, live", at("/")+` && document.querySelector("[data-live-text]")?.textContent === "live" && `+figure("orders")+` !== undefined && document.querySelector("#trouble")?.hidden`)
			b.clickIn("main", "orders")
			b.sees("the queue", at("/queues/orders"))
			b.clickIn("main", "Jobs")
			b.sees("its jobs", at("/queues/orders/jobs"))
			b.clickIn("main", c.id)
			b.sees("the job", at("/queues/orders/job"))
			b.click("Delete")
			b.sees("the question", at("/confirm"))
			b.click("Delete")
			b.sees("the result", at("/result"))
			b.says("1 job deleted")
			b.clickIn("header", "Nodes")
			b.sees("the node", at("/nodes")+` && document.querySelector("main")?.innerText.includes("embedded")`)
			eval[bool](b, `(document.querySelector(".skip").click(), true)`)
			b.sees("the same page", at("/nodes")+` && location.hash === "#main"`)
			b.clickIn("footer", "API")
			b.sees("the API", at("/api/v1/"))
			b.clickIn("header", "dashboard")
			b.sees("the overview", at("/"))
			b.clickIn("footer", "Log out")
			b.sees("the form again", at("/login"))
			if got := strings.Join(b.wrong(), "\n"); got != "" {
				t.Error(got)
			}
		})
	}
}
