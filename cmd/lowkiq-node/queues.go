package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/lowkiq/lowkiq/web"
)

type queuesCommand struct {
	List   queuesList   `cmd:"" default:"withargs" help:"List the queues with their figures."`
	Show   queuesShow   `cmd:"" help:"Show one queue."`
	Pause  queuesPause  `cmd:"" help:"Stop handling a queue; pushes are taken all the while."`
	Resume queuesResume `cmd:"" help:"Let a paused queue go on."`
	Delete queuesDelete `cmd:"" help:"Delete a retired queue, which no node handles."`
}

func (*queuesCommand) Help() string {
	return "Examples:\n\n    lowkiq-node queues\n    lowkiq-node queues pause orders\n    lowkiq-node queues resume orders\n    lowkiq-node queues delete old --dry-run\n\n" + exitHelp
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
	return with.show(queuePath(c.Queue, ""), &one, func(w io.Writer) {
		queueTable(with, w, []web.QueueStatus{one})
		say(w, "payloads: stored %s, at most %s each; of one id %d, %s\n", codecText(one.Codec), sizeText(one.Limits.PayloadBytes), one.Limits.Payloads, sizeText(one.Limits.IDPayload))
	})
}

func codecText(name string) string {
	if name == "" {
		return "as they are pushed"
	}
	return "in codec " + name
}

// sizeText writes bytes in the unit in which they are a whole number.
func sizeText(n int) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return count(n, "byte")
}

type queuesPause struct {
	oneQueue `embed:""`
}

// Help shows how.
func (*queuesPause) Help() string {
	return "Nodes see it with the next renewal of their leases, every sixth of node.ttl: by default within a second. What handlers have goes on.\n\n" +
		example("queues pause orders")
}

// Run pauses the queue.
func (c *queuesPause) Run(s *streams) error {
	return c.set(s, "pause", "paused; nodes stop taking its jobs")
}

type queuesResume struct {
	oneQueue `embed:""`
}

// Help shows how.
func (*queuesResume) Help() string {
	return "Nodes see it with the next renewal of their leases, every sixth of node.ttl: by default within a second.\n\n" + example("queues resume orders")
}

// Run lets the queue go on.
func (c *queuesResume) Run(s *streams) error {
	return c.set(s, "resume", "resumed; nodes take its jobs again")
}

func (c *oneQueue) set(s *streams, action, state string) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	return with.change(queuePath(c.Queue, "/"+action), nil, func(map[string]any) string {
		return fmt.Sprintf("queue %s is %s within a second (a sixth of node.ttl, 6s by default)", c.Queue, state)
	})
}

type queuesDelete struct {
	oneQueue `embed:""`
	Force    bool `help:"With all jobs and the morgue. Without it the queue must be empty."`
	DryRun   bool `help:"Count what would go, and change nothing."`
	Yes      bool `short:"y" help:"Do not ask. Needed without a terminal."`
}

// Help shows how.
func (*queuesDelete) Help() string {
	return `For a queue that is retired. First take it out of the configuration of all nodes: a queue that a living node handles
is refused, also with --force. Whoever still pushes to it later is refused, until it is registered anew, empty. To repeat a deletion
that was broken off does no harm.

` + example("queues delete old --force --dry-run")
}

// goneQueue is what a node says of a deletion.
type goneQueue struct {
	Before     bool `json:"before"`
	NeedsForce bool `json:"needs_force"`
	Jobs       int  `json:"jobs"`
	Morgue     int  `json:"morgue"`
	Unreadable int  `json:"unreadable"`
}

func (g goneQueue) String() string {
	text := fmt.Sprintf("%s and %s in the morgue", count(g.Jobs, "job"), count(g.Morgue, "payload"))
	if g.Unreadable > 0 {
		text += fmt.Sprintf(", and %s that could not be read", count(g.Unreadable, "record"))
	}
	return text
}

// Run deletes the queue.
func (c *queuesDelete) Run(s *streams) error {
	if !c.Yes && !c.DryRun && !terminal(s.in) {
		return fail(exitUsage, "this cannot be undone, and there is no terminal to ask: want --yes, or --dry-run to count")
	}
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	body := map[string]any{"force": c.Force}
	if c.DryRun || !c.Yes {
		body["dry_run"] = true
	}
	answer, err := with.Post(with.ctx, queuePath(c.Queue, "/delete"), body)
	if err == nil && !c.DryRun && !c.Yes {
		var has goneQueue
		if err := json.Unmarshal(answer, &has); err != nil {
			return fail(exitFailed, "not what a lowkiq node answers: %w", err)
		}
		if !has.NeedsForce && !has.Before && !confirm(s, fmt.Sprintf("Delete queue %s for ever, with %s?", plain(c.Queue), has)) {
			return fail(exitFailed, "nothing was changed")
		}
		delete(body, "dry_run")
		answer, err = with.Post(with.ctx, queuePath(c.Queue, "/delete"), body)
	}
	if err != nil {
		return err
	}
	if with.asJSON {
		return writeJSON(s.out, answer)
	}
	var had goneQueue
	if err := json.Unmarshal(answer, &had); err != nil {
		return fail(exitFailed, "not what a lowkiq node answers: %w", err)
	}
	switch {
	case had.Before:
		return say(s.out, "queue %s was deleted before\n", c.Queue)
	case c.DryRun && had.NeedsForce:
		return say(s.out, "queue %s would be refused without --force: it has %s\n", c.Queue, had)
	case c.DryRun:
		return say(s.out, "queue %s would be deleted, with %s\n", c.Queue, had)
	}
	return say(s.out, "queue %s is deleted, with %s\n", c.Queue, had)
}
