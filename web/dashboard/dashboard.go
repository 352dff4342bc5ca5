package dashboard

import (
	"context"
	"net/http"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// Dashboard serves the pages.
type Dashboard struct {
	node    web.Node
	client  *queue.Client
	cfg     web.Config
	source  redisSource
	sampler *sampler
	pages   *templates
	streams chan struct{} // a slot per stream of events
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
		assets: assetsVersion(), mux: http.NewServeMux(),
	}
	d.sampler = newSampler(d.source)
	d.routes()
	return d, nil
}

// Run reads the figures that the pages show, more often while somebody looks, until ctx
// ends. It must be called once; streams of events end with it.
func (d *Dashboard) Run(ctx context.Context) error { return d.sampler.run(ctx) }

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.mux.ServeHTTP(w, r) }
