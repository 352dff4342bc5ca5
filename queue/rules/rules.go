// Package rules answers one question: what is changed of queues' rules while they run, by whom, and until when?
//
// The rules of a queue are those of its node's configuration. A [Setting] takes the place of one of them on all nodes,
// from the next renewals of their leases until its time is over or somebody takes it back. All settings of a queue
// are a [Set], one field of one hash of the cluster, and change by compare and swap: of two that change
// the same set at once one is refused (ErrChanged). Each change writes its line of the cluster's log in the same
// script (package changes).
package rules

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue/changes"
)

// Setting is one value that was set at run time.
type Setting struct {
	Value json.RawMessage `json:"value"`
	By    changes.Who     `json:"by"`
	At    time.Time       `json:"at"`             // by Redis's clock, as all times here
	Until time.Time       `json:"until,omitzero"` // zero: until it is taken back
	Why   string          `json:"why,omitempty"`
}

// Set are the settings of a queue, by key.
type Set struct {
	Rev      int64              `json:"rev"` // counts changes
	Settings map[string]Setting `json:"set"`
	// Last are the marks of the last changes: one whose answer was lost finds itself, also if others came after it.
	Last []string `json:"last,omitempty"`
}

// lastKept is how many marks are kept.
const lastKept = 16

// InForce are the settings whose time is not over.
func (s Set) InForce(now time.Time) map[string]Setting {
	kept := maps.Clone(s.Settings)
	maps.DeleteFunc(kept, func(_ string, of Setting) bool { return of.over(now) })
	return kept
}

// Ends reports whether a setting, or a hold, has an end.
func (s Set) Ends() bool {
	for name, of := range s.Settings {
		if !of.Until.IsZero() || name == "holds" {
			return true
		}
	}
	return false
}

func (s Setting) over(now time.Time) bool { return !s.Until.IsZero() && !now.Before(s.Until) }

// Values are those in force. What a later release has set and this one cannot read is left out, and is in the error.
func (s Set) Values(now time.Time) (v Values, err error) {
	var errs []error
	in := s.InForce(now)
	for _, name := range slices.Sorted(maps.Keys(in)) {
		if err := v.set(name, in[name].Value); err != nil {
			errs = append(errs, err)
		}
	}
	v.Holds = slices.DeleteFunc(v.Holds, func(h Hold) bool { return h.over(now) })
	if len(v.Holds) == 0 {
		v.Holds = nil
	}
	return v, errors.Join(errs...)
}

// Parse reads a set as Redis has it; "" is none.
func Parse(queue, text string) (s Set, err error) {
	if text == "" {
		return Set{}, nil
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Set{}, fmt.Errorf("rules of queue %q in Redis cannot be read: %w", queue, err)
	}
	return s, nil
}

// ErrChanged: somebody has changed the settings since they were read.
var ErrChanged = errors.New("the rules were changed meanwhile")

// ErrSame: there is nothing to change.
var ErrSame = errors.New("it is so already")

// Track are the tracked ids with one more, or one less; nil: none is left. ErrSame.
func Track(in map[string]Setting, id string, on bool) ([]string, error) {
	var v Values
	if of, there := in["tracked"]; there {
		if err := v.set("tracked", of.Value); err != nil {
			return nil, err
		}
	}
	at := slices.Index(v.Tracked, id)
	switch {
	case on == (at >= 0):
		return v.Tracked, ErrSame
	case on && len(v.Tracked) == MaxTracked:
		return nil, fmt.Errorf("%w tracked: %d ids of the queue are tracked already, which is the limit: track others no longer", ErrValue, MaxTracked)
	case on:
		return append(v.Tracked, id), nil
	case len(v.Tracked) == 1:
		return nil, nil
	}
	return slices.Delete(v.Tracked, at, at+1), nil
}

// Book holds the settings of a cluster's queues. It is safe for concurrent use.
type Book struct{ db *redisdb.DB }

// In is the book of the cluster that this connection is for.
func In(db *redisdb.DB) Book { return Book{db} }

// Page is what one look at the book has shown.
type Page struct {
	Now     time.Time         // by Redis's clock, by which settings end; zero if it was not asked, or not answered
	Version string            // changes with each change, for the next look
	Queues  map[string]string // sets by queue, for Parse; nil if Count is that of the last look
}

