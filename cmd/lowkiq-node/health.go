package main

import (
	"context"
	"time"

	"github.com/lowkiq/lowkiq/internal/remote"
)

// healthCommand is what containers without a shell and curl ask their node with.
type healthCommand struct {
	Node    string `env:"LOWKIQ_URL" default:"http://127.0.0.1:7948" placeholder:"URL" help:"Address of the node (${default})."`
	trust   `embed:""`
	Ready   bool          `help:"Ask whether the node may be counted on, too: it has a lease, and its shards."`
	Timeout time.Duration `default:"3s" placeholder:"TIME" help:"How long to wait for the answer (${default})."`
}

// Run asks /healthz or /readyz. A node that is not ready counts as unreachable.
func (c *healthCommand) Run(s *streams) error {
	if c.Timeout <= 0 {
		return fail(exitUsage, "--timeout is %s, want more than 0", c.Timeout)
	}
	client, err := remote.New(c.Node, "")
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if err := c.secure(client); err != nil {
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
	_, err = s.out.Write(answer)
	return err
}
