package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

type queuesCommand struct {
	List   queuesList   `cmd:"" default:"withargs" help:"List the queues with their figures."`
	Show   queuesShow   `cmd:"" help:"Show one queue."`
	Pause  queuesSwitch `cmd:"" help:"Stop handling a queue; pushes are taken all the while."`
	Resume queuesSwitch `cmd:"" help:"Let a paused queue go on."`
	Delete queuesDelete `cmd:"" help:"Delete a retired queue, which no node handles."`
}

type queuesList struct {
	asking `embed:""`
}

// Run prints all queues.
func (c *queuesList) Run(with *conversation) error {
	var all web.Queues
	return with.show("/api/v1/queues", &all, func() { queueTable(with, all.Queues) })
}

func queueTable(with *conversation, queues []status.Queue) {
	with.table("QUEUE STATE LAG READY SCHEDULED RETRY HELD IN_FLIGHT BLOCKED MORGUE SHARDS PROCESSED FAILED", func(row func(string, ...any)) {
		for _, q := range queues {
			state := "running"
			switch {
			case q.Unhandled:
				state = "unhandled"
			case q.Paused:
				state = "paused"
			}
			row("%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d", q.Name, state, seconds(q.Lag), q.Jobs.Ready, q.Jobs.Scheduled, q.Jobs.Retry,
				q.Jobs.Held, q.Jobs.InFlight, q.Jobs.Blocked, q.Morgue, q.Shards, q.Processed, q.Failed)
		}
	})
}

type oneQueue struct {
	asking `embed:""`
	Queue  string `arg:"" help:"Name of the queue."`
}

type queuesShow struct {
	oneQueue `embed:""`
}

// Run prints one queue.
func (c *queuesShow) Run(with *conversation) error {
	var one status.Queue
	return with.show(queuePath(c.Queue, ""), &one, func() {
		queueTable(with, []status.Queue{one})
		with.say("payloads: stored %s, at most %s each; of one id %d, %s\n", codecText(one.Codec), sizeText(one.Limits.PayloadBytes), one.Limits.Payloads, sizeText(one.Limits.IDPayload))
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

type queuesSwitch struct {
	oneQueue `embed:""`
}

// Run pauses the queue or lets it go on, as the command is called.
func (c *queuesSwitch) Run(with *conversation, ctx *kong.Context) error {
	path := queuePath(c.Queue, "/"+ctx.Selected().Name)
	answer, err := with.Post(with.ctx, path, nil)
	if err != nil {
		return err
	}
	var now web.Paused
	if err := decode(path, answer, &now); err != nil {
		return err
	}
	switch {
	case with.asJSON:
		err = writeJSON(with.out, answer)
	case !now.Paused:
		err = with.say("queue %s is resumed; nodes take its jobs again within a second (a sixth of node.ttl, 6s by default)\n", c.Queue)
	case len(now.MayBegin) == 0:
		err = with.say("queue %s is paused; no node begins a job of it any more\n", c.Queue)
	}
	if err == nil && len(now.MayBegin) > 0 {
		return stillMayBegin(c.Queue, now.MayBegin)
	}
	return err
}

// stillMayBegin says that some instances have not noticed that a queue is paused.
func stillMayBegin(queueName string, instances []string) error {
	return fail(exitFailed, "queue %s is paused, but what has not noticed yet may still begin jobs of it, until it does or its lease ends: %s; pause it again to wait for that",
		queueName, strings.Join(instances, ", "))
}

type queuesDelete struct {
	oneQueue `embed:""`
	Force    bool `help:"With all jobs and the morgue. Without it the queue must be empty."`
	DryRun   bool `help:"Count what would go, and change nothing."`
	Yes      bool `short:"y" help:"Do not ask. Needed without a terminal."`
}

// contents says what a queue holds, or held.
func contents(d web.Deleted) string {
	text := fmt.Sprintf("%s and %s in the morgue", count(d.Jobs, "job"), count(d.Morgue, "payload"))
	if d.Aside > 0 {
		text += fmt.Sprintf(", and %s that could not be read", count(d.Aside, "record"))
	}
	return text
}

// Run deletes the queue.
func (c *queuesDelete) Run(with *conversation) error {
	ask := !c.Yes && !c.DryRun
	if ask && !terminal(with.in) {
		return errNoTerminal
	}
	path := queuePath(c.Queue, "/delete")
	body := web.Deletion{Force: c.Force, DryRun: c.DryRun || ask}
	answer, err := with.Post(with.ctx, path, body)
	if err != nil {
		return err
	}
	var had web.Deleted
	if err := decode(path, answer, &had); err != nil {
		return err
	}
	if ask {
		if !had.NeedsForce && !had.Before {
			if err := with.sure("Delete queue %s for ever, with %s?", plain(c.Queue), contents(had)); err != nil {
				return err
			}
		}
		body.DryRun = false
		if answer, err = with.Post(with.ctx, path, body); err != nil {
			return err
		}
		if err := decode(path, answer, &had); err != nil {
			return err
		}
	}
	switch {
	case with.asJSON:
		return writeJSON(with.out, answer)
	case had.Before:
		return with.say("queue %s was deleted before\n", c.Queue)
	case c.DryRun && had.NeedsForce:
		return with.say("queue %s would be refused without --force: it has %s\n", c.Queue, contents(had))
	case c.DryRun:
		return with.say("queue %s would be deleted, with %s\n", c.Queue, contents(had))
	}
	return with.say("queue %s is deleted, with %s\n", c.Queue, contents(had))
}
