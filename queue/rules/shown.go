package rules

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
)

// Base is what a node's configuration says of a key.
type Base struct {
	Value any    `json:"value"` // as JSON has it
	From  string `json:"from"`  // default, program, Registry, or a place in a file
	// Assumed are the parts of the value that nobody gave: they follow from the others.
	Assumed []string `json:"assumed,omitempty"`
}

// Where a value may come from that the configuration does not name.
const (
	AtRunTime = "run time"
	Registry  = "registry" // the queue's entry in Redis, where another node or program has written it
)

// Shown is a key of a queue, for people: which value is in force, and why.
type Shown struct {
	Key   string `json:"key"`
	Value any    `json:"value"` // null: unknown here, or not set
	From  string `json:"from"`  // AtRunTime, default, program, Registry, or a place in a file; "" if it is not known here
	// Assumed are the parts of the value that nobody gave: they follow from the others.
	Assumed []string `json:"assumed,omitempty"`
	// Of what was set at run time:
	By        *changes.Who `json:"by,omitempty"`
	At        *time.Time   `json:"at,omitempty"`
	Until     *time.Time   `json:"until,omitempty"`
	Why       string       `json:"why,omitempty"`
	Otherwise *Base        `json:"otherwise,omitempty"` // what holds without it, if that is known here
	// Fixed says why the key does not change at run time; "" if it does.
	Fixed string `json:"fixed,omitempty"`
}

// Show joins what a configuration says, nil if it is not known, with the settings in force now: first the keys that may change,
// in the order of the configuration file, then the others.
func Show(base map[string]Base, set Set, now time.Time) []Shown {
	var all []Shown
	in := set.InForce(now)
	show := func(key, fixed string) {
		of, known := base[key]
		shown := Shown{Key: key, Value: of.Value, From: of.From, Assumed: of.Assumed, Fixed: fixed}
		if live, there := in[key]; there {
			shown.Value, shown.From, shown.Why = json.RawMessage(live.Value), AtRunTime, live.Why
			shown.By, shown.At, shown.Assumed = &live.By, &live.At, nil
			if !live.Until.IsZero() {
				shown.Until = &live.Until
			}
			if known {
				shown.Otherwise = &of
			}
		}
		all = append(all, shown)
	}
	for _, key := range Keys() {
		show(key, "")
	}
	fixed := Fixed()
	for _, key := range []string{"shards", "handler"} {
		show(key, fixed[key])
	}
	for key := range in { // of a later release
		if !slices.ContainsFunc(all, func(s Shown) bool { return s.Key == key }) {
			show(key, "")
		}
	}
	slices.SortStableFunc(all[len(Keys()):], func(x, y Shown) int { return cmp.Compare(x.Fixed, y.Fixed) })
	return all
}
