package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/lowkiq/lowkiq/internal/hosts"
	"github.com/lowkiq/lowkiq/internal/logbuf"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Config says how a node is served. The zero value of a field is its default.
type Config struct {
	// Address is the host:port to listen at. Default: the first free port of 127.0.0.1.
	Address string
	// Advertise is the host at which others reach the API. Default: Address's; if that is all
	// addresses, the first private one of the host.
	Advertise string
	// Names are the host names of the node besides Advertise, that of Address, and those that no
	// other host can own: localhost, addresses, names without a dot. Requests under other names are
	// refused while neither tokens nor certificates are asked for: a web site could have its name
	// lead to the node.
	Names []string

	// Tokens, unless empty, are asked of everyone, but for /healthz and /readyz. To listen beyond
	// loopback some are required, or TLS.ClientAuth, unless Insecure.
	Tokens   auth.Tokens
	TLS      TLS
	Insecure bool // accept to be reachable from other hosts without any of these

	// Pages makes what is for people: every path that is not the API's, health's or the metrics'.
	// Default: nothing is there. See dashboard.New.
	Pages func(Node, Config) (Pages, error)

	// RequestMemory is most bytes that all requests together hold of bodies and of what is made of
	// them; beyond it they are refused with 503. Default 64 MiB.
	RequestMemory int64
	// BodyLimit is the longest body of a request, bytes. Default 32 MiB, or half of RequestMemory
	// if that is less.
	BodyLimit int64
	// Log gets what an operator would want to know. Default: nothing is logged.
	Log *slog.Logger
	// Version of the program, for people.
	Version string
}

// Pages are for people.
type Pages interface {
	http.Handler
	// Run reads what the pages show until ctx ends. Streams of events end with it.
	Run(ctx context.Context) error
}

const defaultRequestMemory = 64 << 20

// Validate says what is wrong with the configuration; no file is read.
func (cfg Config) Validate() error {
	errs := []error{cfg.Tokens.Validate()}
	for _, name := range cfg.Names {
		if !hosts.Name.MatchString(name) {
			errs = append(errs, fmt.Errorf("http_names: %.60q (%d bytes): want a host name of at most 253 bytes, without port", name, len(name)))
		}
	}
	if err := cfg.TLS.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("tls: %w", err))
	}
	if cfg.RequestMemory < 0 || cfg.BodyLimit < 0 {
		errs = append(errs, errors.New("request_memory and the limit of a body: want more than 0"))
	}
	if !cfg.Insecure {
		errs = append(errs, cfg.exposed())
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
	cfg.Log = logbuf.Logger(cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)))
	if cfg.Advertise == "" && hosts.Everywhere(cfg.Address) {
		var err error
		if cfg.Advertise, err = hosts.Outward(); err != nil {
			return cfg, fmt.Errorf("address for others: %w; configure advertise", err)
		}
	}
	return cfg, cfg.Validate()
}
