// Package rules defines the rules of queues, and changes them at run time.
//
// The rules of a queue are in the configuration of its nodes. A [Setting] replaces the value of a
// rule on all nodes, from the next renewals of their leases until its time is over or somebody
// takes it back. The settings of a queue are a [Set], which is one field of a hash of the cluster.
// They change by compare and swap. If two callers change the same set at once, one of them is
// refused (ErrChanged). Each change writes its line into the cluster's log in the same script
// (package changes).
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

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/text/bounds"
	"github.com/lowkiq/lowkiq/queue/changes"
)

// Setting is a value that was set at run time.
type Setting struct {
	Value json.RawMessage `json:"value"`
	By    changes.Who     `json:"by"`
	At    time.Time       `json:"at"`             // by Redis's clock, as all times here
	Until time.Time       `json:"until,omitzero"` // zero if it has no end
	Why   string          `json:"why,omitempty"`
}

// Set has the settings of a queue by key.
type Set struct {
	Rev      int64              `json:"rev"` // counts changes
	Settings map[string]Setting `json:"set"`
	// Last has the marks of the last changes. A caller whose answer was lost finds its mark here,
	// even after other changes.
	Last []string `json:"last,omitempty"`
}

// maxMarks is how many marks are kept.
const maxMarks = 16

// InForce returns the settings that have not ended.
func (s Set) InForce(now time.Time) map[string]Setting {
	kept := maps.Clone(s.Settings)
	maps.DeleteFunc(kept, func(_ string, of Setting) bool { return of.hasEnded(now) })
	return kept
}

// NextEnd returns when the next of the settings in force, or of their holds, ends. It is zero if none of them does.
func (s Set) NextEnd(holds Holds, now time.Time) (next time.Time) {
	end := func(until time.Time) {
		if !until.IsZero() && (next.IsZero() || until.Before(next)) {
			next = until
		}
	}
	for _, of := range s.InForce(now) {
		end(of.Until)
	}
	for i := range holds {
		end(holds[i].Until)
	}
	return next
}

func (s Setting) hasEnded(now time.Time) bool { return !s.Until.IsZero() && !now.Before(s.Until) }

// Apply returns the rules with the settings in force in place of their values. It leaves out
// settings that this release cannot read or that contradict other rules, and returns an error about
// them.
func (s Set) Apply(r Rules, now time.Time) (Rules, error) {
	var errs []error
	in := s.InForce(now)
	for _, name := range slices.Sorted(maps.Keys(in)) {
		errs = append(errs, r.Set(name, in[name].Value))
	}
	r.Holds = slices.DeleteFunc(slices.Clone(r.Holds), func(h Hold) bool { return h.hasEnded(now) })
	if len(r.Holds) == 0 {
		r.Holds = nil
	}
	if r.Scheduler == Seq && r.Priority > 0 { // nobody knew the other rule when one was set, or the setting of one has ended
		errs = append(errs, valueError("priority", "it is %d and counts as 0, as the scheduler is seq, which goes in turn: set scheduler to lag, or unset one of both", r.Priority))
		r.Priority = 0
	}
	return r, errors.Join(errs...)
}

// Parse parses a set as Redis keeps it. "" is an empty set.
func Parse(queue, text string) (s Set, err error) {
	if text == "" {
		return Set{}, nil
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Set{}, fmt.Errorf("rules of queue %q in Redis cannot be read: %w", queue, err)
	}
	return s, nil
}

// ErrChanged means that somebody has changed the settings since they were read.
var ErrChanged = errors.New("the rules were changed meanwhile")

// ErrSame means that there is nothing to change.
var ErrSame = errors.New("nothing to change")

