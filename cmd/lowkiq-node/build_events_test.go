package main

import (
	"context"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
)

// teller is a handler that takes events.
type teller struct{ told []lowkiq.EventKind }

func (*teller) Handle(context.Context, *lowkiq.Batch) error { return nil }

func (h *teller) Event(_ context.Context, e *lowkiq.Event) error {
	h.told = append(h.told, e.Kind)
	return nil
}

// A handler is told of the events that the configuration names, and of no others.
func TestSetHooks(t *testing.T) {
	t.Parallel()
	h := &teller{}
	hooks := func(events ...string) map[lowkiq.EventKind]lowkiq.Hook {
		var rules node.QueueConfig
		setHooks(&rules, events, h)
		return map[lowkiq.EventKind]lowkiq.Hook{lowkiq.Recovered: rules.OnRecovered, lowkiq.Buried: rules.OnBuried, lowkiq.Exhausted: rules.OnExhausted}
	}
	for kind := range hooks() {
		for other, hook := range hooks(string(kind)) {
			if (hook != nil) != (other == kind) {
				t.Errorf("events: [%s]: hook of %s is there: %v", kind, other, hook != nil)
			}
		}
		if err := hooks(string(kind))[kind](t.Context(), &lowkiq.Event{Kind: kind}); err != nil {
			t.Error(err)
		}
	}
	if len(h.told) != 3 {
		t.Errorf("told %q, want each once", h.told)
	}
}
