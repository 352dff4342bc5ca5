package rules

import (
	"fmt"
	"strings"
)

// Groups bounds what a whole cluster does for the ids of a queue with the same prefix, for example
// those of a customer. Concurrency counts ids in handler calls. The zero value bounds nothing.
type Groups struct {
	// By ends the prefix of an id that names its group. An id without it is in no group.
	By    string `rule:"by" max:"8" text:"what ends the prefix of an id, 1 to 8 bytes, as in \":\""`
	Limit        // of each group; with the zero value only a handler's answer (lowkiq.Throttle) stops a group
}

// DefaultBy is the default of By.
const DefaultBy = ":"

// Of returns the group of an id, "" if it is in none.
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

// Rule returns a text that differs for different rules, "" without groups.
func (g Groups) Rule() string {
	if g.By == "" {
		return ""
	}
	return fmt.Sprintf("%q %v", g.By, g.Limit)
}

func (g *Groups) setDefaults() {
	if g.By == "" && g.Limit != (Limit{}) {
		g.By = DefaultBy
	}
	g.Limit.setDefaults()
}

func (g *Groups) checkParts() error {
	if g.By == "" {
		g.By = DefaultBy
	}
	return g.Limit.checkParts()
}
