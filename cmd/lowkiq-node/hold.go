package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
)

type holdCommand struct {
	asking `embed:""`
	Queue  string         `placeholder:"NAME" help:"Only in this queue. Default: in all."`
	Prefix *string        `placeholder:"PREFIX" help:"All ids that begin so, instead of one."`
	For    *time.Duration `placeholder:"DURATION" help:"End the hold after so long. Default: when it is undone."`
	Undo   bool           `help:"Hold it no longer: all that piled up runs, unless another hold has it. With --prefix also for a group that a handler holds back."`
	Why    string         `placeholder:"TEXT" help:"What others are told of it."`
	ID     *string        `arg:"" optional:"" name:"key" help:"The job's id. Without it and --prefix: show what is held."`
}

// Run holds an id or a prefix, undoes that, or prints what is held.
func (c *holdCommand) Run(with *conversation) error {
	want := web.HoldChange{Undo: c.Undo, Why: c.Why}
	if c.ID != nil {
		want.ID = *c.ID
	}
	if c.Prefix != nil {
		want.Prefix = *c.Prefix
	}
	asked := c.ID == nil && c.Prefix == nil // what is held, as nothing is to be
	switch {
	case c.ID != nil && c.Prefix != nil:
		return fail(exitUsage, "want an id or --prefix, not both")
	case c.Prefix != nil && want.Prefix == "":
		return fail(exitUsage, "--prefix \"\": want what ids begin with, as in --prefix acme:; to hold all of a queue, pause it")
	case asked && (c.For != nil || c.Undo || c.Why != ""):
		return fail(exitUsage, "--for, --undo and --why are about what is to be held: say an id, or --prefix PREFIX")
	case c.For != nil && *c.For <= 0:
		return fail(exitUsage, "--for %s: want more than 0", c.For)
	case c.For != nil && c.Undo:
		return fail(exitUsage, "--for is about what is held, not about what is undone")
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
	if asked {
		return c.list(with, queues)
	}
	if c.Undo {
		return c.undo(with, queues, want)
	}
	what := (&rules.Hold{ID: want.ID, Prefix: want.Prefix}).String()
	for _, queue := range queues {
		if err := with.change(queuePath(queue, "/holds"), want, "%s: %s is held: nothing of it runs, what is pushed piles up\n", queue, what); err != nil {
			return err
		}
	}
	return nil
}

// undo ends the holds of an id or a prefix, in one queue or all, and fails if there was none: what was meant may be held still.
func (c *holdCommand) undo(with *conversation, queues []string, want web.HoldChange) error {
	what := (&rules.Hold{ID: want.ID, Prefix: want.Prefix}).String()
	undone, still := 0, []string(nil)
	for _, queue := range queues {
		path := queuePath(queue, "/holds")
		answer, err := with.Post(with.ctx, path, want)
		if err != nil {
			return err
		}
		var now web.HoldChanged
		if err := decode(path, answer, &now); err != nil {
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
			err = writeJSON(with.out, answer)
		case now.Undone && now.Held:
			err = with.say("%s: the hold of %s is undone; %s\n", queue, what, beside)
		case now.Undone:
			err = with.say("%s: %s is held no longer: what waits of it runs\n", queue, what)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case undone > 0:
		return nil
	case len(still) > 0:
		return fail(exitFailed, "%s", strings.Join(still, "; "))
	case len(queues) == 1:
		return fail(exitFailed, "%s: %s was not held", queues[0], what)
	}
	return fail(exitFailed, "%s was not held in any queue (%s)", what, strings.Join(queues, ", "))
}

// list prints what is held.
func (c *holdCommand) list(with *conversation, queues []string) error {
	var answer struct {
		Queues []web.Holds `json:"queues"`
	}
	for _, queue := range queues {
		var of web.Holds
		if err := with.fetch(queuePath(queue, "/holds"), &of); err != nil {
			return err
		}
		answer.Queues = append(answer.Queues, of)
	}
	return with.print(&answer, func() {
		with.table("QUEUE KIND HELD BY SINCE UNTIL WHY", func(row func(string, ...any)) {
			for _, of := range answer.Queues {
				for _, h := range of.Holds {
					kind, what := "id", h.ID
					if h.Prefix != "" {
						kind, what = "prefix", h.Prefix
					}
					row("%s\t%s\t%s\t%s\t%s\t%s\t%s", of.Queue, kind, short(what, 60), changes.Who(h.By).String(), moment(h.At), moment(h.Until), short(h.Why, 60))
				}
			}
		})
		for _, of := range answer.Queues {
			if of.Held > 0 {
				with.say("%s: %s to be released\n", of.Queue, idsWait(of.Held))
			}
		}
	})
}

// idsWait counts ids that wait.
func idsWait(n int) string {
	if n == 1 {
		return "1 id waits"
	}
	return fmt.Sprintf("%d ids wait", n)
}