// Read looks at all settings, unless nothing has changed since the last look. It asks for the time if they have, or if ends
// says that some of the last look have an end.
func (b Book) Read(ctx context.Context, version string, ends bool) (p Page, err error) {
	const what = "read the rules"
	ask := func(cmd redisdb.Cmd, time bool) (any, error) {
		cmds := []redisdb.Cmd{cmd}
		if time {
			cmds = append(cmds, redisdb.Cmd{"TIME"})
		}
		replies, err := b.db.Pipeline(ctx, what, cmds...)
		if len(replies) == 2 {
			p.Now, _ = redisdb.Clock(replies[1]) // zero if unknown
		}
		if len(replies) == 0 {
			return nil, err
		}
		return replies[0], err
	}
	reply, err := ask(redisdb.Cmd{"HGET", b.db.Keys.Rules(), "#"}, ends)
	if err != nil {
		return p, err
	}
	if p.Version = redisdb.Text(reply); p.Version == version {
		return p, nil
	}
	if reply, err = ask(redisdb.Cmd{"HGETALL", b.db.Keys.Rules()}, true); err != nil {
		return p, err
	}
	p.Queues = redisdb.Map(reply)
	p.Version = p.Queues["#"]
	delete(p.Queues, "#")
	return p, nil
}

// Queue reads the settings of a queue, and Redis's clock.
func (b Book) Queue(ctx context.Context, queue string) (Set, time.Time, error) {
	text, now, err := b.read(ctx, queue)
	if err != nil {
		return Set{}, now, err
	}
	set, err := Parse(queue, text)
	return set, now, err
}

func (b Book) read(ctx context.Context, queue string) (text string, now time.Time, err error) {
	replies, err := b.db.Pipeline(ctx, "read the rules", redisdb.Cmd{"HGET", b.db.Keys.Rules(), queue}, redisdb.Cmd{"TIME"})
	if err != nil {
		return "", now, err
	}
	now, err = redisdb.Clock(replies[1])
	return redisdb.Text(replies[0]), now, err
}

// Change is what is to become of a queue's settings.
type Change struct {
	Set   map[string]json.RawMessage // values by key
	Unset []string
	For   time.Duration // 0: until it is taken back
	Why   string
	By    changes.Who
	// Action and IDs are those of the line that tells of the change. Default: rules, of no ids.
	Action string
	IDs    []string
	Base   map[string]Base // what holds without settings, as far as it is known: for the line that tells of the change
	// Edit, unless nil, makes Set and Unset of the settings as they are, instead of those above.
	Edit func(in map[string]Setting, now time.Time) (set map[string]json.RawMessage, unset []string, err error)
	// Told, unless nil, is asked after Edit for what the line says of values before and after it, instead of whole ones.
	Told func() (before, after any)
	// If is the revision that must still be that of the set, else ErrChanged; -1: any.
	If int64
}

// The bounds of a change.
const (
	longestFor = 8760 * time.Hour
	maxWhy     = 1024
)

// Check says what is wrong with a change, an ErrValue.
func (c *Change) Check() error {
	for name := range c.Set {
		if name == "holds" && c.Edit == nil { // it says who holds what
			return fmt.Errorf("%w holds is not set as a whole: hold an id or a prefix, or undo that", ErrValue)
		}
		value, err := Check(name, c.Set[name])
		if err != nil {
			return err
		}
		if slices.Contains(c.Unset, name) {
			return fmt.Errorf("%w %s is set and unset at once", ErrValue, name)
		}
		c.Set[name] = value
	}
	for _, name := range c.Unset {
		if !slices.Contains(Keys(), name) {
			return new(Values).set(name, nil) // it is unknown, or fixed
		}
	}
	switch {
	case c.Edit == nil && len(c.Set)+len(c.Unset) == 0:
		return fmt.Errorf("%w: nothing is set or unset", ErrValue)
	case c.For != 0 && c.Edit == nil && len(c.Set) == 0:
		return fmt.Errorf("%w: for %s is about what is set, and nothing is: what is unset stays so until it is set again", ErrValue, plain(c.For))
	case c.For < 0 || c.For > longestFor:
		return fmt.Errorf("%w: for %s: want more than 0, at most %s", ErrValue, c.For, plain(longestFor))
	case len(c.Why) > maxWhy:
		return fmt.Errorf("%w: why has %d bytes, at most %d are allowed", ErrValue, len(c.Why), maxWhy)
	}
	return nil
}

// Change changes the settings of a queue, whose existence is the caller's business, and returns them.
func (b Book) Change(ctx context.Context, queue string, c Change) (Set, error) {
	if err := c.Check(); err != nil {
		return Set{}, err
	}
	mark := rand.Text()
	for {
		was, now, err := b.read(ctx, queue)
		if err != nil {
			return Set{}, err
		}
		old, err := Parse(queue, was)
		if err != nil && c.If >= 0 { // what cannot be read is replaced by who insists
			return Set{}, err
		}
		if slices.Contains(old.Last, mark) {
			return old, nil
		}
		if c.If >= 0 && old.Rev != c.If {
			return Set{}, fmt.Errorf("%w: they are at revision %d, not %d", ErrChanged, old.Rev, c.If)
		}
		if c.Edit != nil {
			if c.Set, c.Unset, err = c.Edit(old.InForce(now), now); err != nil || len(c.Set)+len(c.Unset) == 0 {
				return old, err
			}
		}
		next, line, err := c.apply(queue, old, now)
		if err != nil {
			return Set{}, err
		}
		next.Last = append(slices.Clone(old.Last[max(0, len(old.Last)-lastKept+1):]), mark)
		text, err := json.Marshal(next)
		if err != nil {
			return Set{}, fmt.Errorf("rules of queue %q: %w", queue, err)
		}
		if changed, err := b.swap(ctx, queue, was, text, line); err != nil || changed {
			return next, err
		}
	}
}

