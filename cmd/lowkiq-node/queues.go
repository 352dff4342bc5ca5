package main

import (
	"fmt"
	"io"

	"github.com/lowkiq/lowkiq/web"
)

type queuesCommand struct {
	List   queuesList   `cmd:"" default:"withargs" help:"List the queues with their figures."`
	Show   queuesShow   `cmd:"" help:"Show one queue."`
	Pause  queuesPause  `cmd:"" help:"Stop handling a queue; pushes are taken all the while."`
	Resume queuesResume `cmd:"" help:"Let a paused queue go on."`
}

func (*queuesCommand) Help() string {
	return "Examples:\n\n    lowkiq-node queues\n    lowkiq-node queues pause orders\n    lowkiq-node queues resume orders\n\n" + exitHelp
}

type queuesList struct {
	asking `embed:""`
}

// Help shows how.
func (*queuesList) Help() string { return example("queues") }

// Run prints all queues.
func (c *queuesList) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	var all struct{ Queues []web.QueueStatus }
	return with.show("/api/v1/queues", &all, func(w io.Writer) { queueTable(with, w, all.Queues) })
}

type oneQueue struct {
	asking `embed:""`
	Queue  string `arg:"" help:"Name of the queue."`
}

type queuesShow struct {
	oneQueue `embed:""`
}

// Help shows how.
func (*queuesShow) Help() string { return example("queues show orders") }

// Run prints one queue.
func (c *queuesShow) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	var one web.QueueStatus
	return with.show(queuePath(c.Queue, ""), &one, func(w io.Writer) { queueTable(with, w, []web.QueueStatus{one}) })
}

type queuesPause struct {
	oneQueue `embed:""`
}

// Help shows how.
func (*queuesPause) Help() string { return example("queues pause orders") }

// Run pauses the queue.
func (c *queuesPause) Run(s *streams) error { return c.set(s, "pause", "paused") }

type queuesResume struct {
	oneQueue `embed:""`
}

// Help shows how.
func (*queuesResume) Help() string { return example("queues resume orders") }

// Run lets the queue go on.
func (c *queuesResume) Run(s *streams) error { return c.set(s, "resume", "running") }

func (c *oneQueue) set(s *streams, action, state string) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	return with.change(queuePath(c.Queue, "/"+action), nil, func(map[string]any) string {
		return fmt.Sprintf("queue %s is %s", c.Queue, state)
	})
}
