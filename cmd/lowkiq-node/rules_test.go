package main

import (
	"reflect"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/config"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// A key of a queue in the file is a rule, which changes at run time, or says why it does not.
func TestRulesAreThoseOfTheFile(t *testing.T) {
	t.Parallel()
	for field := range reflect.TypeFor[config.Queue]().Fields() {
		if key := field.Tag.Get("yaml"); key != "" && rules.Fixed()[key] == "" {
			t.Errorf("%s: want it among the rules, or among the keys that do not change", key)
		}
	}
}
