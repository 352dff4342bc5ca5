package main

import (
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

type queuesCommand struct {
	List    queuesList    `cmd:"" default:"withargs" help:"List the queues with their figures."`
	Show    queuesShow    `cmd:"" help:"Show one queue."`
	Pause   queuesSwitch  `cmd:""`
	Resume  queuesSwitch  `cmd:""`
	Delete  queuesDelete  `cmd:""`
	Reshard queuesReshard `cmd:""`
}

type queuesList struct {
	nodeFlags `embed:""`
}

// Run prints all queues.
func (c *queuesList) Run(with *session) error {
	var all web.Queues
	return with.getAndPrint("/api/v1/queues", &all, func() { queueTable(with, all.Queues) })
}

// queueTable prints the queues, and then the reason for the lag of each queue, if status.Slowest
// has found a cause.
func queueTable(with *session, queues []status.Queue) {
	with.PrintTable("QUEUE STATE LAG READY SCHEDULED RETRY HELD IN_FLIGHT BLOCKED MORGUE SHARDS PROCESSED FAILED", func(row func(string, ...any)) {
		for _, q := range queues {
			state := "running"
			switch {
			case q.Unhandled:
				state = "unhandled"
			case q.Reshard.UnderWay():
				state = q.Reshard.State()
			case q.Paused:
				state = "paused"
			}
			row("%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d", q.Name, state, formatSeconds(q.Lag), q.Jobs.Ready, q.Jobs.Scheduled, q.Jobs.Retry,
				q.Jobs.Held, q.Jobs.InFlight, q.Jobs.Blocked, q.Morgue, q.Shards, q.Processed, q.Failed)
		}
	})
	for _, q := range queues {
		if cause, there := status.Slowest(q.Causes); there {
			with.Printf("%s: %s\n", q.Name, cause.Reason)
		}
	}
}

type oneQueue struct {
	nodeFlags `embed:""`
	Queue     string `arg:"" help:"Name of the queue."`
}

type queuesShow struct {
	oneQueue `embed:""`
}

// Run prints a queue.
func (c *queuesShow) Run(with *session) error {
	var one status.Queue
	return with.getAndPrint(queuePath(c.Queue, ""), &one, func() {
		queueTable(with, []status.Queue{one})
		with.Printf("payloads: stored %s, at most %s each; of one id %d, %s\n", codecText(one.Codec), sizeText(one.Limits.PayloadBytes),
			one.Limits.Payloads, sizeText(one.Limits.IDPayload))
	})
}

func codecText(name string) string {
	if name == "" {
		return "as they are pushed"
	}
	return "in codec " + name
}

// sizeText returns a size of n bytes in the largest unit that makes it a whole number.
func sizeText(n int) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return terminal.CountNoun(n, "byte")
}

type queuesSwitch struct {
	oneQueue `embed:""`
}

// Run pauses or resumes the queue, as the command says.
func (c *queuesSwitch) Run(with *session, ctx *kong.Context) error {
	path := queuePath(c.Queue, "/"+ctx.Selected().Name)
	answer, err := with.Post(with.ctx, path, nil)
	if err != nil {
		return err
	}
	var now web.Paused
	if err := decodeAnswer(path, answer, &now); err != nil {
		return err
	}
	switch {
	case with.asJSON:
		err = terminal.WriteJSON(with.Out, answer)
	case !now.Paused:
		err = with.Printf("queue %s is resumed; nodes take its jobs again within a second (a sixth of node.ttl, 6s by default)\n", c.Queue)
	case len(now.MayBegin) == 0:
		err = with.Printf("queue %s is paused; no node begins a job of it any more\n", c.Queue)
	}
	if err == nil && len(now.MayBegin) > 0 {
		return status.StillMayBegin(c.Queue, now.MayBegin)
	}
	return err
}

type queuesDelete struct {
	oneQueue `embed:""`
	Force    bool `help:"Delete all jobs and the morgue as well. Without it the queue must be empty."`
	DryRun   bool `help:"Count what would be deleted, and change nothing."`
	Yes      bool `short:"y" help:"Do not ask. Needed without a terminal."`
}

// contentsText says what a queue holds, or held.
func contentsText(d web.Deleted) string {
	text := fmt.Sprintf("%s and %s in the morgue", terminal.CountNoun(d.Jobs, "job"), terminal.CountNoun(d.Morgue, "payload"))
	if d.Aside > 0 {
		text += fmt.Sprintf(", and %s that could not be read", terminal.CountNoun(d.Aside, "record"))
	}
	if d.Outgoing > 0 {
		text += fmt.Sprintf(", and %s that were not delivered", terminal.CountNoun(d.Outgoing, "follow-up"))
	}
	return text
}

// printNeeds warns of what pushes to a queue that is to be deleted.
func printNeeds(with *session, d web.Deleted) {
	for _, text := range d.NeededBy {
		terminal.Fprintf(with.Err, "lowkiq-node: warning: queue %s is needed: %s\n", d.Queue, text)
	}
}

// Run deletes the queue.
func (c *queuesDelete) Run(with *session) error {
	ask := !c.Yes && !c.DryRun
	if ask && !terminal.IsTerminal(with.In) {
		return errNoTerminal
	}
	path := queuePath(c.Queue, "/delete")
	body := web.Deletion{Force: c.Force, DryRun: c.DryRun || ask}
	answer, err := with.Post(with.ctx, path, body)
	if err != nil {
		return err
	}
	var had web.Deleted
	if err := decodeAnswer(path, answer, &had); err != nil {
		return err
	}
	if ask {
		if !had.NeedsForce && !had.Before {
			printNeeds(with, had)
			if err := with.confirm("Delete queue %s for ever, with %s?", terminal.EscapeText(c.Queue), contentsText(had)); err != nil {
				return err
			}
		}
		body.DryRun = false
		if answer, err = with.Post(with.ctx, path, body); err != nil {
			return err
		}
		if err := decodeAnswer(path, answer, &had); err != nil {
			return err
		}
	}
	switch {
	case with.asJSON:
		return terminal.WriteJSON(with.Out, answer)
	case had.Before:
		return with.Printf("queue %s was deleted before\n", c.Queue)
	case c.DryRun && had.NeedsForce:
		printNeeds(with, had)
		return with.Printf("queue %s would not be deleted without --force: it has %s\n", c.Queue, contentsText(had))
	case c.DryRun:
		printNeeds(with, had)
		return with.Printf("queue %s would be deleted, with %s\n", c.Queue, contentsText(had))
	}
	return with.Printf("queue %s is deleted, with %s\n", c.Queue, contentsText(had))
}
