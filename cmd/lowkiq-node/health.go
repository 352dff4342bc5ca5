package main

import (
	"context"
	"io"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/network/remote"
)

// healthCommand asks a node for its health. It is for containers without a shell and curl.
type healthCommand struct {
	Node    string `env:"LOWKIQ_URL" default:"http://127.0.0.1:7948" placeholder:"URL" help:"Address of the node (${default})."`
	trust   `embed:""`
	Ready   bool          `help:"Ask whether the node is ready: it has a lease and its shards."`
	Timeout time.Duration `default:"3s" placeholder:"TIME" help:"How long to wait for the answer (${default})."`
}

// Run asks /healthz or /readyz. A node that is not ready counts as unreachable.
func (c *healthCommand) Run(s *terminal.Streams) error {
	if c.Timeout <= 0 {
		return exit.Fail(exit.Usage, "--timeout is %s; it must be more than 0", c.Timeout)
	}
	client, err := remote.New(c.Node, "")
	if err != nil {
		return exit.WithCode(exit.Usage, err)
	}
	if err := c.configureTLS(client); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), c.Timeout)
	defer stop()
	path := "/healthz"
	if c.Ready {
		path = "/readyz"
	}
	answer, err := client.Get(ctx, path)
	if err != nil {
		return err
	}
	_, err = io.WriteString(s.Out, terminal.EscapeExcept(string(answer), "\n\t"))
	return err
}
