package dashboard

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

//go:embed templates/*.html
var templateFiles embed.FS

// templates has the layout filled with each page, by the name of its file.
type templates map[string]*template.Template

func parseTemplates() (templates, error) {
	shell, err := template.New("layout.html").Funcs(functions()).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	all := templates{}
	for _, name := range names {
		base := strings.TrimSuffix(path.Base(name), ".html")
		if base == "layout" || base == "parts" {
			continue
		}
		page, err := template.Must(shell.Clone()).ParseFS(templateFiles, name)
		if err != nil {
			return nil, fmt.Errorf("dashboard: page %s: %w", base, err)
		}
		all[base] = page
	}
	return all, nil
}

// view is a page to be shown.
type view struct {
	Redirect string // where to go instead

	Page   string // the template's name
	Title  string
	Nav    string // path of the entry in the navigation that is marked
	Queue  string // that the search box begins with
	Live   string // where the page's stream of events is; "" = it has none
	Again  bool   // an open page is read again now and then
	Status int    // of the answer; 0 = 200
	Body   any
	Exact  bool // it is the page that Nav names

	Shell shell
}

// shell is what stands around every page.
type shell struct {
	Cluster   string
	Version   string
	Session   bool // there is a session to end
	MayChange bool // the page offers what changes something
	Assets    string
	Nav       []navEntry
	Trouble   string // why figures are not read now
}

type navEntry struct{ Path, Name string }

func (d *Dashboard) shell(r *http.Request) shell {
	s := shell{
		Cluster: d.client.Cluster(), Version: d.cfg.Version, Session: !auth.SessionEnd(r).IsZero(), MayChange: auth.MayChange(r), Assets: d.assets,
		Nav: []navEntry{{"/", "Overview"}, {"/shards", "Shards"}, {"/nodes", "Nodes"}, {"/plan", "Plan"}, {recurringPath, "Recurring"}, {"/watch", "Events"}, {"/changes", "Changes"}, {"/redis", "Redis"}},
	}
	if now := d.sampler.peek(); now.Err != nil {
		s.Trouble = d.explain(now.Err)
	}
	return s
}

// answerTime bounds how long a page may wait for Redis, so that it can still say so.
const answerTime = 4 * time.Second

// page serves what load makes of a request.
func (d *Dashboard) page(load func(*http.Request) (view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		v, err := load(r.WithContext(ctx))
		switch {
		case err != nil:
			d.fail(w, r, err)
		case v.Redirect != "":
			http.Redirect(w, r, v.Redirect, http.StatusSeeOther)
		default:
			d.show(w, r, v)
		}
	}
}

func (d *Dashboard) show(w http.ResponseWriter, r *http.Request, v view) {
	v.Shell, v.Exact = d.shell(r), r.URL.Path == v.Nav
	var out bytes.Buffer
	if err := d.pages[v.Page].Execute(&out, v); err != nil {
		d.cfg.Log.Error("page not made", "page", v.Page, "err", err)
		http.Error(w, "this page could not be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if v.Status != 0 {
		w.WriteHeader(v.Status)
	}
	_, _ = w.Write(out.Bytes())
}

// fail answers with the page that tells of an error.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	d.show(w, r, d.failure(r, err))
}

// problem is the body of a page that tells what went wrong.
type problem struct {
	Heading string
	Detail  string
	Advice  string
}

// failure is the page that tells of an error.
func (d *Dashboard) failure(r *http.Request, err error) view {
	code, p := web.ProblemOf(err).Status, problem{Heading: "This cannot be shown", Detail: d.explain(err)}
	var own *web.Problem
	switch {
	case code == http.StatusNotFound:
		p.Heading = "Nothing is here"
	case errors.As(err, &own), code == http.StatusBadRequest:
	case code == http.StatusConflict:
		p.Heading = "This is not possible now"
	case code == http.StatusServiceUnavailable:
		p.Heading = "Redis cannot be reached"
		p.Advice = "Jobs are safe where they are. Nodes go on by themselves once Redis answers; reload this page then."
	default:
		p.Heading = "This did not work"
		d.cfg.Log.Error("page failed", "path", r.URL.Path, "err", err)
	}
	return view{Page: "problem", Title: p.Heading, Nav: r.URL.Path, Status: code, Body: p}
}

// away reports whether it was Redis that did not answer.
func away(err error) bool {
	return web.ProblemOf(err).Status == http.StatusServiceUnavailable
}

func (d *Dashboard) explain(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("Redis %s did not answer within %s: %v", d.client.Redis(), answerTime, err)
	}
	return err.Error()
}

// wrongMethod answers what no page takes, and a form's address that was asked for without its form.
func (d *Dashboard) wrongMethod(w http.ResponseWriter, r *http.Request) {
	allow, advice := "GET, HEAD", ""
	if r.URL.Path == confirmPath || r.URL.Path == doPath {
		allow, advice = "POST", " It belongs to a button: go back to the page that has it. Nothing was changed."
	}
	w.Header().Set("Allow", allow)
	d.fail(w, r, web.NewProblem(http.StatusMethodNotAllowed, "%s is not possible at %s: %s is.%s", r.Method, r.URL.Path, allow, advice))
}

func (d *Dashboard) nowhere(r *http.Request) (view, error) {
	return view{}, web.NewProblem(http.StatusNotFound, "Nothing is at %s.", r.URL.Path)
}
