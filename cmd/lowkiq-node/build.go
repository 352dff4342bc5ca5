package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"
	_ "time/tzdata" // zones of what recurs, also on hosts and in images that have none

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
	"github.com/lowkiq/lowkiq/internal/certs"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/node/handler"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

func or[T any](v *T) (zero T) {
	if v == nil {
		return zero
	}
	return *v
}

// orNone is for fields of package node in which zero means the default and a negative
// number means none.
func orNone[T int | time.Duration](v *T) T {
	if v != nil && *v == 0 {
		return -1
	}
	return or(v)
}

// setup is how a node works and how it is served.
type setup struct {
	node node.Config
	web  web.Config
}

// setupOf is what the file says; addresses that it leaves open are empty.
func setupOf(cfg *config.Config, log *slog.Logger) (setup, error) {
	tokens, err := nodeTokens(cfg, os.Getenv, log)
	if err != nil {
		return setup{}, err
	}
	var keys [][]byte
	if file := cfg.Node.GossipKeyFile; file != "" {
		if keys, err = gossipKeys(file); err != nil {
			return setup{}, cfg.Fault("node.gossip_key_file", err)
		}
	}
	redisTLS, err := redisTLS(cfg, log)
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
			Concurrency: or(own.Concurrency), TTL: or(own.TTL), PollInterval: or(own.PollInterval), ShutdownTimeout: or(own.ShutdownTimeout),
			AllowEviction: own.AllowEviction, RedisTLS: redisTLS, Insecure: own.Insecure,
			TLS:  own.TLS.Node(),
			Bind: own.Bind, Advertise: own.Advertise, Join: own.Join, Weight: or(own.Weight), GossipKeys: keys,
			Version: version().Version, Log: log, Recurring: recurringOf(cfg),
		},
		web.Config{
			Address: own.HTTP, Advertise: own.Advertise, Names: own.HTTPNames, Tokens: tokens, Insecure: own.Insecure,
			TLS:   own.TLS.Web(),
			Pages: dashboard.New, RequestMemory: rules.Size(own.RequestMemory), Version: version().Version, Log: log,
		},
	}, nil
}

// recurringOf is what recurs by the file.
func recurringOf(cfg *config.Config) map[string]recurring.Spec {
	specs := make(map[string]recurring.Spec, len(cfg.Recurring))
	for name, r := range cfg.Recurring {
		specs[name] = r.Spec()
	}
	return specs
}

// redisTLS reads the files of redis_tls; nil if there are none.
func redisTLS(cfg *config.Config, log *slog.Logger) (*tls.Config, error) {
	if cfg.RedisTLS == (config.RedisTLS{}) {
		return nil, nil
	}
	store, err := certs.Open(cfg.RedisTLS.Files(), log)
	if err != nil {
		return nil, cfg.Fault("redis_tls", err)
	}
	return store.Client(), nil
}

// openRedis is for commands that need no node.
func openRedis(cfg *config.Config) (*queue.Client, error) {
	trust, err := redisTLS(cfg, nil)
	if err != nil {
		return nil, err
	}
	client, err := queue.Open(queue.Config{Redis: cfg.Redis, Cluster: cfg.Cluster, TLS: trust})
	if err != nil {
		return nil, fail(exitUsage, "%w", err)
	}
	return client, nil
}

