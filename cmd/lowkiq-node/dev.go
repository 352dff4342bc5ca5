package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/embedded"
	"github.com/lowkiq/lowkiq/node"
)

// sampleQueue is the queue that dev handles.
const sampleQueue = "sample"

type devCommand struct {
	HTTP     string     `name:"http" placeholder:"HOST:PORT" help:"Address of the API. Default: 127.0.0.1, the first free port of 7948, 7958, …"`
	LogLevel slog.Level `default:"warn" env:"LOWKIQ_LOG_LEVEL" help:"debug, info, warn or error."`
}

func (*devCommand) Help() string {
	return `One process, nothing to install: an embedded Redis (miniredis: for trying only, its jobs end with the process), a node, and the queue "sample", whose handler prints what it gets.

    lowkiq-node dev

It prints its addresses and commands to try. Ctrl-C ends it.`
}

// Run serves until a signal.
func (c *devCommand) Run(s *streams) error {
	redis, err := embedded.Start()
	if err != nil {
		return fail(exitFailed, "%w", err)
	}
	defer redis.Close()
	address := c.HTTP
	if address == "" {
		address = freeAddress()
	}
	cfg := node.Config{Name: "dev", Redis: redis.URL(), HTTP: address, Version: version().Version, Log: s.logger(c.LogLevel)}
	build := func(cfg node.Config) (*node.Node, error) {
		n, err := node.New(cfg)
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		return n, n.Handle(node.QueueConfig{Name: sampleQueue}, &printer{out: s.out})
	}
	return serve(cfg, build, func(n *node.Node) { greet(s.out, n, redis.URL()) }, s.err)
}

func greet(w io.Writer, n *node.Node, redis string) {
	fmt.Fprintf(w, `lowkiq-node dev: node %[1]s, queue %[2]q, api %[3]s, redis %[4]s
The embedded Redis is miniredis: for trying only, its jobs end with this process.

Try, in another terminal:

  curl -d '{"id":"a","payload":{"n":1}}' %[3]s/api/v1/queues/%[2]s/jobs
  lowkiq-node push --redis %[4]s --queue %[2]s --id a --payload '{"n":2}'
  lowkiq-node status --node %[3]s

What the handler gets (Ctrl-C ends it):

`, n.Name(), sampleQueue, n.URL(), redis)
}

// printer is the sample queue's handler: it prints jobs, and counts them when there are
// too many to read.
type printer struct {
	out io.Writer

	mu      sync.Mutex
	printed int // in this second; guarded by mu
	more    int // not printed in this second; guarded by mu
}

const linesPerSecond = 20

// Handle never fails.
func (p *printer) Handle(_ context.Context, batch *lowkiq.Batch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, job := range batch.Jobs {
		for _, payload := range job.Payloads {
			if p.printed == linesPerSecond {
				p.more++
				continue
			}
			p.printed++
			fmt.Fprintf(p.out, "%s: id %q, score %.6f, payload %s\n", batch.Shard, job.ID, payload.Score, payload.Data)
		}
	}
	return nil
}

// Run begins a new second, every second.
func (p *printer) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			p.turn()
		}
	}
}

func (p *printer) turn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.more > 0 {
		fmt.Fprintf(p.out, "… and %d more payloads\n", p.more)
	}
	p.printed, p.more = 0, 0
}
