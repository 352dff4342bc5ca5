package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/lowkiq/lowkiq/internal/network/hosts"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Config says how a node is served. The zero value of a field is its default.
type Config struct {
	// Address is the host:port to listen at. Default: the first free port of 127.0.0.1.
	Address string
	// Advertise is the host where others reach the API. Default: Address's; if that is all
	// addresses, the first private address of the host.
	Advertise string
	// Names are further host names of the node. Advertise, the host of Address, localhost, addresses
	// and names without a dot are always allowed, because no other site can own them. Requests under
	// other names are refused if the node asks for neither tokens nor certificates, because a web site
	// could let its own name resolve to the node.
	Names []string

	// Tokens are the tokens that requests need, except for /healthz and /readyz. Without tokens the
	// node asks for none. To listen beyond loopback, tokens, TLS.ClientAuth or Insecure is required.
	Tokens   auth.Tokens
	TLS      TLS
	Insecure bool // accept to be reachable from other hosts without any of these

	// Pages makes the handler of the pages for people, at all paths except those of the API, health
	// and metrics. By default there are no pages. See dashboard.New.
	Pages func(Node, Config) (Pages, error)

	// Cluster answers questions about the cluster. Default: status.Of the node.
	Cluster status.Cluster

	// RequestMemory bounds the bytes that the bodies of all requests take together, as text and
	// decoded. Requests beyond it are refused with 503. The default is 64 MiB.
	RequestMemory int64
	// BodyLimit is the maximum length of a request's body, bytes. The default is 32 MiB, or half of
	// RequestMemory if that is less.
	BodyLimit int64
	// Log gets the messages for operators. Default: slog.Default(). Nothing waits for it, as for the log of a node.
	Log *slog.Logger
	// Version of the program, for people.
	Version string
}

// Pages serves the pages for people.
type Pages interface {
	http.Handler
	// Run reads what the pages show until ctx ends. Streams of events end with it.
	Run(ctx context.Context) error
}

const defaultRequestMemory = 64 << 20

// Validate returns the errors of the configuration. It reads no file.
func (cfg Config) Validate() error {
	errs := []error{cfg.Tokens.Validate()}
	for _, name := range cfg.Names {
		if !hosts.IsName(name) {
			errs = append(errs, fmt.Errorf("http_names: %.60q (%d bytes): it must be a host name of at most 253 bytes, without port", name, len(name)))
		}
	}
	if err := cfg.TLS.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("tls: %w", err))
	}
	if cfg.RequestMemory < 0 || cfg.BodyLimit < 0 {
		errs = append(errs, errors.New("request_memory and the limit of a body must not be negative"))
	}
	if !cfg.Insecure {
		errs = append(errs, cfg.checkExposure())
	}
	return errors.Join(errs...)
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Address == "" {
		cfg.Address = "127.0.0.1:0"
	}
	if cfg.RequestMemory == 0 {
		cfg.RequestMemory = defaultRequestMemory
	}
	if cfg.BodyLimit == 0 {
		cfg.BodyLimit = min(32<<20, cfg.RequestMemory/copiesOfBody)
	}
	cfg.Log = logbuf.Logger(cmp.Or(cfg.Log, slog.Default()))
	if cfg.Advertise == "" && hosts.IsEverywhere(cfg.Address) {
		var err error
		if cfg.Advertise, err = hosts.OutwardAddress(); err != nil {
			return cfg, fmt.Errorf("address for others: %w; configure advertise", err)
		}
	}
	return cfg, cfg.Validate()
}
