package actions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq/internal/text/bounds"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
)

// RulesChange asks to change rules of a queue.
type RulesChange struct {
	Set   map[string]json.RawMessage `json:"set,omitempty"`   // values by key, as in the configuration file; durations and sizes are text
	Unset []string                   `json:"unset,omitempty"` // keys that go back to their values of configurations
	For   string                     `json:"for,omitempty"`   // a duration, only with set; by default the values hold until they are unset
	Why   string                     `json:"why,omitempty"`   // for the list of changes
}

// ChangeRules changes rules of a queue if they are at this revision; -1 stands for any. The handler of a built-in queue depends on
// its rules, so they are not changed.
func (o *Operator) ChangeRules(ctx context.Context, by changes.Who, queue string, revision int64, want RulesChange) (rules.Set, error) {
	if err := protocol.CheckNotReserved(queue); err != nil {
		return rules.Set{}, err
	}
	change := rules.Change{Set: want.Set, Unset: want.Unset, Why: want.Why, If: revision}
	if want.For != "" {
		var err error
		if change.For, err = time.ParseDuration(want.For); err != nil || change.For <= 0 {
			return rules.Set{}, badField("for", "got %.40q, must be a duration of more than 0, as in 2h", want.For)
		}
		if len(want.Set) == 0 && len(want.Unset) > 0 {
			return rules.Set{}, badField("for", "it applies to settings, and nothing is set")
		}
	}
	return o.change(ctx, by, queue, change, "set", slices.Sorted(maps.Keys(want.Set)), "unset", want.Unset)
}

// change changes settings of a queue. If there is nothing to change it returns [rules.ErrSame].
func (o *Operator) change(ctx context.Context, by changes.Who, queue string, change rules.Change, log ...any) (rules.Set, error) {
	change.By, change.Base = o.withNode(by), o.node.Rules(queue)
	set, err := rules.In(o.client.DB()).Change(ctx, queue, change)
	if err == nil {
		name := change.Action
		if name == "" {
			name = ChangeRules.Name
		}
		o.logChange(changes.Line{Who: change.By, Action: name, Queue: queue, IDs: change.IDs}, append(log, "revision", set.Rev)...)
	}
	return set, err
}

// Track makes the journal of a queue keep every run of an id, or undoes that. It returns the number of ids of the queue that are
// tracked then.
func (o *Operator) Track(ctx context.Context, by changes.Who, queue, id string, undo bool, why string) (int, error) {
	if !utf8.ValidString(id) {
		return 0, badField("id", "%.60q is not UTF-8, and cannot be tracked", id)
	}
	var ids []string
	change := rules.Change{Action: Track.Name, IDs: []string{id}, Why: why, If: -1}
	if undo {
		change.Action = Untrack.Name
	}
	change.Edit = func(now map[string]rules.Setting, _ time.Time) (map[string]json.RawMessage, []string, error) {
		var err error
		if ids, err = rules.TrackID(now, id, !undo); err != nil || ids == nil {
			return setOrUnset("tracked", nil, err)
		}
		value, err := json.Marshal(ids)
		return setOrUnset("tracked", value, err)
	}
	_, err := o.change(ctx, by, queue, change)
	if errors.Is(err, rules.ErrSame) {
		err = nil
	}
	return len(ids), err
}

// setOrUnset returns the edit of a change that sets a rule, or unsets it if there is no value.
func setOrUnset(key string, value json.RawMessage, err error) (map[string]json.RawMessage, []string, error) {
	if err != nil || value == nil {
		return nil, []string{key}, err
	}
	return map[string]json.RawMessage{key: value}, nil, nil
}

// HoldChange asks to hold an id or a prefix, or to undo that.
type HoldChange struct {
	ID     string `json:"id,omitempty" either:"id"`
	Prefix string `json:"prefix,omitempty" either:"id"` // all ids with this prefix
	For    string `json:"for,omitempty"`                // a duration of at most 8760h, like 2h; by default a hold lasts until it is undone
	Undo   bool   `json:"undo,omitempty"`
	Why    string `json:"why,omitempty"`
}

