package rules

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
)

// Base is the value of a key in a node's configuration.
type Base struct {
	Value any    `json:"value"` // in its JSON form
	From  string `json:"from"`  // default, program, Registry, or a place in a file
	// Assumed are the parts of the value that nobody gave: they follow from the others.
	Assumed []string `json:"assumed,omitempty"`
}

// Sources of values apart from the configuration.
const (
	AtRunTime = "run time"
	Registry  = "registry" // the queue's entry in Redis, written by another node or program
)

// Shown is a key of a queue for people: the value in force and its source.
type Shown struct {
	Key   string `json:"key"`
	Value any    `json:"value"` // null if unknown here or not set
	From  string `json:"from"`  // AtRunTime, default, program, Registry, or a place in a file; "" if unknown here
	// Assumed are the parts of the value that nobody gave: they follow from the others.
	Assumed []string `json:"assumed,omitempty"`
	// Of a setting:
	By        *changes.Who `json:"by,omitempty"`
	At        *time.Time   `json:"at,omitempty"`
	Until     *time.Time   `json:"until,omitempty"`
	Why       string       `json:"why,omitempty"`
	Otherwise *Base        `json:"otherwise,omitempty"` // the value without the setting, if known here
	// Fixed is the reason why the key does not change at run time, "" if it does.
	Fixed string `json:"fixed,omitempty"`
}

// Show joins a configuration, nil if it is unknown, with the settings in force. The keys that may
// change come first, in the order of the configuration file, then the others.
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
