package web

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page and its style
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"regexp"
	"strings"

	"github.com/lowkiq/lowkiq/web/auth"
)

var (
	//go:embed page.html
	pageText string
	//go:embed page.css
	pageStyle string
)

// page is the page at /api/v1/. It has no script, and loads nothing from other sites.
type page struct {
	template  *template.Template
	styleHash string // the hash in the content security policy that allows the style
}

func newPage() (*page, error) {
	parsed, err := template.New("page").Parse(pageText)
	if err != nil {
		return nil, fmt.Errorf("web: page: %w", err)
	}
	sum := sha256.Sum256([]byte(pageStyle))
	return &page{template: parsed, styleHash: "sha256-" + base64.StdEncoding.EncodeToString(sum[:])}, nil
}

// view is the content of the page.
type view struct {
	Root    string // relative URL of the root of the node, base of all links
	Style   template.CSS
	Version string
	Groups  []group
}

// group is a part of the index.
type group struct {
	Title string
	Rows  []indexRow
}

type indexRow struct{ Method, Path, Link, About, Curl string }

func (a *api) showIndex(w http.ResponseWriter, r *http.Request) (any, error) {
	v := view{Root: auth.Root(r), Style: template.CSS(pageStyle), Version: a.cfg.Version, Groups: a.indexOf(baseURL(r))}
	var out bytes.Buffer
	if err := a.page.template.Execute(&out, v); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(out.Bytes())
	return nil, nil
}

// forwarded matches the host or the prefix that a proxy may name in its headers.
var forwarded = regexp.MustCompile(`^[A-Za-z0-9._~:/\[\]-]+$`)

// baseURL returns the URL of the node's root, as the client knows it. It believes the headers of proxies
// from any sender, because they only change the examples that this sender sees.
func baseURL(r *http.Request) string {
	scheme, host := "http", r.Host
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	asked, _, _ := strings.Cut(r.RequestURI, "?")
	prefix, stripped := strings.CutSuffix(asked, r.URL.EscapedPath())
	if !stripped {
		prefix = ""
	}
	if said := r.Header.Get("X-Forwarded-Host"); forwarded.MatchString(said) {
		host = said
	}
	if said := r.Header.Get("X-Forwarded-Prefix"); forwarded.MatchString(said) {
		prefix = strings.TrimSuffix(said, "/") + prefix
	}
	return scheme + "://" + host + prefix
}

// indexOf describes the routes in three groups. They read, change something, or serve machines.
func (a *api) indexOf(base string) []group {
	groups := []group{{Title: "Read"}, {Title: "Push and change"}, {Title: "Operate"}}
	for _, rt := range a.listRoutes() {
		row := indexRow{Method: rt.method(), Path: rt.pattern[len(rt.method())+1:], About: rt.about, Curl: rt.curl(base, !a.cfg.Tokens.Empty())}
		row.Path = strings.TrimSuffix(row.Path, "{$}")
		i := 0
		switch {
		case row.Method != http.MethodGet:
			i = 1
		case len(rt.path) < 5 || rt.path[:5] != "/api/":
			i, row.Link = 2, rt.path
		}
		groups[i].Rows = append(groups[i].Rows, row)
	}
	return groups
}

// curl returns the example as a command line.
func (rt route) curl(base string, token bool) string {
	line := "curl"
	if token && rt.requiredRole() > auth.Anonymous {
		line += ` -H "Authorization: Bearer $TOKEN"`
	}
	if rt.method() != http.MethodGet {
		line += " -X " + rt.method()
	}
	if rt.body != "" {
		line += " -d '" + rt.body + "'"
	}
	return line + " '" + base + rt.path + "'"
}