// HoldChanged answers a request to hold ids, or to undo that.
type HoldChanged struct {
	ID     string  `json:"id,omitempty" either:"id"`
	Prefix string  `json:"prefix,omitempty" either:"id"`
	Queue  string  `json:"queue"`
	Undone bool    `json:"undone"`                   // whether a hold was undone, a handler's included
	Held   bool    `json:"held"`                     // whether the id or prefix is held now; after an undo the hold of a prefix may remain
	Beside string  `json:"held_by_prefix,omitempty"` // the other prefix whose hold covers it now, if there is such a hold
	Until  float64 `json:"until,omitempty"`          // end of the hold that covers it now, unix seconds; absent if that lasts until it is undone
	Count  int     `json:"count"`                    // holds of the queue
}

// Hold holds ids of a queue, or undoes that. To undo a hold that does not exist changes nothing. The answer names the hold that then
// covers the ids. After an undo that may be the hold of a prefix. To undo the hold of a group also ends the time for which a handler
// holds it back.
func (o *Operator) Hold(ctx context.Context, by changes.Who, q *protocol.Queue, want HoldChange) (HoldChanged, error) {
	set, hold, was, err := o.changeHold(ctx, by, q.Name, want)
	if err != nil {
		return HoldChanged{}, err
	}
	stopped := false
	if want.Undo && want.Prefix != "" {
		if stopped, err = q.LetGo(ctx, want.Prefix); err != nil {
			return HoldChanged{}, err
		}
	}
	if stopped {
		line := changes.Line{Who: by, Action: Unhold.Name, Queue: q.Name, Why: want.Why}
		line.Old, _ = json.Marshal(map[string]string{"prefix": want.Prefix, "held_by": "handler"}) // plain strings always marshal
		o.record(ctx, line)
	}
	values, _ := set.Apply(rules.Rules{}, hold.At) // rules that only a later release can read are not needed here
	answer := HoldChanged{ID: want.ID, Prefix: want.Prefix, Queue: q.Name, Undone: want.Undo && was != nil || stopped, Count: len(values.Holds)}
	if other := rules.NewHeld(values.Holds).Covering(hold); other != nil {
		answer.Held = true
		if !other.Until.IsZero() {
			answer.Until = float64(other.Until.UnixMicro()) / 1e6
		}
		if other.Prefix != want.Prefix {
			answer.Beside = other.Prefix
		}
	}
	return answer, nil
}

// changeHold returns the settings of the queue after the change, the hold, and the hold of the same ids before it, nil if there was
// none. At of the hold is the time of the change.
func (o *Operator) changeHold(ctx context.Context, by changes.Who, queue string, want HoldChange) (set rules.Set, hold, was *rules.Hold, err error) {
	hold = &rules.Hold{ID: want.ID, Prefix: want.Prefix, Why: want.Why, By: o.withNode(by)}
	lasts, err := want.lasts()
	if err != nil {
		return set, nil, nil, err
	}
	if err := hold.Check(); err != nil {
		return set, nil, nil, err
	}
	change := rules.Change{Action: Hold.Name, Why: want.Why, If: -1}
	if want.ID != "" {
		change.IDs = []string{want.ID}
	}
	if want.Undo {
		change.Action = Unhold.Name
	}
	change.Edit = func(in map[string]rules.Setting, now time.Time) (map[string]json.RawMessage, []string, error) {
		hold.At = now.UTC().Truncate(time.Millisecond)
		if lasts > 0 {
			hold.Until = hold.At.Add(lasts)
		}
		edit := rules.WithHold
		if want.Undo {
			edit = rules.WithoutHold
		}
		value, old, err := edit(in, *hold, now)
		was = old
		return setOrUnset("holds", value, err)
	}
	change.Told = func() (before, after any) {
		if was != nil {
			before = shortHold(was)
		}
		if !want.Undo {
			after = shortHold(hold)
		}
		return before, after
	}
	set, err = o.change(ctx, by, queue, change, "what", hold.String())
	if errors.Is(err, rules.ErrSame) { // it was not held
		err = nil
	}
	return set, hold, was, err
}

