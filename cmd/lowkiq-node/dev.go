package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/signals"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/cmd/internal/version"
	"github.com/lowkiq/lowkiq/internal/store/embedded"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

// sampleQueue is the queue that dev handles.
const sampleQueue = "sample"

type devCommand struct {
	Nodes    int        `default:"1" placeholder:"N" help:"Number of nodes. They share the shards of the queue."`
	HTTP     string     `name:"http" placeholder:"HOST:PORT" help:"Address of the API. Default: 127.0.0.1, the first free port of 7948, 7958, …"`
	LogLevel slog.Level `default:"warn" env:"LOWKIQ_LOG_LEVEL" help:"debug, info, warn or error."`
}

// maxDevNodes keeps a typing error from starting thousands of nodes.
const maxDevNodes = 20

// Run serves until a signal.
func (c *devCommand) Run(s *terminal.Streams) error {
	if c.Nodes < 1 || c.Nodes > maxDevNodes {
		return exit.Fail(exit.Usage, "--nodes is %d; it must be between 1 and %d", c.Nodes, maxDevNodes)
	}
	redis, err := embedded.Start()
	if err != nil {
		return exit.Fail(exit.Failed, "%w", err)
	}
	defer redis.Close()
	ctx, stop := signals.UntilStopped(s.Err, stopLimit(node.Config{}))
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	up := make(chan *node.Node)
	var nodes []*node.Node
	for i := 1; i <= c.Nodes; i++ {
		log := s.NewLogger(c.LogLevel)
		how := setup{
			node.Config{Name: devName(i, c.Nodes), Redis: redis.URL(), Version: version.ReadBuild().Version, Log: log},
			web.Config{Pages: dashboard.New, Version: version.ReadBuild().Version, Log: log},
		}
		if i == 1 {
			how.web.Address = c.HTTP
		}
		group.Go(func() error {
			err := serveNode(ctx, how, func(cfg node.Config) (*node.Node, error) { return devNode(cfg, s.Out) }, func(n *node.Node) { sendNode(ctx, up, n) })
			return explainListenError(err, how.web.Address, "--http", "--http")
		})
		select {
		case <-ctx.Done():
			return group.Wait()
		case n := <-up:
			nodes = append(nodes, n)
		}
	}
	printGreeting(s.Out, nodes)
	return group.Wait()
}

func devName(i, of int) string {
	if of == 1 {
		return "dev"
	}
	return fmt.Sprintf("dev-%d", i)
}

func devNode(cfg node.Config, out io.Writer) (*node.Node, error) {
	n, err := node.New(cfg)
	if err != nil {
		return nil, exit.WithCode(exit.Usage, err)
	}
	return n, n.Handle(node.QueueConfig{Name: sampleQueue}, &printer{out: out})
}

func sendNode(ctx context.Context, up chan<- *node.Node, n *node.Node) {
	select {
	case <-ctx.Done():
	case up <- n:
	}
}

// printGreeting prints the addresses of the nodes, and commands to try.
func printGreeting(w io.Writer, nodes []*node.Node) {
	for _, n := range nodes {
		fmt.Fprintf(w, "lowkiq-node dev: node %s, queue %q, api %s, redis redis://%s/0\n", n.Name(), sampleQueue, n.URL(), n.Client().Protocol().Redis())
	}
	first := nodes[0]
	fmt.Fprintf(w, `The embedded Redis is miniredis: for trying only, its jobs end with this process.

Try, in another terminal:

  curl -d '{"id":"a","payload":{"n":1}}' %[2]s/api/v1/queues/%[1]s/jobs
  lowkiq-node push --redis redis://%[3]s/0 --queue %[1]s --id a --payload '{"n":2}'
  lowkiq-node recurring add tick --node %[2]s --every 1s -q %[1]s --payload '{"at":"{tick}"}'
  lowkiq-node status --node %[2]s
`, sampleQueue, first.URL(), first.Client().Protocol().Redis())
	if len(nodes) > 1 {
		last := nodes[len(nodes)-1].Name()
		fmt.Fprintf(w, "  lowkiq-node plan --node %[1]s --remove %[2]s\n  lowkiq-node drain --node %[1]s %[2]s\n", first.URL(), last)
	}
	fmt.Fprint(w, "\nWhat the handlers get (Ctrl-C ends it):\n\n")
}

// printer is the handler of the sample queue. It prints payloads, and counts those that are too many to read.
type printer struct {
	out io.Writer

	mu      sync.Mutex
	printed int // lines in this second; guarded by mu
	more    int // payloads not printed in this second; guarded by mu
}

const linesPerSecond = 20

// Handle never fails. A caller gets the last payload back.
func (p *printer) Handle(_ context.Context, batch *lowkiq.Batch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, job := range batch.Jobs {
		if job.Callers > 0 && len(job.Payloads) > 0 {
			batch.Answer(job.ID).Result(job.Payloads[len(job.Payloads)-1].Data)
		}
		for _, payload := range job.Payloads {
			if p.printed == linesPerSecond {
				p.more++
				continue
			}
			p.printed++
			terminal.Fprintf(p.out, "%s: id %q, score %.6f, payload %s%s\n", batch.Shard, job.ID, payload.Score, string(payload.Data),
				headerText(payload.Header))
		}
	}
	return nil
}

func headerText(h lowkiq.Header) string {
	if h == "" {
		return ""
	}
	return ", header " + string(h)
}

// Run starts a new count every second.
func (p *printer) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			p.startSecond()
		}
	}
}

func (p *printer) startSecond() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.more > 0 {
		fmt.Fprintf(p.out, "… and %d more payloads\n", p.more)
	}
	p.printed, p.more = 0, 0
}
