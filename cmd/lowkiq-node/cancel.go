package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

type cancelCommand struct {
	nodeFlags `embed:""`
	Queue     string `placeholder:"NAME" help:"Only in this queue. Default: in all."`
	Then      string `enum:"retry,hold,bury,delete" default:"retry" help:"What happens to the job then: retry (due now, without spending a retry), hold (until the hold is undone), bury or delete."`
	Why       string `placeholder:"TEXT" help:"What others are told of it."`
	yesFlag   `embed:""`
	ID        string `arg:"" name:"key" help:"The job's id."`
}

// Run ends the runs of an id, in the named queue or in all.
func (c *cancelCommand) Run(with *session) error {
	queues, err := queuesNamed(with, c.Queue)
	if err != nil {
		return err
	}
	if ask := map[string]string{"bury": "send the job to the morgue", "delete": "delete the job for ever"}[c.Then]; ask != "" && c.asks(with) {
		if err := with.confirm("Stop the run of %s and %s?", terminal.EscapeText(c.ID), ask); err != nil {
			return err
		}
	}
	done := map[string]string{"retry": "it is due again", "hold": "it is held", "bury": "it goes to the morgue", "delete": "it is deleted"}[c.Then]
	ended, refusals := 0, []string(nil)
	for _, name := range queues {
		path, err := jobPath(name, c.ID, "/cancel")
		if err != nil {
			return err
		}
		err = with.postChange(path, web.Cancel{Then: protocol.Then(c.Then), Why: c.Why}, "%s: the handler of %q is told to stop; then %s\n", name, c.ID, done)
		var refused *web.Problem
		switch {
		case err == nil:
			ended++
		case !errors.As(err, &refused) || refused.Status != http.StatusConflict:
			return err
		case len(queues) == 1 || refused.Detail != fmt.Sprintf("%q: %v", c.ID, status.ErrNotRunning):
			refusals = append(refusals, name+": "+refused.Detail)
		}
	}
	switch {
	case len(refusals) > 0: // in queues where the id may run
		return exit.Fail(exit.Failed, "%s", strings.Join(refusals, "; "))
	case ended > 0:
		return nil
	}
	return exit.Fail(exit.Failed, "%q: %w in any queue (%s)", c.ID, status.ErrNotRunning, strings.Join(queues, ", "))
}
