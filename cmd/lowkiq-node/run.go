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

	"github.com/lowkiq/lowkiq/cmd/internal/config"
	"github.com/lowkiq/lowkiq/cmd/internal/connect"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/signals"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web"
)

type runCommand struct {
	connect.Flags `embed:""`

	Name          string     `key:"node.name" placeholder:"NAME" help:"Name of the node. Default: the name of the host; if a live node has it, HOST-2, HOST-3, …"`
	Bind          string     `key:"node.bind" placeholder:"HOST:PORT" help:"Address of the gossip; Raft listens one port above. Default: 127.0.0.1, the first free port of 7946, 7956, …"`
	Join          []string   `key:"node.join" sep:"," placeholder:"HOST:PORT" help:"Gossip address of any node of the cluster; may be repeated. Default: peers are found through Redis."`
	Advertise     string     `key:"node.advertise" placeholder:"HOST" help:"Host at which the other nodes reach this one. Default: the host of --bind."`
	Of            *int       `key:"node.of" placeholder:"N" help:"Number of static nodes. A static node gossips with no other node, and owns the shards whose index modulo N is --number."`
	Number        *int       `key:"node.number" placeholder:"N" help:"Number of this static node, from 0."`
	Weight        *int       `key:"node.weight" placeholder:"N" help:"Share of shards relative to the other nodes. Default: 1."`
	HTTP          string     `key:"node.http" name:"http" placeholder:"HOST:PORT" help:"Address of the API and the metrics. Default: 127.0.0.1, the first free port of 7948, 7958, …"`
	Concurrency   *int       `key:"node.concurrency" placeholder:"N" help:"Maximum number of handler calls at once. Default: four per CPU."`
	TokenFile     string     `key:"node.token_file" placeholder:"FILE" help:"File with the admin token, which API callers must send. LOWKIQ_NODE_TOKEN is the token itself."`
	Insecure      *bool      `key:"node.insecure" help:"Serve the API to other hosts without a token, gossip with them without a key, speak Raft with them without certificates."`
	AllowEviction *bool      `key:"node.allow_eviction" help:"Accept a Redis that may evict keys, and with them jobs."`
	LogLevel      slog.Level `default:"info" env:"LOWKIQ_LOG_LEVEL" help:"debug, info, warn or error."`
}

// Run runs the node until a signal ends it.
func (c *runCommand) Run(s *terminal.Streams, parsed *kong.Context) error {
	if c.Config == "" {
		fmt.Fprint(s.Out, config.Minimal)
		return exit.Fail(exit.Usage, "run needs --config FILE; a minimal file is on stdout, to be saved and filled in")
	}
	cfg, err := c.LoadConfig(parsed)
	if err != nil {
		return err
	}
	log := s.NewLogger(c.LogLevel)
	defer logbuf.Flush(log, lastWords)
	slog.SetDefault(log) // the log of libraries goes the same way
	warnOfPasswords(c.Config, cfg, log)
	how, err := setupOf(cfg, log)
	if err != nil {
		return err
	}
	ctx, stop := signals.UntilStopped(s.Err, stopLimit(how.node))
	defer stop()
	err = serveNode(ctx, how, func(n node.Config) (*node.Node, error) { return buildNode(cfg, n) },
		func(n *node.Node) { fmt.Fprintln(s.Out, startLine(how.node, cfg, n)+"\n"+joinLine(c.Config, n)) })
	return reportEnd(s, explainListenError(err, how.web.Address, "node.http (or --http, LOWKIQ_NODE_HTTP)", "node.bind (or --bind, LOWKIQ_NODE_BIND)"))
}

// stopLimit is the time after which a node that was told to stop ends, whatever hangs. It is half a second longer than a
// node takes by itself.
func stopLimit(cfg node.Config) time.Duration {
	return cmp.Or(cfg.ShutdownTimeout, node.DefaultShutdownTimeout) + 4500*time.Millisecond
}

// lastWords is how long the end of a node waits for the reader of its output.
const lastWords = time.Second

// waitAtMost calls f and waits until it returns or the time is over.
func waitAtMost(limit time.Duration, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// reportEnd prints the error that ended a node, if it can be printed, and returns its exit code as an error.
func reportEnd(s *terminal.Streams, err error) error {
	if err == nil {
		return nil
	}
	waitAtMost(lastWords, func() { exit.PrintError(s.Err, program, addAdvice(err)) })
	return exit.Quietly(exitCode(err))
}

// startLine is the first line that a person reads: the addresses and queues of the node.
func startLine(nodeCfg node.Config, cfg *config.Config, n *node.Node) string {
	var queues []string
	for _, name := range slices.Sorted(maps.Keys(cfg.Queues)) {
		queues = append(queues, fmt.Sprintf("%s (%d shards)", name, cfg.Queues[name].ShardCount()))
	}
	redis := nodeCfg.Redis
	if redis == "" {
		redis = "redis://" + n.Client().Protocol().Redis() + "/0"
	}
	return fmt.Sprintf("lowkiq-node %s: cluster %s, node %s, redis %s, queues %s, api %s",
		nodeCfg.Version, n.Client().Protocol().Cluster(), n.Name(), redisdb.MaskURL(redis), strings.Join(queues, ", "), n.URL())
}

// joinLine says how to start the next node.
func joinLine(file string, n *node.Node) string {
	if share := n.Static(); share != "" {
		return fmt.Sprintf("static node %s: no other node takes its shards, and it takes no others", share)
	}
	return fmt.Sprintf("next node: lowkiq-node run --config %s --join %s", file, n.Gossip())
}

// serveNode builds a node and runs it until ctx ends. It calls started once the node can be reached. Addresses that are left
// open get the first free ports. If another node takes such a port first, the node tries the next ports.
func serveNode(ctx context.Context, how setup, build func(node.Config) (*node.Node, error), started func(*node.Node)) error {
	var began atomic.Bool
	how.node.OnStart = func() error { began.Store(true); return nil }
	var p ports
	for {
		filled := p.fillAddresses(how)
		n, err := build(filled.node)
		if usage := (*exit.Error)(nil); errors.As(err, &usage) { // report all errors at once
			usage.Err = errors.Join(usage.Err, filled.web.Validate())
		}
		if err != nil {
			return err
		}
		defer n.Close()
		if err := web.Serve(n, filled.web); err != nil {
			return exit.WithCode(exit.Usage, err)
		}
		running, ended := context.WithCancel(ctx)
		announced := announceStart(running, n, started)
		err = n.Run(ctx)
		ended()
		waitAtMost(lastWords, func() { <-announced }) // the call may hang in a write to stdout
		if p.collided(err) && p.next < firstPort+portTries*portStep {
			continue
		}
		return runError(err, began.Load())
	}
}

// announceStart calls started once the node can be reached.
func announceStart(ctx context.Context, n *node.Node, started func(*node.Node)) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for n.URL() == "" || n.Gossip() == "" && n.Static() == "" {
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

// runError gives the end of a node its exit code. An error before the start is the fault of the configuration or of Redis.
// Only a fault that nobody can mend at Redis is a wrong configuration, because supervisors do not restart a node after that.
func runError(err error, began bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL):
		return exit.WithCode(exit.Unreachable, err)
	case errors.Is(err, syscall.EACCES):
		return exit.WithCode(exit.Usage, err)
	case began:
		return exit.WithCode(exit.Failed, err)
	case protocol.Transient(err), protocol.Denied(err):
		return exit.WithCode(exit.Unreachable, err)
	}
	return exit.WithCode(exit.Usage, err)
}
