package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// A key of a queue in the file can be changed at run time, or says why not; the bounds are the same.
func TestRulesAreThoseOfTheFile(t *testing.T) {
	t.Parallel()
	var inFile []string
	for field := range reflect.TypeFor[config.Queue]().Fields() {
		key := field.Tag.Get("yaml")
		inFile = append(inFile, key)
		fixed := rules.Fixed()[key] != ""
		if fixed == slices.Contains(rules.Keys(), key) {
			t.Errorf("%s: want it among those that change at run time, or among those that do not", key)
		}
		bound := func(value string, good bool) {
			if _, err := rules.Check(key, json.RawMessage(value)); (err == nil) != good {
				t.Errorf("%s: %s: got %v; the file takes %s to %s", key, value, err, field.Tag.Get("min"), field.Tag.Get("max"))
			}
		}
		low, high := field.Tag.Get("min"), field.Tag.Get("max")
		switch {
		case fixed || low == "":
		case field.Type.Elem().Kind() == reflect.Int:
			var least, most int
			fmt.Sscan(low, &least)
			fmt.Sscan(high, &most)
			bound(fmt.Sprint(least), true)
			bound(fmt.Sprint(most), true)
			bound(fmt.Sprint(least-1), false)
			bound(fmt.Sprint(most+1), false)
		default:
			bound(`"`+low+`"`, true)
			bound(`"`+high+`"`, true)
			bound(`"-1s"`, false)
			bound(`"`+strings.TrimSuffix(high, "h")+`1h"`, false)
		}
		for word := range strings.SplitSeq(field.Tag.Get("oneof"), ",") {
			if word != "" {
				bound(`"`+word+`"`, true)
			}
		}
	}
	for _, key := range append(rules.Keys(), "shards", "handler") {
		if key != "tracked" && key != "holds" && !slices.Contains(inFile, key) {
			t.Errorf("%s: it is no key of the file", key)
		}
	}
}
