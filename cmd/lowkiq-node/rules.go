package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/network/remote"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/internal/text/valuetext"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
)

type rulesCommand struct {
	nodeFlags `embed:""`
	Queue     string         `arg:"" name:"queue" help:"The queue."`
	Set       []string       `sep:"none" placeholder:"KEY=VALUE" help:"Set a rule on all nodes, with a value as in the configuration file. May be repeated."`
	Unset     []string       `placeholder:"KEY" help:"Return to the value of the configuration; with commas, or given several times."`
	For       *time.Duration `placeholder:"DURATION" help:"End the changes of --set after this time. Default: when they are unset."`
	Why       string         `placeholder:"TEXT" help:"What others are told of it."`
}

// Run prints the rules of a queue, after it has changed them if it must.
func (c *rulesCommand) Run(with *session) error {
	var now web.Rules
	path := queuePath(c.Queue, "/rules")
	rows := func() { rulesTable(with, &now) }
	if len(c.Set)+len(c.Unset) == 0 {
		if c.For != nil || c.Why != "" {
			return exit.Fail(exit.Usage, "--for and --why belong to a change: give --set KEY=VALUE or --unset KEY as well")
		}
		return with.getAndPrint(path, &now, rows)
	}
	change, err := c.parseChange()
	if err != nil {
		return err
	}
	var was web.Rules
	if err := with.fetchJSON(path, &was); err != nil {
		return err
	}
	if err := completeParts(change.Set, &was); err != nil {
		return err
	}
	answer, err := with.Patch(with.ctx, path, fmt.Sprintf(`"%d"`, was.Revision), change)
	if err != nil {
		var refused *web.Problem
		if errors.As(err, &refused) && refused.Status == http.StatusPreconditionFailed {
			return exit.Fail(exit.Failed, "%s; this command changed nothing; look at the rules again, then repeat it", refused.Detail)
		}
		return err
	}
	if err := decodeAnswer(path, answer, &now); err != nil {
		return err
	}
	c.warnOfUnknown(with, change.Set["then"])
	return with.printValue(&now, rows)
}

// warnOfUnknown warns of queues in a value of the rule then that are not registered. They may be registered later.
func (c *rulesCommand) warnOfUnknown(with *session, value json.RawMessage) {
	var then rules.Then
	if json.Unmarshal(value, &then) != nil || then == (rules.Then{}) {
		return
	}
	known, err := queuesNamed(with, "")
	if err != nil {
		return // the change was made, and the warning is an extra
	}
	for _, text := range rules.UnknownQueues(map[string]rules.Then{c.Queue: then}, known) {
		terminal.Fprintf(with.Err, "lowkiq-node: warning: %s\n", text)
	}
}

// parseChange returns the change that the flags ask for.
func (c *rulesCommand) parseChange() (actions.RulesChange, error) {
	change := actions.RulesChange{Unset: c.Unset, Why: c.Why}
	if c.For != nil {
		if *c.For <= 0 {
			return change, exit.Fail(exit.Usage, "--for is %s; it must be more than 0", c.For)
		}
		if len(c.Set) == 0 {
			return change, exit.Fail(exit.Usage, "--for belongs to --set; an unset rule stays so until it is set again")
		}
		change.For = c.For.String()
	}
	for _, text := range c.Set {
		key, value, two := strings.Cut(text, "=")
		if !two || key == "" {
			return change, exit.Fail(exit.Usage, "--set is %q; it must be KEY=VALUE, as in --set batch_size=10", text)
		}
		data, err := valuetext.Parse(value)
		if err != nil {
			return change, exit.Fail(exit.Usage, "--set %s: %w", key, err)
		}
		if _, _, part := strings.Cut(key, "."); !part {
			if _, err := rules.Compact(key, data); err != nil {
				return change, exit.Fail(exit.Usage, "--set: %w", err)
			}
		}
		if change.Set == nil {
			change.Set = map[string]json.RawMessage{}
		}
		if _, twice := change.Set[key]; twice {
			return change, exit.Fail(exit.Usage, "--set %s: it is given twice", key)
		}
		change.Set[key] = data
	}
	return change, nil
}

// completeParts turns parts of mappings, such as limit.rate, into whole values. The other parts stay as they were.
func completeParts(set map[string]json.RawMessage, was *web.Rules) error {
	changed := map[string]map[string]json.RawMessage{}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		key, part, two := strings.Cut(name, ".")
		if !two {
			continue
		}
		if _, too := set[key]; too {
			return exit.Fail(exit.Usage, "--set %s: %s is also set as a whole", name, key)
		}
		i := slices.IndexFunc(was.Rules, func(r web.Rule) bool { return r.Key == key })
		if i < 0 {
			_, err := rules.Compact(key, set[name])
			return exit.Fail(exit.Usage, "--set: %w", err)
		}
		if was.Rules[i].From == "" {
			return exit.Fail(exit.Usage, "--set %s: this node does not know the rest of %s; set it as a whole", name, key)
		}
		if changed[key] == nil {
			parts := map[string]json.RawMessage{}
			if json.Unmarshal(was.Rules[i].Value, &parts) != nil || parts == nil {
				parts = map[string]json.RawMessage{} // a text, such as none, has no parts
			}
			for _, assumed := range was.Rules[i].Assumed {
				delete(parts, assumed) // an assumed part follows from the others, which change
			}
			changed[key] = parts
		}
		changed[key][part] = set[name]
		delete(set, name)
	}
	for key, parts := range changed {
		data, err := json.Marshal(parts)
		if err == nil {
			_, err = rules.Compact(key, data)
		}
		if err != nil {
			return exit.Fail(exit.Usage, "--set: %w", err)
		}
		set[key] = data
	}
	return nil
}

