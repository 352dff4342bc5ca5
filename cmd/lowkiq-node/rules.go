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

	"github.com/lowkiq/lowkiq/internal/pause"
	"github.com/lowkiq/lowkiq/internal/remote"
	"github.com/lowkiq/lowkiq/internal/valuetext"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
)

type rulesCommand struct {
	asking `embed:""`
	Queue  string         `arg:"" name:"queue" help:"The queue."`
	Set    []string       `sep:"none" placeholder:"KEY=VALUE" help:"Change a rule on all nodes: the value as in the configuration file. May be given several times."`
	Unset  []string       `placeholder:"KEY" help:"Go back to what the configuration says; with commas, or several times."`
	For    *time.Duration `placeholder:"DURATION" help:"End what --set changes after so long. Default: when it is unset."`
	Why    string         `placeholder:"TEXT" help:"What others are told of it."`
}

// Run prints the rules of a queue, after it has changed them if it is to.
func (c *rulesCommand) Run(with *conversation) error {
	var now web.Rules
	path := queuePath(c.Queue, "/rules")
	rows := func() { rulesTable(with, &now) }
	if len(c.Set)+len(c.Unset) == 0 {
		if c.For != nil || c.Why != "" {
			return fail(exitUsage, "--for and --why are about what is changed: say --set KEY=VALUE or --unset KEY, too")
		}
		return with.show(path, &now, rows)
	}
	change, err := c.change()
	if err != nil {
		return err
	}
	var was web.Rules
	if err := with.fetch(path, &was); err != nil {
		return err
	}
	if err := whole(change.Set, &was); err != nil {
		return err
	}
	answer, err := with.Patch(with.ctx, path, fmt.Sprintf(`"%d"`, was.Revision), change)
	if err != nil {
		var refused *web.Problem
		if errors.As(err, &refused) && refused.Status == http.StatusPreconditionFailed {
			return fail(exitFailed, "%s; nothing was changed by this command: look again, then repeat it", refused.Detail)
		}
		return err
	}
	if err := decode(path, answer, &now); err != nil {
		return err
	}
	return with.print(&now, rows)
}

// change is what the flags ask for.
func (c *rulesCommand) change() (web.RulesChange, error) {
	change := web.RulesChange{Unset: c.Unset, Why: c.Why}
	if c.For != nil {
		if *c.For <= 0 {
			return change, fail(exitUsage, "--for %s: want more than 0", c.For)
		}
		if len(c.Set) == 0 {
			return change, fail(exitUsage, "--for is about what --set changes: what is unset stays so until it is set again")
		}
		change.For = c.For.String()
	}
	for _, text := range c.Set {
		key, value, two := strings.Cut(text, "=")
		if !two || key == "" {
			return change, fail(exitUsage, "--set %q: want KEY=VALUE, as in --set batch_size=10", text)
		}
		data, err := valuetext.Parse(value)
		if err != nil {
			return change, fail(exitUsage, "--set %s: %w", key, err)
		}
		if _, _, part := strings.Cut(key, "."); !part {
			if _, err := rules.Check(key, data); err != nil {
				return change, fail(exitUsage, "--set: %w", err)
			}
		}
		if change.Set == nil {
			change.Set = map[string]json.RawMessage{}
		}
		if _, twice := change.Set[key]; twice {
			return change, fail(exitUsage, "--set %s: it is given twice", key)
		}
		change.Set[key] = data
	}
	return change, nil
}

// whole makes parts of mappings, as limit.rate, whole values: the others of their parts are as they were.
func whole(set map[string]json.RawMessage, was *web.Rules) error {
	changed := map[string]map[string]json.RawMessage{}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		key, part, two := strings.Cut(name, ".")
		if !two {
			continue
		}
		if _, too := set[key]; too {
			return fail(exitUsage, "--set %s: %s is set as a whole, too", name, key)
		}
		i := slices.IndexFunc(was.Rules, func(r web.Rule) bool { return r.Key == key })
		if i < 0 {
			_, err := rules.Check(key, set[name])
			return fail(exitUsage, "--set: %w", err)
		}
		if was.Rules[i].From == "" {
			return fail(exitUsage, "--set %s: the node that was asked does not know the rest of %s: set it as a whole", name, key)
		}
		if changed[key] == nil {
			parts := map[string]json.RawMessage{}
			if json.Unmarshal(was.Rules[i].Value, &parts) != nil || parts == nil {
				parts = map[string]json.RawMessage{} // a text, as in none, has no parts
			}
			for _, assumed := range was.Rules[i].Assumed {
				delete(parts, assumed) // it follows from the others, which change
			}
			changed[key] = parts
		}
		changed[key][part] = set[name]
		delete(set, name)
	}
	for key, parts := range changed {
		data, err := json.Marshal(parts)
		if err == nil {
			_, err = rules.Check(key, data)
		}
		if err != nil {
			return fail(exitUsage, "--set: %w", err)
		}
		set[key] = data
	}
	return nil
}

