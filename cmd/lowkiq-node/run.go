package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
	"github.com/lowkiq/lowkiq/internal/logbuf"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

type runCommand struct {
	source `embed:""`

	Name          string     `key:"node.name" placeholder:"NAME" help:"Name of the node. Default: the host's; if a live node has it, HOST-2, HOST-3, …"`
	Bind          string     `key:"node.bind" placeholder:"HOST:PORT" help:"Address of the gossip; Raft listens one port above. Default: 127.0.0.1, the first free port of 7946, 7956, …"`
	Join          []string   `key:"node.join" sep:"," placeholder:"HOST:PORT" help:"Gossip address of any node of the cluster; may be repeated. Default: peers are found through Redis."`
	Advertise     string     `key:"node.advertise" placeholder:"HOST" help:"Host at which the other nodes reach this one. Default: that of --bind."`
	Weight        *int       `key:"node.weight" placeholder:"N" help:"Share of shards relative to the other nodes. Default: 1."`
	HTTP          string     `key:"node.http" name:"http" placeholder:"HOST:PORT" help:"Address of the API and the metrics. Default: 127.0.0.1, the first free port of 7948, 7958, …"`
	Concurrency   *int       `key:"node.concurrency" placeholder:"N" help:"Most handler calls at once. Default: four per CPU."`
	TokenFile     string     `key:"node.token_file" placeholder:"FILE" help:"File with the admin token, which API callers must send. LOWKIQ_NODE_TOKEN is the token itself."`
	Insecure      *bool      `key:"node.insecure" help:"Serve the API to other hosts without a token, gossip with them without a key, speak Raft with them without certificates."`
	AllowEviction *bool      `key:"node.allow_eviction" help:"Accept a Redis that may evict keys, and with them jobs."`
	LogLevel      slog.Level `default:"info" env:"LOWKIQ_LOG_LEVEL" help:"debug, info, warn or error."`
}

// Run runs the node until a signal ends it.
func (c *runCommand) Run(s *streams, parsed *kong.Context) error {
	if c.Config == "" {
		fmt.Fprint(s.out, config.Minimal)
		return fail(exitUsage, "run needs --config FILE; a minimal one is on stdout: save it and fill in the queues")
	}
	cfg, err := c.load(parsed)
	if err != nil {
		return err
	}
	log := s.logger(c.LogLevel)
	defer logbuf.Flush(log, lastWords)
	slog.SetDefault(log) // what libraries say goes the same way
	c.warnOfPasswords(cfg, log)
	how, err := setupOf(cfg, log)
	if err != nil {
		return err
	}
	ctx, stop := underSignals(s.err, stopLimit(how.node))
	defer stop()
	err = serve(ctx, how, func(n node.Config) (*node.Node, error) { return buildNode(cfg, n) },
		func(n *node.Node) { fmt.Fprintln(s.out, startLine(how.node, cfg, n)+"\n"+joinLine(c.Config, n)) })
	return s.lastly(listening(err, how.web.Address, "node.http (or --http, LOWKIQ_NODE_HTTP)", "node.bind (or --bind, LOWKIQ_NODE_BIND)"))
}

// stopLimit is when a node that is told to stop ends, whatever hangs: half a second after it would itself.
func stopLimit(cfg node.Config) time.Duration {
	return cmp.Or(cfg.ShutdownTimeout, node.DefaultShutdownTimeout) + 4500*time.Millisecond
}

// lastWords is how long the end of a node waits for who reads what it prints.
const lastWords = time.Second

// within calls f and waits for its return until a time is over.
func within(limit time.Duration, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// lastly prints why a node has ended, if it can be printed, and returns an error with its exit code.
func (s *streams) lastly(err error) error {
	if err == nil {
		return nil
	}
	within(lastWords, func() { report(s.err, advised(err)) })
	return &exitError{code: codeOf(err)}
}

// startLine is what a person wants to see first.
func startLine(nodeCfg node.Config, cfg *config.Config, n *node.Node) string {
	var queues []string
	for _, name := range slices.Sorted(maps.Keys(cfg.Queues)) {
		queues = append(queues, fmt.Sprintf("%s (%d shards)", name, cfg.Queues[name].ShardCount()))
	}
	redis := nodeCfg.Redis
	if redis == "" {
		redis = "redis://" + n.Client().Redis() + "/0"
	}
	return fmt.Sprintf("lowkiq-node %s: cluster %s, node %s, redis %s, queues %s, api %s",
		nodeCfg.Version, n.Client().Cluster(), n.Name(), redisdb.MaskURL(redis), strings.Join(queues, ", "), n.URL())
}

// joinLine is how to start the next node.
func joinLine(file string, n *node.Node) string {
	return fmt.Sprintf("next node: lowkiq-node run --config %s --join %s", file, n.Gossip())
}

// serve builds a node and runs it until ctx ends; started is called once it can be reached.
// Addresses that are left open are those of the first free ports; a node that lost them to another
// one that starts takes the next.
func serve(ctx context.Context, how setup, build func(node.Config) (*node.Node, error), started func(*node.Node)) error {
	var began atomic.Bool
	how.node.OnStart = func() error { began.Store(true); return nil }
	var p ports
	for {
		filled := p.fill(how)
		n, err := build(filled.node)
		if usage := (*exitError)(nil); errors.As(err, &usage) { // all that is wrong is said at once
			usage.err = errors.Join(usage.err, filled.web.Validate())
		}
		if err != nil {
			return err
		}
		defer n.Close()
		if err := web.Serve(n, filled.web); err != nil {
			return &exitError{exitUsage, err}
		}
		running, ended := context.WithCancel(ctx)
		announced := announce(running, n, started)
		err = n.Run(ctx)
		ended()
		within(lastWords, func() { <-announced }) // it may hang in a line to stdout
		if p.collided(err) && p.next < firstPort+portTries*portStep {
			continue
		}
		return runError(err, began.Load())
	}
}

// announce waits until the node can be reached.
func announce(ctx context.Context, n *node.Node, started func(*node.Node)) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for n.URL() == "" || n.Gossip() == "" {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
		started(n)
	}()
	return done
}

// runError gives the end of a node its exit code: what went wrong before the start is
// the configuration's fault or Redis's.
func runError(err error, began bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EACCES):
		return &exitError{exitUsage, err}
	case began:
		return &exitError{exitFailed, err}
	case queue.Transient(err):
		return &exitError{exitUnreachable, err}
	}
	return &exitError{exitUsage, err}
}
