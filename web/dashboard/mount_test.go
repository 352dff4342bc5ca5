package dashboard

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// attachingNode runs the pages of the handler that web.New makes, as a node does.
type attachingNode struct {
	fakeNode
	run *func(context.Context) error
}

func (n attachingNode) Attach(listen func() (string, error), serve func(context.Context) error) error {
	*n.run = serve
	_, err := listen()
	return err
}

// mounts are the ways to serve a node below /ops/jobs/. Each strips the prefix in its way, or leaves it on.
var mounts = []struct {
	name  string
	mount func(t *testing.T, node http.Handler) http.Handler
}{
	{"mux", func(_ *testing.T, node http.Handler) http.Handler { return muxed("/ops/jobs/", node) }},
	{"mux with StripPrefix", func(_ *testing.T, node http.Handler) http.Handler {
		return muxed("/ops/jobs/", http.StripPrefix("/ops/jobs", node))
	}},
	{"mux with StripPrefix of the slash too", func(_ *testing.T, node http.Handler) http.Handler {
		return muxed("/ops/jobs/", http.StripPrefix("/ops/jobs/", node))
	}},
	{"router without patterns", func(_ *testing.T, node http.Handler) http.Handler { return http.StripPrefix("/ops/jobs", node) }},
	{"proxy that strips the prefix", func(t *testing.T, node http.Handler) http.Handler {
		behind := httptest.NewServer(node)
		t.Cleanup(behind.Close)
		to := mustURL(behind.URL)
		proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.SetXForwarded() // SetURL has rewritten Host
		}}
		return muxed("/ops/jobs/", http.StripPrefix("/ops/jobs", proxy))
	}},
}

func muxed(pattern string, h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(pattern, h)
	return mux
}

// Below a prefix every link, form, redirect and stream of events leads below the prefix, the session is known there and
// nowhere else, and figures are read.
func TestBelowAPrefix(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	for _, m := range mounts {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var run func(context.Context) error
			node, err := web.New(attachingNode{fakeNode{w: w}, &run}, web.Config{Cluster: fakeNode{w: w}, Pages: New, Tokens: auth.Tokens{Admin: []string{adminToken}}, Log: slog.New(slog.DiscardHandler)})
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- run(ctx) }()
			t.Cleanup(func() { cancel(); must(t, <-ended) })
			server := httptest.NewServer(m.mount(t, node))
			t.Cleanup(server.Close)
			newVisitor(t, server.URL, "/ops/jobs/").walk()
		})
	}
}

// visitor is a browser that knows links and forms, and remembers cookies.
type visitor struct {
	t      *testing.T
	client *http.Client
	site   string
	root   string // URL below which everything has to be
}

