package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
)

// Groups bound what a whole cluster does for the ids of a queue that begin alike: those of a customer, say. Concurrency counts
// ids in handler calls. Its zero value bounds nothing.
type Groups struct {
	By    string // the group of an id is what it has up to here, with it; an id without it is in none
	Limit        // of each group; its zero value: only what a handler answers (lowkiq.Limit) holds a group back
}

// DefaultBy separates groups where nothing else is said.
const DefaultBy = ":"

// MostBy bounds what separates groups, bytes.
const MostBy = 8

// Of is the group of an id, "" if it is in none.
func (g Groups) Of(id string) string {
	if g.By == "" {
		return ""
	}
	before, _, found := strings.Cut(id, g.By)
	if !found {
		return ""
	}
	return id[:len(before)+len(g.By)]
}

// Rule is a text that tells this rule from others, "" if there are no groups.
func (g Groups) Rule() string {
	if g.By == "" {
		return ""
	}
	return fmt.Sprintf("%q %v", g.By, g.Limit)
}

// WithDefaults has the burst of a rate that names none.
func (g Groups) WithDefaults() Groups { return Groups{g.By, g.Limit.WithDefaults()} }

// Check says what is wrong with groups.
func (g Groups) Check() error {
	switch {
	case len(g.By) > MostBy:
		return fmt.Errorf("%w groups: by is %.40q, want at most %d bytes", ErrValue, g.By, MostBy)
	case g.By == "" && g.Limit != (Limit{}):
		return fmt.Errorf("%w groups: there is a limit, and nothing that ends the prefix of an id: want by", ErrValue)
	}
	if err := g.Limit.Check(); err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	return nil
}

// MarshalJSON is the form of the configuration file; "none" if nothing is bounded.
func (g Groups) MarshalJSON() ([]byte, error) {
	if g.By == "" {
		return []byte(`"none"`), nil
	}
	shown := map[string]any{"by": g.By}
	maps.Copy(shown, g.shown())
	return json.Marshal(shown)
}

// UnmarshalJSON reads what MarshalJSON writes: none, or a mapping. Without by it is a colon.
func (g *Groups) UnmarshalJSON(value []byte) error {
	var read Groups
	if string(value) != `"none"` {
		fields := read.fields()
		fields["by"] = func(part json.RawMessage) error {
			if err := json.Unmarshal(part, &read.By); err != nil || read.By == "" || len(read.By) > MostBy {
				return fmt.Errorf("want what ends the prefix of an id, 1 to %d bytes, as in \":\", got %s", MostBy, got(part))
			}
			return nil
		}
		err := object(value, fields)
		switch {
		case err != nil:
		case read == (Groups{}):
			err = errors.New("none of them is there")
		default:
			err = read.lacks()
		}
		if err != nil {
			return fmt.Errorf("want none or {by, concurrency, rate, burst}: %w", err)
		}
	}
	if read.By == "" && read.Limit != (Limit{}) {
		read.By = DefaultBy
	}
	*g = read
	return nil
}

func setGroups(v *Values, value json.RawMessage) error {
	var g Groups
	if err := g.UnmarshalJSON(value); err != nil {
		return err
	}
	v.Groups = &g
	return nil
}