func rulesTable(with *conversation, now *web.Rules) {
	with.table("KEY VALUE FROM BY UNTIL OTHERWISE WHY", func(row func(string, ...any)) {
		for _, r := range now.Rules {
			by, until, otherwise := "-", "-", "-"
			if r.By != nil {
				by = changes.Who(*r.By).String()
			}
			if r.Until != 0 {
				until = moment(r.Until)
			}
			if r.Otherwise != nil {
				otherwise = short(valuetext.Text(r.Otherwise), 40)
			}
			from := cmp.Or(r.From, "-")
			if r.Fixed != "" {
				from += " (fixed)"
			}
			row("%s\t%s\t%s\t%s\t%s\t%s\t%s", r.Key, short(valuetext.Text(r.Value), 60), from, by, until, otherwise, short(r.Why, 60))
		}
	})
	if !now.Handled {
		with.say("\nthe node that was asked does not handle the queue: what its nodes' configurations say is not known there\n")
	}
}

type trackCommand struct {
	asking `embed:""`
	Queue  string `placeholder:"NAME" help:"Only in this queue. Default: in all."`
	Undo   bool   `help:"Track it no longer."`
	Why    string `placeholder:"TEXT" help:"What others are told of it."`
	ID     string `arg:"" name:"key" help:"The job's id."`
}

// Run has the journals keep every run of an id.
func (c *trackCommand) Run(with *conversation) error {
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
		if err := with.change(path, web.Track{Undo: c.Undo, Why: c.Why}, format, queue, c.ID); err != nil {
			return err
		}
	}
	return nil
}

// changes prints what people have changed, the oldest first, and with --follow what comes.
func (c *journalCommand) changes(with *conversation) error {
	for flag, given := range map[string]bool{"--verdict": len(c.Verdict) > 0, "--on": c.On != "", "--contains": c.Contains != ""} {
		if given {
			return fail(exitUsage, "%s is about runs, not about what --cluster shows", flag)
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
		err := with.fetch("/api/v1/changes?"+values.Encode(), &answer)
		switch {
		case with.ctx.Err() != nil && c.Follow:
			return nil
		case err != nil && (cursor == "" || !errors.Is(err, remote.ErrUnreachable)):
			return err
		case err != nil && !lost:
			fmt.Fprintf(with.err, "%s; trying again\n", plain(err.Error()))
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
		if !c.Follow || pause.For(with.ctx, followEvery) != nil {
			return nil
		}
	}
}

// changeLine prints one.
func changeLine(with *conversation, l *web.Change) error {
	if with.asJSON {
		line, err := json.Marshal(l)
		if err != nil {
			return err
		}
		return writeJSON(with.out, append(line, '\n'))
	}
	text := fmt.Sprintf("%s  %-12s", moment(l.At), l.Action)
	for _, part := range []string{l.Queue, l.Target} {
		if part != "" {
			text += "  " + short(part, 60)
		}
	}
	if len(l.IDs) > 0 {
		text += "  ids " + short(strings.Join(l.IDs, ", "), 80)
	}
	switch {
	case l.Count == 1:
		text += "  1 job"
	case l.Count > 1:
		text += fmt.Sprintf("  %d jobs", l.Count)
	}
	if len(l.Old) > 0 {
		text += "  " + short(string(l.Old), 120) + " -> " + short(string(l.New), 120)
	} else if len(l.New) > 0 {
		text += "  " + short(string(l.New), 120)
	}
	text += "  by " + changes.Who(l.By).String()
	if l.By.Address != "" {
		text += " from " + plain(l.By.Address)
	}
	if l.Why != "" {
		text += "  " + short(l.Why, 120)
	}
	return with.say("%s\n", text)
}
