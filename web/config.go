package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lowkiq/lowkiq/queue"
)

// Config says where the answers come from. Client, Status, Cluster and Metrics are required;
// the zero value of any other field is its default.
type Config struct {
	Client  *queue.Client
	Status  func(context.Context) (Status, error) // what the node knows of the cluster
	Cluster Cluster
	Ready   func() error // why the node is not ready; nil function = always ready
	Metrics prometheus.Gatherer
	// Pages serves what is for people: every path that is not the API's, health's or the
	// metrics'. Default: nothing is there.
	Pages http.Handler

	// Tokens, unless empty, are asked of everyone, but for /healthz and /readyz.
	Tokens Tokens
	// Certificates wants of every client one that the TLS layer has verified, but for
	// /healthz and /readyz, whose callers have none. With Tokens both are wanted.
	Certificates bool
	// Names are the host names of the node besides those that nobody else can own: localhost, addresses,
	// names without a dot. With neither Tokens nor Certificates, requests under other names are refused.
	Names []string
	// RequestMemory is most bytes that all requests together hold of bodies and of what is made of them. Default 64 MiB.
	RequestMemory int64
	// BodyLimit is the longest body of a request, bytes. Default 32 MiB, or half of RequestMemory if that is less.
	BodyLimit int64
	// Log gets what an operator would want to know. Default: nothing is logged.
	Log *slog.Logger
	// Version of the program, for people.
	Version string
}

// DefaultRequestMemory is the default of Config.RequestMemory.
const DefaultRequestMemory = 64 << 20

// Validate says which field is missing or wrong.
func (cfg Config) Validate() error {
	switch {
	case cfg.Client == nil:
		return errors.New("web: Client is missing")
	case cfg.Status == nil:
		return errors.New("web: Status is missing")
	case !cfg.Cluster.complete():
		return errors.New("web: Cluster is incomplete")
	case cfg.Metrics == nil:
		return errors.New("web: Metrics is missing")
	case cfg.RequestMemory < 0:
		return errors.New("web: RequestMemory is negative")
	case cfg.BodyLimit < 0:
		return errors.New("web: BodyLimit is negative")
	}
	if err := cfg.Tokens.Validate(); err != nil {
		return fmt.Errorf("web: %w", err)
	}
	return nil
}

func (cfg Config) withDefaults() Config {
	if cfg.Ready == nil {
		cfg.Ready = func() error { return nil }
	}
	if cfg.Pages == nil {
		cfg.Pages = http.HandlerFunc(nowhere)
	}
	if cfg.RequestMemory == 0 {
		cfg.RequestMemory = DefaultRequestMemory
	}
	if cfg.BodyLimit == 0 {
		cfg.BodyLimit = min(32<<20, cfg.RequestMemory/copiesOfBody)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// api serves the routes. It has no state of its own.
type api struct {
	cfg  Config
	page *page
}

// New builds the HTTP face of a node.
func New(cfg Config) (http.Handler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	page, err := newPage()
	if err != nil {
		return nil, err
	}
	a := &api{cfg: cfg.withDefaults(), page: page}
	mux := http.NewServeMux()
	needs := map[string]role{}
	for _, rt := range a.routes() {
		mux.Handle(rt.pattern, a.handler(rt))
		needs[rt.pattern] = rt.needs()
	}
	tokens := a.cfg.Tokens.hashed()
	pages, err := newDoors(sessions{tokens, time.Now}, a.cfg.Pages, a.cfg.Log)
	if err != nil {
		return nil, err
	}
	g := &guard{mux: mux, needs: needs, tokens: tokens, certificates: a.cfg.Certificates, doors: pages, memory: &memory{most: a.cfg.RequestMemory}}
	for _, name := range a.cfg.Names {
		g.names = append(g.names, plainName(name))
	}
	return a.withHeaders(g.wrap(withOrigin(withMisses(mux, pages)))), nil
}

// handler checks a route's query, serves it, and answers its errors.
func (a *api) handler(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := checkQuery(r.URL.RawQuery, rt.query)
		if err == nil {
			err = rt.serve(w, r)
		}
		if err != nil {
			a.fail(w, r, err)
		}
	})
}
