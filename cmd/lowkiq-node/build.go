package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	_ "time/tzdata" // time zones of recurring jobs, for hosts and images without them

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/config"
	"github.com/lowkiq/lowkiq/cmd/internal/connect"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/version"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/node/handler"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

// valueOrZero returns the value of a pointer, or the zero value for nil.
func valueOrZero[T any](v *T) (zero T) {
	if v == nil {
		return zero
	}
	return *v
}

// setup is the configuration of a node and of its API.
type setup struct {
	node node.Config
	web  web.Config
}

// setupOf returns the configuration of the file. Addresses that the file leaves open are empty.
func setupOf(cfg *config.Config, log *slog.Logger) (setup, error) {
	tokens, err := nodeTokens(cfg, os.Getenv, log)
	if err != nil {
		return setup{}, err
	}
	var keys [][]byte
	if file := cfg.Node.GossipKeyFile; file != "" {
		if keys, err = gossipKeys(file); err != nil {
			return setup{}, cfg.ErrorAt("node.gossip_key_file", err)
		}
	}
	redisTLS, err := connect.RedisTLS(cfg, log)
	if err != nil {
		return setup{}, err
	}
	for _, secret := range []string{cfg.Node.GossipKeyFile, cfg.Node.TLS.KeyFile, cfg.RedisTLS.KeyFile} {
		warnOfReaders(secret, log)
	}
	own := cfg.Node
	return setup{
		node.Config{
			Name: own.Name, Redis: cfg.Redis, Cluster: cfg.Cluster,
			Concurrency: valueOrZero(own.Concurrency), TTL: valueOrZero(own.TTL), PollInterval: valueOrZero(own.PollInterval), ShutdownTimeout: valueOrZero(own.ShutdownTimeout),
			AllowEviction: own.AllowEviction, RedisTLS: redisTLS, Insecure: own.Insecure,
			TLS:  nodeTLS(own.TLS),
			Bind: own.Bind, Advertise: own.Advertise, Join: own.Join, Weight: valueOrZero(own.Weight), GossipKeys: keys,
			Of: valueOrZero(own.Of), Number: valueOrZero(own.Number),
			Version: version.ReadBuild().Version, Log: log, Recurring: recurringOf(cfg),
		},
		web.Config{
			Address: own.HTTP, Advertise: own.Advertise, Names: own.HTTPNames, Tokens: tokens, Insecure: own.Insecure,
			TLS:   webTLS(own.TLS),
			Pages: dashboard.New, RequestMemory: int64(own.RequestMemory), Version: version.ReadBuild().Version, Log: log,
		},
	}, nil
}

// nodeTLS returns the files as Raft takes them.
func nodeTLS(t config.TLS) node.TLS {
	return node.TLS{CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile, PeerName: t.PeerName}
}

// webTLS returns the files as the API takes them.
func webTLS(t config.TLS) web.TLS {
	return web.TLS{CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile, ClientAuth: t.RequiresClientCerts()}
}

// recurringOf returns the recurring entries of the file.
func recurringOf(cfg *config.Config) map[string]recurring.Spec {
	specs := make(map[string]recurring.Spec, len(cfg.Recurring))
	for name, spec := range cfg.Recurring {
		specs[name] = *spec
	}
	return specs
}

// processCount returns how many children a queue gets. The default is handler.DefaultProcesses, and at most the number of
// batches at once.
func processCount(q *config.Queue, concurrency int) int {
	if q.Handler.Processes != nil {
		return *q.Handler.Processes
	}
	n := handler.DefaultProcesses()
	for _, bound := range []int{concurrency, q.Concurrency} {
		if bound > 0 {
			n = min(n, bound)
		}
	}
	return n
}

// queueHandler returns the handler that the file names. concurrency is that of the node, 0 for the default.
func queueHandler(q *config.Queue, concurrency int, log *slog.Logger) (lowkiq.Handler, error) {
	h := q.Handler
	switch {
	case h.HTTP != "":
		return handler.NewHTTP(handler.HTTPConfig{URL: h.HTTP, Timeout: valueOrZero(h.Timeout), Log: log})
	case len(h.Exec) > 0:
		return handler.NewExec(handler.ExecConfig{Argv: h.Exec, Processes: processCount(q, concurrency), Log: log})
	}
	return nil, errors.New(`no handler: give handler: {http: "http://…"} or {exec: [command, argument]}`)
}

// setHooks lets a handler receive events.
func setHooks(rules *node.QueueConfig, events []string, work lowkiq.Handler) {
	listener, ok := work.(interface {
		Event(context.Context, *lowkiq.Event) error
	})
	if !ok {
		return
	}
	for _, name := range events {
		switch lowkiq.EventKind(name) {
		case lowkiq.Recovered:
			rules.OnRecovered = listener.Event
		case lowkiq.Buried:
			rules.OnBuried = listener.Event
		case lowkiq.Exhausted:
			rules.OnExhausted = listener.Event
		}
	}
}

// buildNode returns a node that handles all queues of the file.
func buildNode(cfg *config.Config, nodeCfg node.Config) (*node.Node, error) {
	if len(cfg.Queues) == 0 {
		return nil, cfg.ErrorAt("queues", errors.New("none is configured; a node handles at least one"))
	}
	n, err := node.New(nodeCfg)
	if err != nil {
		return nil, exit.WithCode(exit.Usage, err)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Queues)) {
		q := cfg.Queues[name]
		work, err := queueHandler(q, nodeCfg.Concurrency, nodeCfg.Log.With("queue", name))
		if err != nil {
			return nil, errors.Join(cfg.ErrorAt("queues."+name+".handler", err), n.Close())
		}
		rules := node.QueueConfig{Name: name, Shards: q.ShardCount(), Rules: q.Rules, Sources: cfg.Sources(name)}
		setHooks(&rules, q.Handler.Events, work)
		if err := n.Handle(rules, work); err != nil {
			return nil, errors.Join(cfg.ErrorAt("queues."+name, err), n.Close())
		}
	}
	return n, nil
}