// shortHold returns a hold in the form of a line of changes. The line itself has who, when and why.
func shortHold(h *rules.Hold) map[string]any {
	short := map[string]any{}
	if h.Prefix != "" {
		short["prefix"] = h.Prefix
	} else {
		short["id"] = h.ID
	}
	if !h.Until.IsZero() {
		short["until"] = h.Until.UTC().Truncate(time.Second)
	}
	return short
}

// maxHold bounds the time of a hold, like the time of all settings at run time.
const maxHold = 8760 * time.Hour

// lasts returns the time of the hold, 0 if it lasts until it is undone.
func (c *HoldChange) lasts() (time.Duration, error) {
	switch {
	case c.For == "":
		return 0, nil
	case c.Undo:
		return 0, badField("for", "it goes with a hold, and not with undo")
	}
	d, err := time.ParseDuration(c.For)
	if err != nil || d <= 0 || d > maxHold {
		return 0, badField("for", "got %.40q, must be a duration of more than 0 and at most %s, as in 2h", c.For, bounds.Duration(maxHold))
	}
	return d, nil
}

// maxCancelWhy bounds the reason for the end of a run, bytes.
const maxCancelWhy = 1024

// prepareCancel checks the request to end a run, and holds the id if the run is to end so. undo is for a run that could not be ended.
func (o *Operator) prepareCancel(ctx context.Context, by changes.Who, q *protocol.Queue, id string, then protocol.Then, why string) (undo func() error, err error) {
	switch {
	case !slices.Contains(protocol.Thens(), then):
		return nil, badField("then", "got %.40q, must be retry, hold, bury or delete", then)
	case then == protocol.ThenHold && !utf8.ValidString(id):
		return nil, badField("id", "%.60q is not UTF-8, and cannot be held", id)
	case len(why) > maxCancelWhy:
		return nil, badField("why", "it has %d bytes, at most %d are allowed", len(why), maxCancelWhy)
	case then == protocol.ThenHold:
		return o.holdRun(ctx, by, q, id, why)
	}
	return func() error { return nil }, nil
}

// holdRun holds an id that runs, before its run is ended. A hold that came later could come too late, as a new run may have begun by
// then. After undo the id is held as it was before, unless somebody has changed that meanwhile.
func (o *Operator) holdRun(ctx context.Context, by changes.Who, q *protocol.Queue, id, why string) (undo func() error, err error) {
	job, found, err := browse.Of(q).Where(ctx, id)
	if err == nil && (!found || job.State != browse.StateInFlight) {
		err = fmt.Errorf("%q: %w", id, status.ErrNotRunning)
	}
	if err != nil {
		return nil, err
	}
	_, is, was, err := o.changeHold(ctx, by, q.Name, HoldChange{ID: id, Why: why})
	if err != nil {
		return nil, err
	}
	change := rules.Change{
		Action: Unhold.Name, IDs: []string{id}, Why: "its run could not be ended", If: -1,
		Edit: func(in map[string]rules.Setting, now time.Time) (map[string]json.RawMessage, []string, error) {
			value, err := rules.ReplaceHold(in, is, was, now)
			return setOrUnset("holds", value, err)
		},
		Told: func() (before, after any) {
			if was != nil {
				after = shortHold(was)
			}
			return shortHold(is), after
		},
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		defer cancel()
		_, err := o.change(ctx, by, q.Name, change)
		if err == nil || errors.Is(err, rules.ErrSame) {
			return nil
		}
		return fmt.Errorf("it is held now, which could not be undone: %w", err)
	}, nil
}