// TrackID returns the tracked ids with id added, or removed if on is false. nil means that none is
// left. If there is nothing to change it returns ErrSame.
func TrackID(in map[string]Setting, id string, on bool) ([]string, error) {
	var r Rules
	if of, there := in["tracked"]; there {
		if err := r.Set("tracked", of.Value); err != nil {
			return nil, err
		}
	}
	at := slices.Index(r.Tracked, id)
	switch {
	case on == (at >= 0):
		return r.Tracked, ErrSame
	case on && len(r.Tracked) == MaxTracked:
		return nil, fmt.Errorf("%w tracked: %d ids of the queue are tracked, which is the limit; stop tracking others", ErrValue, MaxTracked)
	case on:
		return append(r.Tracked, id), nil
	case len(r.Tracked) == 1:
		return nil, nil
	}
	return slices.Delete(r.Tracked, at, at+1), nil
}

// Book reads and changes the settings of a cluster's queues. It is safe for concurrent use.
type Book struct{ db *redisdb.DB }

// In returns the book of the cluster that db is for.
func In(db *redisdb.DB) Book { return Book{db} }

// Page is the result of a read of the book.
type Page struct {
	Now     time.Time         // by Redis's clock, which ends settings; zero if unknown
	Version string            // differs after each change; pass it to the next Read
	Queues  map[string]string // sets by queue, for Parse; nil if nothing has changed
}

// Read returns all settings, unless nothing has changed since version. It reads the time if they
// have changed, or if ends is true because some of the settings read before have an end.
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

// Queue returns the settings of a queue, and the time of Redis's clock.
func (b Book) Queue(ctx context.Context, queue string) (Set, time.Time, error) {
	text, now, err := b.readText(ctx, queue)
	if err != nil {
		return Set{}, now, err
	}
	set, err := Parse(queue, text)
	return set, now, err
}

// copiesOfRules is how many copies of the text of a queue's rules a request has in memory: text,
// values, and an answer or a page.
const copiesOfRules = 8

func (b Book) readText(ctx context.Context, queue string) (text string, now time.Time, err error) {
	if memory.AccountOf(ctx) != nil {
		size, err := b.db.Do(ctx, "read the rules", "HSTRLEN", b.db.Keys.Rules(), queue)
		if err == nil {
			err = memory.Take(ctx, copiesOfRules*redisdb.Int(size))
		}
		if err != nil {
			return "", now, err
		}
	}
	replies, err := b.db.Pipeline(ctx, "read the rules", redisdb.Cmd{"HGET", b.db.Keys.Rules(), queue}, redisdb.Cmd{"TIME"})
	if err != nil {
		return "", now, err
	}
	now, err = redisdb.Clock(replies[1])
	return redisdb.Text(replies[0]), now, err
}

// Change describes a change of a queue's settings.
type Change struct {
	Set   map[string]json.RawMessage // values by key
	Unset []string
	For   time.Duration // 0 means without an end
	Why   string
	By    changes.Who
	// Action and IDs are those of the line in the list of changes. The default action is rules,
	// without ids.
	Action string
	IDs    []string
	Base   map[string]Base // known values without settings, for the line in the list of changes
	// Edit, if not nil, computes Set and Unset from the present settings, in place of the fields
	// above.
	Edit func(in map[string]Setting, now time.Time) (set map[string]json.RawMessage, unset []string, err error)
	// Told, if not nil, is called after Edit and returns the values before and after for the line,
	// in place of whole values.
	Told func() (before, after any)
	// If is the revision that the set must have, else ErrChanged. -1 means any.
	If int64
}

// The bounds of a change.
const (
	maxFor = 8760 * time.Hour
	maxWhy = 1024
)

// Check returns an ErrValue if a change is invalid.
func (c *Change) Check() error {
	for name := range c.Set {
		if name == "holds" && c.Edit == nil { // each hold names its author
			return fmt.Errorf("%w holds is not set as a whole; hold an id or a prefix, or undo that", ErrValue)
		}
		value, err := Compact(name, c.Set[name])
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
			return unknownKey(name) // the key is unknown or fixed
		}
	}
	switch {
	case c.Edit == nil && len(c.Set)+len(c.Unset) == 0:
		return fmt.Errorf("%w: nothing is set or unset", ErrValue)
	case c.For != 0 && c.Edit == nil && len(c.Set) == 0:
		return fmt.Errorf("%w: for %s applies to settings and nothing is set; unsetting has no end", ErrValue, bounds.Duration(c.For))
	case c.For < 0 || c.For > maxFor:
		return fmt.Errorf("%w: for %s: want more than 0, at most %s", ErrValue, c.For, bounds.Duration(maxFor))
	case len(c.Why) > maxWhy:
		return fmt.Errorf("%w: why has %d bytes, at most %d are allowed", ErrValue, len(c.Why), maxWhy)
	}
	return nil
}