// apply makes the next set and the line that tells of it.
func (c *Change) apply(queue string, old Set, now time.Time) (Set, changes.Line, error) {
	in := old.InForce(now)
	next := Set{Rev: old.Rev + 1, Settings: maps.Clone(in)}
	if next.Settings == nil {
		next.Settings = map[string]Setting{}
	}
	was, is := map[string]json.RawMessage{}, map[string]any{}
	note := func(name string) {
		was[name] = c.base(name)
		if of, there := in[name]; there {
			was[name] = of.Value
		}
	}
	for _, name := range c.Unset {
		note(name)
		is[name] = c.base(name)
		delete(next.Settings, name)
	}
	for name, value := range c.Set {
		value, err := Check(name, value)
		if err != nil {
			return Set{}, changes.Line{}, err
		}
		note(name)
		is[name] = value
		of := Setting{Value: value, By: c.By, At: now.UTC().Truncate(time.Millisecond), Why: c.Why}
		if c.For > 0 {
			of.Until = of.At.Add(c.For)
		}
		next.Settings[name] = of
	}
	if err := c.agree(next.Settings); err != nil {
		return Set{}, changes.Line{}, err
	}
	if c.For > 0 {
		is["until"] = now.Add(c.For).UTC().Truncate(time.Second)
	}
	before, after := any(was), any(is)
	if c.Told != nil {
		before, after = c.Told()
	}
	line := changes.Line{Who: c.By, Action: cmp.Or(c.Action, "rules"), Queue: queue, IDs: c.IDs, Why: c.Why}
	var err error
	if line.Old, err = json.Marshal(before); err == nil {
		line.New, err = json.Marshal(after)
	}
	return next, line, err
}

// agree says what of a change contradicts what holds beside it then. What it cannot know, as what a configuration says elsewhere, or what is
// left when one of two ends before the other, is for the nodes: see [Values.Agreed].
func (c *Change) agree(next map[string]Setting) error {
	holds := func(name string) string {
		if of, there := next[name]; there {
			return string(of.Value)
		}
		return string(c.base(name))
	}
	touched := func(name string) bool { return c.Set[name] != nil || slices.Contains(c.Unset, name) }
	if priority := holds("priority"); holds("scheduler") == `"seq"` && priority != "0" && priority != "null" && (touched("priority") || touched("scheduler")) {
		return fmt.Errorf("%w priority is %s: it needs scheduler lag, by which the oldest job is first; seq goes in turn", ErrValue, priority)
	}
	return nil
}

// Agreed are the values without a priority while the scheduler is seq, and an ErrValue that says so. scheduler and priority are what holds without
// them. Such values come from where nobody knew what holds beside them, or as one of both has ended.
func (v Values) Agreed(scheduler string, priority int) (Values, error) {
	if v.Scheduler != nil {
		scheduler = *v.Scheduler
	}
	if v.Priority != nil {
		priority = *v.Priority
	}
	if scheduler != "seq" || priority == 0 {
		return v, nil
	}
	v.Priority = new(int)
	return v, fmt.Errorf("%w priority: it is %d and counts as 0, as the scheduler is seq, which goes in turn: set scheduler to lag, or unset one of both", ErrValue, priority)
}

// base is what holds without a setting, null where that is not known.
func (c *Change) base(name string) json.RawMessage {
	value, err := json.Marshal(c.Base[name].Value)
	if err != nil {
		return json.RawMessage("null")
	}
	return value
}

// Forget removes the settings of a queue that is deleted.
func (b Book) Forget(ctx context.Context, queue string) error {
	for {
		was, _, err := b.read(ctx, queue)
		if err != nil || was == "" {
			return err
		}
		if gone, err := b.swap(ctx, queue, was, nil, changes.Line{}); err != nil || gone {
			return err
		}
	}
}

func (b Book) swap(ctx context.Context, queue, was string, text []byte, line changes.Line) (bool, error) {
	told := []byte(nil)
	if line.Action != "" {
		var err error
		if told, err = line.Encode(); err != nil {
			return false, err
		}
	}
	reply, err := b.db.Run(ctx, b.db.Scripts.Rules, []string{b.db.Keys.Rules(), b.db.Keys.Changes()}, queue, was, text, told, changes.Kept)
	return reply == int64(1), err
}
