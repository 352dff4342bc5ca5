package dashboard

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
)

// Dashboard serves the pages.
type Dashboard struct {
	node     web.Node
	operator *actions.Operator
	client   *protocol.Client
	cfg      web.Config
	source   redisSource
	sampler  *sampler
	pages    templates
	streams  chan struct{} // a slot for each live page
	hub      *events.Hub   // of the cluster's events
	assets   string        // version of the files below /static/
	mux      *http.ServeMux

	answerTimeout time.Duration // answerTime
}

// New returns the pages of a node. [web.Config] takes it as Pages.
func New(n web.Node, cfg web.Config) (web.Pages, error) { return newDashboard(n, cfg) }

func newDashboard(n web.Node, cfg web.Config) (*Dashboard, error) {
	pages, err := parseTemplates()
	if err != nil {
		return nil, err
	}
	d := &Dashboard{
		node: n, operator: actions.New(n, cfg.Cluster, cfg.Log), client: n.Client().Protocol(), cfg: cfg, source: redisSource{cfg.Cluster, n.Client().Protocol()}, pages: pages, streams: make(chan struct{}, maxStreams),
		hub:    events.NewHub(maxStreams, n.Client().Events),
		assets: assetsVersion(), mux: http.NewServeMux(), answerTimeout: answerTime,
	}
	d.sampler = newSampler(d.source)
	d.addRoutes()
	return d, nil
}

// Run reads the figures that the pages show, more often while they are watched, until ctx
// ends. It must be called once. Streams of events end with it.
func (d *Dashboard) Run(ctx context.Context) error { return d.sampler.run(ctx) }

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.mux.ServeHTTP(w, r) }

// Paths of the forms of actions.
const (
	confirmPath = "/confirm"
	doPath      = "/do"
)

// addRoutes adds the routes of all pages. A GET never changes anything. Package web lets only senders with
// the role Admin send a POST, and refuses forms of other sites. So no handler here checks either.
func (d *Dashboard) addRoutes() {
	get := func(path string, load func(*http.Request) (view, error)) {
		d.mux.Handle("GET "+path, d.handlePage(load))
	}
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
	get(workflowsPath, d.workflowsPage)
	get(workflowPath, d.workflowPage)
	get("/plan", d.planPage)
	get("/redis", d.redisPage)
	get(resultPath, d.resultPage)
	get("/search", d.searchPage)
	get("/", d.notFoundPage)
	for _, p := range d.livePages() {
		get(p.pattern, func(r *http.Request) (view, error) {
			return p.view(d.sampler.await(r.Context(), "", p.enough), accessOf(r))
		})
	}
	d.mux.HandleFunc("GET /static/{file}", d.serveStatic)
	d.mux.HandleFunc("GET /events", d.serveEvents)
	d.mux.HandleFunc("POST "+confirmPath, d.confirmRequest)
	d.mux.HandleFunc("POST "+doPath, d.performRequest)
	d.mux.HandleFunc("POST "+recurringPath, d.addRecurring)
	d.mux.HandleFunc("POST "+recurringPath+"/{entry}", d.editRecurring)
	d.mux.HandleFunc("POST "+workflowPath, d.changeWorkflow)
	d.mux.HandleFunc("POST /queues/{q}/rules", d.changeRules)
	d.mux.HandleFunc("POST /queues/{q}/reshard", d.reshardQueue)
	d.mux.HandleFunc("POST /queues/{q}/outgoing", d.dropOutgoing)
	d.mux.HandleFunc("POST /queues/{q}/track", d.jobForm(d.trackID))
	d.mux.HandleFunc("POST /queues/{q}/hold", d.changeHold)
	d.mux.HandleFunc("POST /queues/{q}/cancel", d.jobForm(d.cancelRun))
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
		text, _ := staticFiles.ReadFile("static/" + name) // it is embedded
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
}

// serveStatic serves the files that pages load. They need no token and hold nothing about the cluster.
func (d *Dashboard) serveStatic(w http.ResponseWriter, r *http.Request) {
	types := map[string]string{"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}
	name := r.PathValue("file")
	text, err := staticFiles.ReadFile("static/" + name)
	if err != nil || types[name] == "" {
		d.handlePage(d.notFoundPage)(w, r)
		return
	}
	keep := "no-cache"
	if r.URL.Query().Get("v") == d.assets {
		// A node of another version may get the request. Its file must not be kept under this version.
		keep = "public, max-age=31536000, immutable"
	}
	w.Header().Set("Content-Type", types[name])
	w.Header().Set("Cache-Control", keep)
	_, _ = w.Write(text)
}
