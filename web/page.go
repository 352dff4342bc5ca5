package web

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page and its style
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"

	"github.com/lowkiq/lowkiq/web/auth"
)

var (
	//go:embed page.html
	pageText string
	//go:embed page.css
	pageStyle string
)

// page is the page at /api/v1/: no script, nothing from elsewhere.
type page struct {
	template  *template.Template
	styleHash string // by which the content security policy allows the style
}

func newPage() (*page, error) {
	parsed, err := template.New("page").Parse(pageText)
	if err != nil {
		return nil, fmt.Errorf("web: page: %w", err)
	}
	sum := sha256.Sum256([]byte(pageStyle))
	return &page{template: parsed, styleHash: "sha256-" + base64.StdEncoding.EncodeToString(sum[:])}, nil
}

// view is what the page shows: how to ask.
type view struct {
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

func (a *api) index(w http.ResponseWriter, r *http.Request) (any, error) {
	v := view{Style: template.CSS(pageStyle), Version: a.cfg.Version, Groups: a.indexOf(baseURL(r))}
	var out bytes.Buffer
	if err := a.page.template.Execute(&out, v); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(out.Bytes())
	return nil, nil
}

func baseURL(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// indexOf describes the routes: what is read, what changes something, what machines ask.
func (a *api) indexOf(base string) []group {
	groups := []group{{Title: "Read"}, {Title: "Push and change"}, {Title: "Operate"}}
	for _, rt := range a.routes() {
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

// curl is the example as a command line.
func (rt route) curl(base string, token bool) string {
	line := "curl"
	if token && rt.needs() > auth.Anonymous {
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