// rulesTable prints the rules and their sources. A node that does not handle the queue does not know what the
// configurations of other nodes say.
func rulesTable(with *session, now *web.Rules) {
	with.PrintTable("KEY VALUE FROM BY UNTIL OTHERWISE WHY", func(row func(string, ...any)) {
		for _, r := range now.Rules {
			by, until, otherwise := "-", "-", "-"
			if r.By != nil {
				by = changes.Who(*r.By).String()
			}
			if r.Until != 0 {
				until = formatTime(r.Until)
			}
			if r.Otherwise != nil {
				otherwise = shortLine(valuetext.Text(r.Otherwise), 40)
			}
			from := cmp.Or(r.From, "-")
			if r.Fixed != "" {
				from += " (fixed)"
			}
			row("%s\t%s\t%s\t%s\t%s\t%s\t%s", r.Key, shortLine(valuetext.Text(r.Value), 60), from, by, until, otherwise, shortLine(r.Why, 60))
		}
	})
	if !now.Handled {
		with.Printf("\nthe node that was asked does not handle the queue: what its nodes' configurations say is not known there\n")
	}
}

type trackCommand struct {
	nodeFlags `embed:""`
	Queue     string `placeholder:"NAME" help:"Only in this queue. Default: in all."`
	Undo      bool   `help:"Stop tracking the id."`
	Why       string `placeholder:"TEXT" help:"What others are told of it."`
	ID        string `arg:"" name:"key" help:"The job's id."`
}

// Run lets the journals keep every run of an id.
func (c *trackCommand) Run(with *session) error {
	queues, err := queuesNamed(with, c.Queue)
	if err != nil {
		return err
	}
	for _, queue := range queues {
		path, err := jobPath(queue, c.ID, "/track")
		if err != nil {
			return err
		}
		format := "%s: every run of %q is in the journal from now on\n"
		if c.Undo {
			format = "%s: of %q the journal has what its rule says\n"
		}
		if err := with.postChange(path, web.Track{Undo: c.Undo, Why: c.Why}, format, queue, c.ID); err != nil {
			return err
		}
	}
	return nil
}

// printChanges prints the changes that people made, the oldest first. With --follow it continues with new changes.
func (c *journalCommand) printChanges(with *session) error {
	for flag, given := range map[string]bool{"--verdict": len(c.Verdict) > 0, "--on": c.On != "", "--contains": c.Contains != ""} {
		if given {
			return exit.Fail(exit.Usage, "%s is about runs, and does not go with --cluster", flag)
		}
	}
	values := url.Values{}
	for name, value := range map[string]string{"queue": c.Queue, "since": c.Since} {
		if value != "" {
			values.Set(name, value)
		}
	}
	values.Set("limit", fmt.Sprint(c.Limit))
	lost := false
	for cursor := ""; ; {
		var answer web.Changes
		err := with.fetchJSON("/api/v1/changes?"+values.Encode(), &answer)
		switch {
		case with.ctx.Err() != nil && c.Follow:
			return nil
		case err != nil && (cursor == "" || !errors.Is(err, remote.ErrUnreachable)):
			return err
		case err != nil && !lost:
			fmt.Fprintf(with.Err, "%s; trying again\n", terminal.EscapeText(err.Error()))
		}
		if lost = err != nil; !lost {
			lines := answer.Changes
			if cursor == "" { // the newest first
				for i := len(lines) - 1; i >= 0; i-- {
					if err := changeLine(with, &lines[i]); err != nil {
						return err
					}
				}
				cursor = "0"
				if len(lines) > 0 {
					cursor = lines[0].Cursor
				}
			} else {
				for i := range lines {
					if err := changeLine(with, &lines[i]); err != nil {
						return err
					}
				}
				cursor = cmp.Or(answer.Cursor, cursor)
			}
			values.Set("after", cursor)
		}
		if !c.Follow || sleep.For(with.ctx, followEvery) != nil {
			return nil
		}
	}
}

// changeLine prints a change in a line.
func changeLine(with *session, l *web.Change) error {
	if with.asJSON {
		line, err := json.Marshal(l)
		if err != nil {
			return err
		}
		return terminal.WriteJSON(with.Out, append(line, '\n'))
	}
	text := fmt.Sprintf("%s  %-12s", formatTime(l.At), l.Action)
	for _, part := range []string{l.Queue, l.Target} {
		if part != "" {
			text += "  " + shortLine(part, 60)
		}
	}
	if len(l.IDs) > 0 {
		text += "  ids " + shortLine(strings.Join(l.IDs, ", "), 80)
	}
	switch {
	case l.Count == 1:
		text += "  1 job"
	case l.Count > 1:
		text += fmt.Sprintf("  %d jobs", l.Count)
	}
	if len(l.Old) > 0 {
		text += "  " + shortLine(string(l.Old), 120) + " -> " + shortLine(string(l.New), 120)
	} else if len(l.New) > 0 {
		text += "  " + shortLine(string(l.New), 120)
	}
	text += "  by " + changes.Who(l.By).String()
	if l.By.Address != "" {
		text += " from " + terminal.EscapeText(l.By.Address)
	}
	if l.Why != "" {
		text += "  " + shortLine(l.Why, 120)
	}
	return with.Printf("%s\n", text)
}
