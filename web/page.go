package web

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page and its style
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"time"
)

var (
	//go:embed page.html
	pageText string
	//go:embed page.css
	pageStyle string
)

// page is the page at /: no script, nothing from elsewhere.
type page struct {
	template  *template.Template
	styleHash string // by which the content security policy allows the style
}

func newPage() (*page, error) {
	parsed, err := template.New("page").Funcs(template.FuncMap{"seconds": seconds}).Parse(pageText)
	if err != nil {
		return nil, fmt.Errorf("web: page: %w", err)
	}
	sum := sha256.Sum256([]byte(pageStyle))
	return &page{template: parsed, styleHash: "sha256-" + base64.StdEncoding.EncodeToString(sum[:])}, nil
}

// view is what the page shows.
type view struct {
	Style   template.CSS
	Version string
	Status  Status
	Problem string // why there is no status
	Groups  []group
}

// group is a part of the index.
type group struct {
	Title string
	Rows  []indexRow
}

type indexRow struct{ Method, Path, Link, About, Curl string }

func (a *api) index(w http.ResponseWriter, r *http.Request) error {
	v := view{Style: template.CSS(pageStyle), Version: a.cfg.Version, Groups: a.indexOf(baseURL(r))}
	status, err := a.cfg.Status(r.Context())
	if err != nil {
		v.Problem = err.Error()
	}
	v.Status = status
	var out bytes.Buffer
	if err := a.page.template.Execute(&out, v); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(out.Bytes())
	return nil
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
		row := indexRow{Method: rt.method(), Path: rt.pattern[len(rt.method())+1:], About: rt.about, Curl: rt.curl(base, a.cfg.Token != "")}
		if row.Path == "/{$}" {
			row.Path = "/"
		}
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
	if token && !rt.open {
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

// seconds writes a duration as people read it: 0 s, 12.3 s, 4m10s.
func seconds(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d == 0:
		return "0 s"
	case d < 10*time.Millisecond:
		return "< 10 ms"
	case d < time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	default:
		return d.Round(time.Second).String()
	}
}