// queueConfig is what the file says of a queue.
func queueConfig(name string, q *config.Queue) node.QueueConfig {
	cfg := node.QueueConfig{
		Name: name, Shards: q.ShardCount(), BatchSize: or(q.BatchSize), Concurrency: or(q.Concurrency), ShardConcurrency: or(q.ShardConcurrency),
		Prefetch: or(q.Prefetch), HandlerTimeout: orNone(q.HandlerTimeout), MaxRetryCount: orNone(q.MaxRetryCount),
		MaxCrashes: orNone(q.MaxCrashes), Exhausted: queue.Policy(q.Exhausted), Scheduler: node.Scheduler(q.Scheduler), Priority: or(q.Priority),
		Push: pushRules(q), State: orNone(q.State), StuckAfter: orNone(q.StuckAfter),
	}
	if q.RetryIn != nil {
		cfg.RetryIn, cfg.RetryInShown = q.RetryIn.Delay, q.RetryIn.Shown()
	}
	if q.Journal != nil {
		cfg.Journal = node.Journal{Runs: node.JournalRuns(cmp.Or(q.Journal.Runs, string(node.JournalAll))), Keep: or(q.Journal.Keep), For: or(q.Journal.For)}
	}
	if q.Morgue != nil {
		cfg.Morgue = node.Morgue{Keep: or(q.Morgue.Keep), For: or(q.Morgue.For)}
	}
	if q.Limit != nil {
		rate, _ := rules.ParseRate(q.Limit.Rate) // checked with the file
		cfg.Limit = rules.Limit{Concurrency: or(q.Limit.Concurrency), Rate: rate, Burst: or(q.Limit.Burst)}
	}
	if g := q.Groups; g != nil && *g != (config.Groups{}) {
		rate, _ := rules.ParseRate(g.Rate) // checked with the file
		cfg.Groups = rules.Groups{By: cmp.Or(g.By, rules.DefaultBy), Limit: rules.Limit{Concurrency: or(g.Concurrency), Rate: rate, Burst: or(g.Burst)}}
	}
	if q.Expire != nil {
		cfg.Expire = rules.Expire{After: or(q.Expire.After), To: rules.ExpireTo(q.Expire.To)}
	}
	return cfg
}

// pushRules are the limits that the file names for what is pushed to a queue.
func pushRules(q *config.Queue) queue.PushRules {
	push := queue.PushRules{
		PayloadBytes: int(rules.Size(q.MaxPayloadSize)), Payloads: or(q.MaxIDPayloads), IDPayload: int(rules.Size(q.MaxIDSize)), Coalesce: q.Coalesce,
	}
	if d := q.Debounce; d != nil {
		push.Debounce = rules.NoDebounce
		if d.Quiet != nil {
			push.Debounce = rules.Debounce{Quiet: *d.Quiet, Most: or(d.Most)}
		}
	}
	return push
}

// processes is how many children a queue gets: what is configured, else one per CPU, and no more
// than may have a batch at once.
func processes(q *config.Queue, concurrency int) int {
	if q.Handler.Processes != nil {
		return *q.Handler.Processes
	}
	n := handler.DefaultProcesses()
	for _, bound := range []int{concurrency, or(q.Concurrency)} {
		if bound > 0 {
			n = min(n, bound)
		}
	}
	return n
}

// queueHandler is who the file says does the work; concurrency is the node's, 0 = its default.
func queueHandler(q *config.Queue, concurrency int, log *slog.Logger) (lowkiq.Handler, error) {
	h := q.Handler
	switch {
	case h.HTTP != "":
		return handler.NewHTTP(handler.HTTPConfig{URL: h.HTTP, Timeout: or(h.Timeout), Log: log})
	case len(h.Exec) > 0:
		return handler.NewExec(handler.ExecConfig{Argv: h.Exec, Processes: processes(q, concurrency), Log: log})
	}
	return nil, errors.New(`no handler: want handler: {http: "http://…"} or {exec: [command, argument]}`)
}

// setHooks has a handler told of events.
func setHooks(rules *node.QueueConfig, events []string, work lowkiq.Handler) {
	told, ok := work.(interface {
		Event(context.Context, *lowkiq.Event) error
	})
	if !ok {
		return
	}
	for _, name := range events {
		switch lowkiq.EventKind(name) {
		case lowkiq.Recovered:
			rules.OnRecovered = told.Event
		case lowkiq.Buried:
			rules.OnBuried = told.Event
		case lowkiq.Exhausted:
			rules.OnExhausted = told.Event
		}
	}
}

// buildNode makes a node that handles all queues of the file.
func buildNode(cfg *config.Config, nodeCfg node.Config) (*node.Node, error) {
	if len(cfg.Queues) == 0 {
		return nil, cfg.Fault("queues", errors.New("none is configured; a node handles at least one"))
	}
	n, err := node.New(nodeCfg)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Queues)) {
		q := cfg.Queues[name]
		work, err := queueHandler(q, nodeCfg.Concurrency, nodeCfg.Log.With("queue", name))
		if err != nil {
			return nil, errors.Join(cfg.Fault("queues."+name+".handler", err), n.Close())
		}
		rules := queueConfig(name, q)
		rules.Sources = cfg.Sources(name)
		setHooks(&rules, q.Handler.Events, work)
		if err := n.Handle(rules, work); err != nil {
			return nil, errors.Join(cfg.Fault("queues."+name, err), n.Close())
		}
	}
	return n, nil
}
