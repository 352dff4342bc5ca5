package main

import (
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
)

type holdCommand struct {
	asking `embed:""`
	Queue  string         `placeholder:"NAME" help:"Only in this queue. Default: in all."`
	Prefix string         `placeholder:"PREFIX" help:"All ids that begin so, instead of one."`
	For    *time.Duration `placeholder:"DURATION" help:"End the hold after so long. Default: when it is undone."`
	Undo   bool           `help:"Hold it no longer: all that piled up runs."`
	Why    string         `placeholder:"TEXT" help:"What others are told of it."`
	ID     string         `arg:"" optional:"" name:"key" help:"The job's id. Without it and --prefix: show what is held."`
}

// Run holds an id or a prefix, undoes that, or prints what is held.
func (c *holdCommand) Run(with *conversation) error {
	want := web.HoldChange{ID: c.ID, Prefix: c.Prefix, Undo: c.Undo, Why: c.Why}
	switch {
	case c.ID != "" && c.Prefix != "":
		return fail(exitUsage, "want an id or --prefix, not both")
	case c.ID == "" && c.Prefix == "" && (c.For != nil || c.Undo || c.Why != ""):
		return fail(exitUsage, "--for, --undo and --why are about what is to be held: say an id, or --prefix PREFIX")
	case c.For != nil && *c.For <= 0:
		return fail(exitUsage, "--for %s: want more than 0", c.For)
	case c.For != nil && c.Undo:
		return fail(exitUsage, "--for is about what is held, not about what is undone")
	case c.For != nil:
		want.For = c.For.String()
	}
	queues, err := queuesNamed(with, c.Queue)
	if err != nil {
		return err
	}
	if c.ID == "" && c.Prefix == "" {
		return c.list(with, queues)
	}
	what := (&rules.Hold{ID: c.ID, Prefix: c.Prefix}).String()
	for _, queue := range queues {
		format := "%s: %q is held: nothing of it runs, what is pushed piles up\n"
		if c.Undo {
			format = "%s: %q is held no longer: what waits of it runs\n"
		}
		if err := with.change(queuePath(queue, "/holds"), want, format, queue, what); err != nil {
			return err
		}
	}
	return nil
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
		with.table("QUEUE HELD BY SINCE UNTIL WHY", func(row func(string, ...any)) {
			for _, of := range answer.Queues {
				for _, h := range of.Holds {
					what := &rules.Hold{ID: h.ID, Prefix: h.Prefix}
					row("%s\t%s\t%s\t%s\t%s\t%s", of.Queue, short(what.String(), 60), changes.Who(h.By).String(), moment(h.At), moment(h.Until), short(h.Why, 60))
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