func newVisitor(t *testing.T, site, prefix string) *visitor {
	jar, err := cookiejar.New(nil)
	must(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &visitor{t, &http.Client{Jar: jar, Transport: transport}, site, site + prefix}
}

func (v *visitor) walk() {
	page, at := v.get(v.root + "queues/orders/jobs?state=ready")
	if want := v.root + "login?next=%2Fqueues%2Forders%2Fjobs%3Fstate%3Dready"; at.String() != want {
		v.t.Fatalf("before the log-in: got %s, want %s", at, want)
	}
	_, at = v.send(v.form(page, at, "/login"), "token", adminToken, "next", "/queues/orders/jobs?state=ready")
	if want := v.root + "queues/orders/jobs?state=ready"; at.String() != want {
		v.t.Fatalf("after the log-in: got %s, want %s", at, want)
	}
	if got := v.client.Jar.Cookies(mustURL(v.site + "/")); len(got) > 0 {
		v.t.Errorf("outside of the prefix: got the cookies %v, want none", got)
	}

	overview, at := v.get(strings.TrimSuffix(v.root, "/"))
	if at.String() != v.root {
		v.t.Fatalf("without the slash: got %s, want %s", at, v.root)
	}
	if !strings.Contains(overview, ">orders</a>") || !strings.Contains(overview, `id="trouble" role="alert" hidden`) {
		v.t.Errorf("got the overview %s, want the figures of orders", overview)
	}
	v.stream(overview, at)
	v.crawl()

	page, at = v.get(v.root + "queues/mail")
	page, at = v.send(v.form(page, at, "/confirm"), "do", "pause", "queue", "mail", "back", "/queues/mail")
	_, at = v.send(v.form(page, at, "/do"), "do", "pause", "queue", "mail", "back", "/queues/mail")
	if !strings.HasPrefix(at.String(), v.root+"result?") {
		v.t.Errorf("after an action: got %s, want its result below %s", at, v.root)
	}
	page, at = v.get(v.root + "nodes")
	_, at = v.send(v.form(page, at, "/logout"))
	if at.String() != v.root+"login" {
		v.t.Errorf("after the log-out: got %s, want %slogin", at, v.root)
	}
}

// get returns a page, and where it was found.
func (v *visitor) get(target string) (page string, at *url.URL) {
	v.t.Helper()
	r, err := http.NewRequest(http.MethodGet, target, nil)
	must(v.t, err)
	r.Header.Set("Accept", "text/html")
	answer, err := v.client.Do(r)
	return v.read(target, answer, err)
}

func (v *visitor) read(target string, answer *http.Response, err error) (page string, at *url.URL) {
	v.t.Helper()
	must(v.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(v.t, err)
	if noJob := strings.HasSuffix(answer.Request.URL.Path, "/job") && answer.StatusCode == http.StatusNotFound; answer.StatusCode != http.StatusOK && !noJob {
		v.t.Fatalf("%s: got status %d at %s; %s", target, answer.StatusCode, answer.Request.URL, text)
	}
	return string(text), answer.Request.URL
}

// send fills in a form, as a browser would that does not say Sec-Fetch-Site.
func (v *visitor) send(target string, fields ...string) (page string, at *url.URL) {
	v.t.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	r, err := http.NewRequest(http.MethodPost, target, strings.NewReader(form.Encode()))
	must(v.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "text/html")
	r.Header.Set("Origin", v.site)
	answer, err := v.client.Do(r)
	return v.read(target, answer, err)
}

// form is where the form of a page leads that has this path on the node.
func (v *visitor) form(page string, at *url.URL, path string) string {
	v.t.Helper()
	for _, l := range links(page, at) {
		if l.form && strings.HasSuffix(l.to.Path, path) {
			return l.to.String()
		}
	}
	v.t.Fatalf("%s: got no form that leads to %s; %s", at, path, page)
	return ""
}

// stream wants an event of a live page.
func (v *visitor) stream(page string, at *url.URL) {
	v.t.Helper()
	_, rest, _ := strings.Cut(page, `data-live="`)
	source, _, _ := strings.Cut(rest, `"`)
	answer, err := v.client.Get(at.ResolveReference(mustURL(html.UnescapeString(source))).String())
	must(v.t, err)
	defer answer.Body.Close()
	start := make([]byte, len("event: totals"))
	if _, err := io.ReadFull(answer.Body, start); err != nil || string(start) != "event: totals" {
		v.t.Errorf("stream of events: got %d, %q, %v", answer.StatusCode, start, err)
	}
}

// crawl follows all links but those of the API, and looks at them and where forms lead.
func (v *visitor) crawl() {
	v.t.Helper()
	seen, left := map[string]bool{}, []string{v.root}
	for len(left) > 0 {
		page, at := v.get(left[0])
		left = left[1:]
		for _, l := range links(page, at) {
			l.to.Fragment = ""
			switch text := l.to.String(); {
			case l.to.Port() == "7948": // another node
			case !strings.HasPrefix(text, v.root):
				v.t.Errorf("%s: a link leads to %s, want it below %s", at, text, v.root)
			case !l.form && !seen[text] && !strings.HasSuffix(at.Path, "/api/v1/"):
				seen[text] = true
				left = append(left, text)
			}
		}
	}
	if len(seen) < 30 {
		v.t.Errorf("got %d pages, want those of queues, nodes, jobs and more", len(seen))
	}
}

// link is one of a page, or where a form of it goes.
type link struct {
	to   *url.URL
	form bool
}

func links(page string, at *url.URL) (all []link) {
	tokens := html.NewTokenizer(strings.NewReader(page))
	for kind := tokens.Next(); kind != html.ErrorToken; kind = tokens.Next() {
		token := tokens.Token()
		for _, a := range token.Attr {
			switch {
			case a.Key != "href" && a.Key != "action" && a.Key != "src" || strings.HasPrefix(a.Val, "data:"):
			case token.Data == "base":
				at = at.ResolveReference(mustURL(a.Val))
			default:
				all = append(all, link{at.ResolveReference(mustURL(a.Val)), a.Key == "action"})
			}
		}
	}
	return all
}
