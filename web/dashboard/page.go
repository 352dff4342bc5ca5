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

// templates has the layout filled with each page, by the name of its file. html/template escapes each value for its
// place, so names, ids, payloads and errors may have any text.
type templates map[string]*template.Template

func parseTemplates() (templates, error) {
	shell, err := template.New("layout.html").Funcs(templateFunctions()).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html")
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
	Redirect string // local path to go to instead

	Page   string // the template's name
	Title  string
	Nav    string // path of the entry in the navigation that is marked
	Queue  string // that the page is about
	Find   string // text of the search box
	Live   string // where the page's stream of events is; "" = it has none
	Again  bool   // an open page is read again now and then
	Status int    // of the answer; 0 = 200
	Body   any
	Exact  bool // it is the page that Nav names

	Shell shell
}

// shell has the parts that surround every page.
type shell struct {
	Root      string // relative URL of the root of the node, base of all links
	Here      string // local path of the page
	Cluster   string
	Version   string
	Session   bool // there is a session to end
	MayChange bool // the page offers changes
	Assets    string
	Nav       []navEntry
	Trouble   string // why figures are not read now
}

type navEntry struct{ Path, Name string }

func (d *Dashboard) newShell(r *http.Request) shell {
	s := shell{
		Root: auth.Root(r), Here: r.URL.RequestURI(),
		Cluster: d.client.Cluster(), Version: d.cfg.Version, Session: !auth.SessionEnd(r).IsZero(), MayChange: auth.MayChange(r), Assets: d.assets,
		Nav: []navEntry{{"/", "Overview"}, {"/shards", "Shards"}, {"/nodes", "Nodes"}, {"/plan", "Plan"}, {recurringPath, "Recurring"}, {workflowsPath, "Workflows"}, {"/watch", "Events"}, {"/changes", "Changes"}, {"/redis", "Redis"}},
	}
	if now := d.sampler.latest(); now.Err != nil {
		s.Trouble = d.explainError(now.Err)
	}
	return s
}

// answerTime bounds the time that a page waits for Redis, so that the page can still show the timeout.
const answerTime = 4 * time.Second

// handlePage returns a handler that shows the view that load returns, goes on to its Redirect, or shows the page
// of an error. Forms use it, too, and redirect after success, so a reload sends no form again.
func (d *Dashboard) handlePage(load func(*http.Request) (view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), d.answerTimeout)
		defer cancel()
		v, err := load(r.WithContext(ctx))
		switch {
		case err != nil:
			d.writeError(w, r, err)
		case v.Redirect != "":
			auth.Redirect(w, r, v.Redirect)
		default:
			d.writePage(w, r, v)
		}
	}
}

// writePage makes the whole page before it writes the first byte. A template that fails then leads to an error and
// not to half of a page.
func (d *Dashboard) writePage(w http.ResponseWriter, r *http.Request, v view) {
	v.Shell, v.Exact = d.newShell(r), r.URL.Path == v.Nav
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

// writeError answers with the page of an error.
func (d *Dashboard) writeError(w http.ResponseWriter, r *http.Request, err error) {
	d.writePage(w, r, d.errorView(r, err))
}

// problem is the body of the page of an error.
type problem struct {
	Heading string
	Detail  string
	Advice  string
}

// errorView returns the page of an error. It logs only errors that the code does not expect. The sender has caused the
// others, or the node logs the outage of Redis itself.
func (d *Dashboard) errorView(r *http.Request, err error) view {
	code, p := web.ProblemOf(err).Status, problem{Heading: "This cannot be shown", Detail: d.explainError(err)}
	var own *web.Problem
	switch {
	case code == http.StatusNotFound:
		p.Heading = "Nothing is here"
	case errors.As(err, &own), code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge:
	case web.IsBusy(err):
		p.Heading = "The node is busy"
		p.Advice = "Reload this page in a moment."
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

// isRedisAway reports whether an error means that Redis does not answer.
func isRedisAway(err error) bool {
	return web.ProblemOf(err).Status == http.StatusServiceUnavailable && !web.IsBusy(err)
}

func (d *Dashboard) explainError(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("Redis %s did not answer within %s: %v", d.client.Redis(), d.answerTimeout, err)
	}
	return err.Error()
}

// wrongMethod answers methods that no page takes, and a GET of the address of a form.
func (d *Dashboard) wrongMethod(w http.ResponseWriter, r *http.Request) {
	allow, advice := "GET, HEAD", ""
	if r.URL.Path == confirmPath || r.URL.Path == doPath {
		allow, advice = "POST", " It belongs to a button. Go back to the page that has it. Nothing was changed."
	}
	w.Header().Set("Allow", allow)
	d.writeError(w, r, web.NewProblem(http.StatusMethodNotAllowed, "%s is not possible at %s, but %s is.%s", r.Method, r.URL.Path, allow, advice))
}

func (d *Dashboard) notFoundPage(r *http.Request) (view, error) {
	return view{}, web.NewProblem(http.StatusNotFound, "Nothing is at %s.", r.URL.Path)
}
