package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// Owners says of a shard, and of the instance that holds its claim ("" = none), which
// node should own it and how it is looked after.
type Owners func(shard lowkiq.Shard, holder string) (assigned string, state web.ShardState)

// Config says where the pages' figures come from. Client, Status, Owners and Cluster are
// required; the zero value of any other field is its default.
type Config struct {
	Client *queue.Client
	// Status is what the node knows of the cluster. Its Queues are not looked at.
	Status func(context.Context) (web.Status, error)
	// Owners reads the leases once, for as many shards as are to be judged by them.
	Owners  func(context.Context) (Owners, error)
	Cluster web.Cluster
	// Log gets what an operator would want to know. Default: nothing is logged.
	Log *slog.Logger
	// Version of the program, for people.
	Version string
}

// Validate says which field is missing.
func (cfg Config) Validate() error {
	switch {
	case cfg.Client == nil:
		return errors.New("dashboard: Client is missing")
	case cfg.Status == nil:
		return errors.New("dashboard: Status is missing")
	case cfg.Owners == nil:
		return errors.New("dashboard: Owners is missing")
	case cfg.Cluster.Members == nil || cfg.Cluster.Plan == nil || cfg.Cluster.Why == nil || cfg.Cluster.Drain == nil:
		return errors.New("dashboard: Cluster is incomplete")
	}
	return nil
}

// Dashboard serves the pages.
type Dashboard struct {
	cfg     Config
	source  redisSource
	sampler *sampler
	pages   *templates
	streams chan struct{} // a slot per stream of events
	assets  string        // version of the files below /static/
	mux     *http.ServeMux
}

// New builds the pages of a node. Figures are read while Run runs.
func New(cfg Config) (*Dashboard, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	pages, err := parseTemplates()
	if err != nil {
		return nil, err
	}
	d := &Dashboard{
		cfg: cfg, source: redisSource{cfg}, pages: pages, streams: make(chan struct{}, maxStreams),
		assets: assetsVersion(), mux: http.NewServeMux(),
	}
	d.sampler = newSampler(d.source)
	d.routes()
	return d, nil
}

// Run reads the figures that the pages show, while somebody looks at them, until ctx
// ends. It must be called once; streams of events end with it.
func (d *Dashboard) Run(ctx context.Context) error { return d.sampler.run(ctx) }

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.mux.ServeHTTP(w, r) }
