package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
)

type holdCommand struct {
	nodeFlags `embed:""`
	Queue     string         `placeholder:"NAME" help:"Only in this queue. Default: in all."`
	Prefix    *string        `placeholder:"PREFIX" help:"All ids with this prefix, in place of a single id."`
	For       *time.Duration `placeholder:"DURATION" help:"End the hold after this time. Default: when it is undone."`
	Undo      bool           `help:"End the hold. All payloads that collected run, unless another hold has the id. With --prefix this also ends what a handler holds back."`
	Why       string         `placeholder:"TEXT" help:"What others are told of it."`
	ID        *string        `arg:"" optional:"" name:"key" help:"The job's id. Without it and --prefix, show the holds."`
}

// Run holds an id or a prefix, undoes a hold, or prints the holds.
func (c *holdCommand) Run(with *session) error {
	want := actions.HoldChange{Undo: c.Undo, Why: c.Why}
	if c.ID != nil {
		want.ID = *c.ID
	}
	if c.Prefix != nil {
		want.Prefix = *c.Prefix
	}
	list := c.ID == nil && c.Prefix == nil
	switch {
	case c.ID != nil && c.Prefix != nil:
		return exit.Fail(exit.Usage, "give either an id or --prefix, not both")
	case c.Prefix != nil && want.Prefix == "":
		return exit.Fail(exit.Usage, "--prefix \"\": give the beginning of ids, as in --prefix acme:; to hold all of a queue, pause it")
	case list && (c.For != nil || c.Undo || c.Why != ""):
		return exit.Fail(exit.Usage, "--for, --undo and --why belong to a hold: give an id, or --prefix PREFIX")
	case c.For != nil && *c.For <= 0:
		return exit.Fail(exit.Usage, "--for is %s; it must be more than 0", c.For)
	case c.For != nil && c.Undo:
		return exit.Fail(exit.Usage, "--for and --undo exclude each other")
	case c.For != nil:
		want.For = c.For.String()
	}
	if c.ID != nil {
		if err := checkID(want.ID); err != nil {
			return err
		}
	}
	queues, err := queuesNamed(with, c.Queue)
	if err != nil {
		return err
	}
	if list {
		return c.printHolds(with, queues)
	}
	if c.Undo {
		return c.undoHolds(with, queues, want)
	}
	if c.Queue == "" && want.ID != "" && slices.Contains(queues, want.ID) {
		return exit.Fail(exit.Usage, "%s is a queue, and hold takes an id; lowkiq-node queues pause %s pauses the queue, and --queue is the queue of an id with this name",
			want.ID, want.ID)
	}
	what := (&rules.Hold{ID: want.ID, Prefix: want.Prefix}).String()
	for _, queue := range queues {
		if err := with.postChange(queuePath(queue, "/holds"), want, "%s: %s is held: nothing of it runs, what is pushed piles up\n", queue,
			what); err != nil {
			return err
		}
	}
	return nil
}

// undoHolds ends the holds of an id or a prefix, in the named queue or in all. It fails if there was none, because the id
// that was meant may still be held.
func (c *holdCommand) undoHolds(with *session, queues []string, want actions.HoldChange) error {
	what := (&rules.Hold{ID: want.ID, Prefix: want.Prefix}).String()
	undone, still := 0, []string(nil)
	for _, queue := range queues {
		path := queuePath(queue, "/holds")
		answer, err := with.Post(with.ctx, path, want)
		if err != nil {
			return err
		}
		var now actions.HoldChanged
		if err := decodeAnswer(path, answer, &now); err != nil {
			return err
		}
		beside := fmt.Sprintf("it is still held, by the prefix %q", now.Beside)
		switch {
		case now.Undone:
			undone++
		case now.Held:
			still = append(still, fmt.Sprintf("%s: %s was not held by itself; %s", queue, what, beside))
		}
		switch {
		case with.asJSON:
			err = terminal.WriteJSON(with.Out, answer)
		case now.Undone && now.Held:
			err = with.Printf("%s: the hold of %s is undone; %s\n", queue, what, beside)
		case now.Undone:
			err = with.Printf("%s: %s is held no longer: what waits of it runs\n", queue, what)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case undone > 0:
		return nil
	case len(still) > 0:
		return exit.Fail(exit.Failed, "%s", strings.Join(still, "; "))
	case len(queues) == 1:
		return exit.Fail(exit.Failed, "%s: %s was not held", queues[0], what)
	}
	return exit.Fail(exit.Failed, "%s was not held in any queue (%s)", what, strings.Join(queues, ", "))
}

// printHolds prints the holds.
func (c *holdCommand) printHolds(with *session, queues []string) error {
	var answer struct {
		Queues []web.Holds `json:"queues"`
	}
	for _, queue := range queues {
		var of web.Holds
		if err := with.fetchJSON(queuePath(queue, "/holds"), &of); err != nil {
			return err
		}
		answer.Queues = append(answer.Queues, of)
	}
	return with.printValue(&answer, func() {
		with.PrintTable("QUEUE KIND HELD BY SINCE UNTIL WHY", func(row func(string, ...any)) {
			for _, of := range answer.Queues {
				for _, h := range of.Holds {
					kind, what := "id", h.ID
					if h.Prefix != "" {
						kind, what = "prefix", h.Prefix
					}
					row("%s\t%s\t%s\t%s\t%s\t%s\t%s", of.Queue, kind, shortLine(what, 60), changes.Who(h.By).String(), formatTime(h.At),
						formatTime(h.Until), shortLine(h.Why, 60))
				}
			}
		})
		for _, of := range answer.Queues {
			if of.Held > 0 {
				with.Printf("%s: %s to be released\n", of.Queue, idsWait(of.Held))
			}
		}
	})
}

// idsWait says how many ids wait.
func idsWait(n int) string {
	if n == 1 {
		return "1 id waits"
	}
	return fmt.Sprintf("%d ids wait", n)
}