// Change changes the settings of a queue and returns them. The caller checks that the queue exists.
func (b Book) Change(ctx context.Context, queue string, c Change) (Set, error) {
	if err := c.Check(); err != nil {
		return Set{}, err
	}
	mark := rand.Text()
	closeScope := func() {}
	defer func() { closeScope() }()
	for {
		closeScope() // each round reads again
		var scoped context.Context
		scoped, closeScope = memory.Scope(ctx)
		was, now, err := b.readText(scoped, queue)
		if err != nil {
			return Set{}, err
		}
		old, err := Parse(queue, was)
		if err != nil && c.If >= 0 { // a caller that names no revision replaces unreadable settings
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
		next, line, err := c.applyTo(queue, old, now)
		if err != nil {
			return Set{}, err
		}
		next.Last = append(slices.Clone(old.Last[max(0, len(old.Last)-maxMarks+1):]), mark)
		text, err := json.Marshal(next)
		if err != nil {
			return Set{}, fmt.Errorf("rules of queue %q: %w", queue, err)
		}
		if changed, err := b.swapText(ctx, queue, was, text, line); err != nil || changed {
			return next, err
		}
	}
}

// applyTo returns the next set and the line for the list of changes.
func (c *Change) applyTo(queue string, old Set, now time.Time) (Set, changes.Line, error) {
	in := old.InForce(now)
	next := Set{Rev: old.Rev + 1, Settings: maps.Clone(in)}
	if next.Settings == nil {
		next.Settings = map[string]Setting{}
	}
	was, is := map[string]json.RawMessage{}, map[string]any{}
	note := func(name string) {
		was[name] = c.baseValue(name)
		if of, there := in[name]; there {
			was[name] = of.Value
		}
	}
	for _, name := range c.Unset {
		note(name)
		is[name] = c.baseValue(name)
		delete(next.Settings, name)
	}
	for name, value := range c.Set {
		value, err := Compact(name, value)
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
	if err := c.checkAgreement(next.Settings); err != nil {
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

// checkAgreement returns an error if the change contradicts other settings or the known
// configuration. Nodes find the contradictions that it cannot know about: with an unknown
// configuration, or after one of two settings has ended before the other. See [Set.Apply].
func (c *Change) checkAgreement(next map[string]Setting) error {
	r := FromBases(c.Base)
	for name, of := range next {
		_ = r.Set(name, of.Value) // the setting of a later release is ignored
	}
	changes := func(name string) bool { return c.Set[name] != nil || slices.Contains(c.Unset, name) }
	var errs []error
	for _, wrong := range r.Contradictions() {
		if changes(wrong.Key) || changes(wrong.Other) {
			errs = append(errs, wrong)
		}
	}
	return errors.Join(errs...)
}

// baseValue returns the value without a setting, null if it is unknown.
func (c *Change) baseValue(name string) json.RawMessage {
	value, err := json.Marshal(c.Base[name].Value)
	if err != nil {
		return json.RawMessage("null")
	}
	return value
}

// Forget removes the settings of a deleted queue.
func (b Book) Forget(ctx context.Context, queue string) error {
	for {
		was, _, err := b.readText(ctx, queue)
		if err != nil || was == "" {
			return err
		}
		if gone, err := b.swapText(ctx, queue, was, nil, changes.Line{}); err != nil || gone {
			return err
		}
	}
}

func (b Book) swapText(ctx context.Context, queue, was string, text []byte, line changes.Line) (bool, error) {
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
