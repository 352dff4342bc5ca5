package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
)

type runCommand struct {
	source `embed:""`

	Name          string     `placeholder:"NAME" help:"Name of the node. Default: the host's; if a live node has it, HOST-2, HOST-3, …"`
	Bind          string     `placeholder:"HOST:PORT" help:"Address of the gossip; Raft listens one port above. Default: 127.0.0.1, the first free port of 7946, 7956, …"`
	Join          []string   `sep:"," placeholder:"HOST:PORT" help:"Gossip address of any node of the cluster; may be repeated. Default: peers are found through Redis."`
	Advertise     string     `placeholder:"HOST" help:"Host at which the other nodes reach this one. Default: that of --bind."`
	Weight        *int       `placeholder:"N" help:"Share of shards relative to the other nodes. Default: 1."`
	HTTP          string     `name:"http" placeholder:"HOST:PORT" help:"Address of the API and the metrics. Default: 127.0.0.1, the first free port of 7948, 7958, …"`
	Concurrency   *int       `placeholder:"N" help:"Most handler calls at once. Default: four per CPU."`
	TokenFile     string     `placeholder:"FILE" help:"File with the admin token, which API callers must send. LOWKIQ_NODE_TOKEN is the token itself."`
	Insecure      *bool      `help:"Serve the API to other hosts without a token, gossip with them without a key, speak Raft with them without certificates."`
	AllowEviction *bool      `help:"Accept a Redis that may evict keys, and with them jobs."`
	LogLevel      slog.Level `default:"info" env:"LOWKIQ_LOG_LEVEL" help:"debug, info, warn or error."`
}

func (*runCommand) Help() string {
	return `Without a configuration it prints a minimal one:

    lowkiq-node run > node.yaml
    lowkiq-node run --config node.yaml

Nodes with the same Redis and the same cluster name are one cluster, and share the shards of all queues: start as many as you like, on this host with the same command, on others with --bind and a gossip key:

    lowkiq-node run --config node.yaml
    lowkiq-node run --config node.yaml --join 127.0.0.1:7946
    lowkiq-node run --config node.yaml --bind 10.0.0.2:7946 --http 10.0.0.2:7948

The configuration file is overridden by environment variables, and these by flags. A variable is the key's path in capitals, with _ for dots and whatever else is no letter or digit:

    node.poll_interval     LOWKIQ_NODE_POLL_INTERVAL=500ms
    queues.history.shards  LOWKIQ_QUEUES_HISTORY_SHARDS=16 (in the file)

Keys of the file: cluster, redis, redis_tls ({ca_file, cert_file, key_file}); node: name, concurrency, ttl, poll_interval, shutdown_timeout, http, http_names, request_memory, token_file (admin), push_token_file, read_token_file (each one token, or two while they are rotated; a variable of the same name without _FILE is the token itself), tls ({cert_file, key_file, ca_file, peer_name, client_auth: require or none}), insecure, allow_eviction, bind, advertise, join, weight, gossip_key_file (AES keys in base64, one a line: the first encrypts, all decrypt); queues.NAME: shards, batch_size, max_retry_count, retry_in ({base, power, jitter} or a list of durations), handler ({http, timeout} or {exec, processes}), scheduler (lag or seq), concurrency, shard_concurrency, prefetch, handler_timeout, exhausted (skip, bury or block), max_crashes, max_payload_size, max_id_payloads, max_id_size.

SIGTERM and SIGINT end it gracefully: what is in flight is finished, within shutdown_timeout. A second SIGINT ends it at once. SIGTTIN prints the stacks of all goroutines. Logs go to stderr, as text to a terminal, else as JSON.

` + exitHelp
}

func (c *runCommand) overrides() []config.Override {
	return given(
		config.Override{Source: "--name", Key: "node.name", Value: c.Name},
		config.Override{Source: "--bind", Key: "node.bind", Value: c.Bind},
		config.Override{Source: "--join", Key: "node.join", Value: list(c.Join)},
		config.Override{Source: "--advertise", Key: "node.advertise", Value: c.Advertise},
		config.Override{Source: "--weight", Key: "node.weight", Value: number(c.Weight)},
		config.Override{Source: "--http", Key: "node.http", Value: c.HTTP},
		config.Override{Source: "--concurrency", Key: "node.concurrency", Value: number(c.Concurrency)},
		config.Override{Source: "--token-file", Key: "node.token_file", Value: c.TokenFile},
		config.Override{Source: "--insecure", Key: "node.insecure", Value: truth(c.Insecure)},
		config.Override{Source: "--allow-eviction", Key: "node.allow_eviction", Value: truth(c.AllowEviction)},
	)
}

// Run runs the node until a signal ends it.
func (c *runCommand) Run(s *streams) error {
	if c.Config == "" {
		fmt.Fprint(s.out, config.Minimal)
		return fail(exitUsage, "run needs --config FILE; a minimal one is on stdout: save it and fill in the queues")
	}
	cfg, err := c.load(c.overrides()...)
	if err != nil {
		return err
	}
	log := s.logger(c.LogLevel)
	c.warnOfPasswords(cfg, log)
	nodeCfg, err := nodeConfig(cfg, log)
	if err != nil {
		return err
	}
	err = serve(nodeCfg, func(n node.Config) (*node.Node, error) { return buildNode(cfg, n) },
		func(n *node.Node) { fmt.Fprintln(s.out, startLine(nodeCfg, cfg, n)+"\n"+joinLine(c.Config, n)) }, s.err)
	return listening(err, nodeCfg, "node.http (or --http, LOWKIQ_NODE_HTTP)", "node.bind (or --bind, LOWKIQ_NODE_BIND)")
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
		nodeCfg.Version, n.Client().Cluster(), n.Name(), queue.MaskURL(redis), strings.Join(queues, ", "), n.URL())
}

// joinLine is how to start the next node.
func joinLine(file string, n *node.Node) string {
	return fmt.Sprintf("next node: lowkiq-node run --config %s --join %s", file, n.Gossip())
}

// serve builds a node and runs it under signals; started is called once it can be reached.
func serve(cfg node.Config, build func(node.Config) (*node.Node, error), started func(*node.Node), stacks io.Writer) error {
	ctx, stop := underSignals(stacks)
	defer stop()
	return serveUnder(ctx, cfg, build, started)
}

// serveUnder runs a node until ctx ends. Addresses that are left open are those of the
// first free ports; a node that lost them to another one that starts takes the next.
func serveUnder(ctx context.Context, cfg node.Config, build func(node.Config) (*node.Node, error), started func(*node.Node)) error {
	var began atomic.Bool
	cfg.OnStart = func() error { began.Store(true); return nil }
	var p ports
	for {
		n, err := build(p.fill(cfg))
		if err != nil {
			return err
		}
		running, ended := context.WithCancel(ctx)
		announced := announce(running, n, started)
		err = n.Run(ctx)
		ended()
		<-announced
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
