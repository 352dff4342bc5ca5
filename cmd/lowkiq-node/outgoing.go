package main

import (
	"cmp"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/web"
)

type outgoingCommand struct {
	oneQueue `embed:""`
	Drop     *int `placeholder:"N" help:"Drop the N oldest of them. They are never delivered."`
	Yes      bool `short:"y" help:"Do not ask. Needed without a terminal to drop."`
}

// Run prints the follow-ups that wait, or drops some of them.
func (c *outgoingCommand) Run(with *session) error {
	if c.Drop == nil {
		return c.list(with)
	}
	if *c.Drop < 1 {
		return exit.Fail(exit.Usage, "--drop must be a whole number of at least 1, got %d", *c.Drop)
	}
	if !c.Yes {
		if !terminal.IsTerminal(with.In) {
			return exit.Fail(exit.Usage, "this cannot be undone, and there is no terminal to ask; give --yes; without --drop the command shows what waits")
		}
		var all web.Outgoing
		if err := with.fetchJSON(queuePath(c.Queue, "/outgoing"), &all); err != nil {
			return err
		}
		if all.Waiting == 0 {
			return c.list(with)
		}
		*c.Drop = min(*c.Drop, all.Waiting)
		if err := with.confirm("Drop for ever %s of queue %s?", terminal.CountNoun(*c.Drop, "follow-up"), terminal.EscapeText(c.Queue)); err != nil {
			return err
		}
	}
	path := queuePath(c.Queue, "/outgoing/drop")
	answer, err := with.Post(with.ctx, path, web.OutgoingDrop{Drop: *c.Drop})
	if err != nil {
		return err
	}
	var done web.OutgoingDropped
	if err := decodeAnswer(path, answer, &done); err != nil {
		return err
	}
	if with.asJSON {
		return terminal.WriteJSON(with.Out, answer)
	}
	return with.Printf("dropped %s of %s, and %d wait\n", terminal.CountNoun(done.Dropped, "follow-up"), c.Queue, done.Waiting)
}

func (c *outgoingCommand) list(with *session) error {
	var all web.Outgoing
	return with.getAndPrint(queuePath(c.Queue, "/outgoing"), &all, func() {
		if all.Waiting == 0 {
			with.Printf("no follow-up of %s waits\n", c.Queue)
			return
		}
		with.PrintTable("SHARD SINCE TO ID BYTES ENDED", func(row func(string, ...any)) {
			for _, one := range all.First {
				row("%d\t%s\t%s\t%s\t%d\t%s", one.Shard, formatTime(one.Since), one.To, one.JobID.ID(), one.Bytes, cmp.Or(one.Ended, "-"))
			}
		})
		if rest := all.Waiting - len(all.First); rest > 0 {
			with.Printf("%d more wait behind them\n", rest)
		}
		if all.Reason != "" {
			with.Printf("%s\n", all.Reason)
		}
	})
}
