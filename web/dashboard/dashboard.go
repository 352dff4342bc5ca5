package dashboard

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/web"
)

// Dashboard serves the pages.
type Dashboard struct {
	node    web.Node
	client  *queue.Client
	cfg     web.Config
	source  redisSource
	sampler *sampler
	pages   templates
	streams chan struct{} // a slot per stream of events
	hub     *events.Hub   // of what happens in the cluster
	assets  string        // version of the files below /static/
	mux     *http.ServeMux
}

// New builds the pages of a node: it is what [web.Config] takes as Pages.
func New(n web.Node, cfg web.Config) (web.Pages, error) { return newDashboard(n, cfg) }

func newDashboard(n web.Node, cfg web.Config) (*Dashboard, error) {
	pages, err := parseTemplates()
	if err != nil {
		return nil, err
	}
	d := &Dashboard{
		node: n, client: n.Client(), cfg: cfg, source: redisSource{n, n.Client()}, pages: pages, streams: make(chan struct{}, maxStreams),
		hub:    events.NewHub(maxStreams, n.Client().Events),
		assets: assetsVersion(), mux: http.NewServeMux(),
	}
	d.sampler = newSampler(d.source)
	d.routes()
	return d, nil
}

// Run reads the figures that the pages show, more often while they are watched, until ctx
// ends. It must be called once; streams of events end with it.
func (d *Dashboard) Run(ctx context.Context) error { return d.sampler.run(ctx) }

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.mux.ServeHTTP(w, r) }

// Where forms go.
const (
	confirmPath = "/confirm"
	doPath      = "/do"
)

// routes are all pages there are. Nothing that is read by GET changes anything.
func (d *Dashboard) routes() {
	get := func(path string, load func(*http.Request) (view, error)) { d.mux.Handle("GET "+path, d.page(load)) }
	get("/queues/{q}", d.queuePage)
	for _, kind := range listKinds() {
		get("/queues/{q}/"+kind.path, d.listPage(kind))
	}
	get("/queues/{q}/errors", d.errorsPage)
	get("/queues/{q}/job", d.jobPage)
	get("/queues/{q}/runs", d.runsPage)
	get("/queues/{q}/days", d.daysPage)
	get("/queues/{q}/rules", d.rulesPage)
	get("/changes", d.changesPage)
	get(recurringPath, d.recurringPage)
	get(recurringPath+"/{entry}", d.oneRecurringPage)
	get("/plan", d.planPage)
	get("/redis", d.redisPage)
	get(resultPath, d.resultPage)
	get("/search", d.searchPage)
	get("/", d.nowhere)
	for _, p := range d.livePages() {
		get(p.pattern, func(r *http.Request) (view, error) {
			return p.view(d.sampler.await(r.Context(), "", p.enough), accessOf(r))
		})
	}
	d.mux.HandleFunc("GET /static/{file}", d.static)
	d.mux.HandleFunc("GET /events", d.events)
	d.mux.HandleFunc("POST "+confirmPath, d.confirm)
	d.mux.HandleFunc("POST "+doPath, d.perform)
	d.mux.HandleFunc("POST "+recurringPath, d.addRecurring)
	d.mux.HandleFunc("POST "+recurringPath+"/{entry}", d.editRecurring)
	d.mux.HandleFunc("POST /queues/{q}/rules", d.changeRules)
	d.mux.HandleFunc("POST /queues/{q}/track", d.track)
	d.mux.HandleFunc("POST /queues/{q}/hold", d.hold)
	d.mux.HandleFunc("POST /queues/{q}/cancel", d.cancel)
	for _, pattern := range []string{"GET " + confirmPath, "GET " + doPath, "/"} {
		d.mux.HandleFunc(pattern, d.wrongMethod)
	}
}

//go:embed static/*
var staticFiles embed.FS

// assetsVersion names the files below /static/, so that a browser keeps them until they change.
func assetsVersion() string {
	sum := sha256.New()
	for _, name := range []string{"style.css", "live.js", "icon.svg"} {
		text, _ := staticFiles.ReadFile("static/" + name) // embedded: it is there
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
}

func (d *Dashboard) static(w http.ResponseWriter, r *http.Request) {
	types := map[string]string{"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}
	name := r.PathValue("file")
	text, err := staticFiles.ReadFile("static/" + name)
	if err != nil || types[name] == "" {
		d.page(d.nowhere)(w, r)
		return
	}
	keep := "no-cache"
	if r.URL.Query().Get("v") == d.assets {
		// Only then: a node of another version must not give its file a name that it has not.
		keep = "public, max-age=31536000, immutable"
	}
	w.Header().Set("Content-Type", types[name])
	w.Header().Set("Cache-Control", keep)
	_, _ = w.Write(text)
}
