// Package extra rewrites stored JSON without losing the fields of a later release.
package extra

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Keep encodes a struct that was read from stored and has been changed since: its own
// fields first, then those of stored, by name, that its type does not have.
func Keep(value any, stored []byte) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(stored, &fields); err != nil {
		return nil, fmt.Errorf("fields of another release: %w", err)
	}
	for _, name := range names(value) {
		delete(fields, name)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		data = bytes.TrimSuffix(data, []byte("}"))
		if !bytes.HasSuffix(data, []byte("{")) {
			data = append(data, ',')
		}
		data = append(append(append(append(data, key...), ':'), fields[name]...), '}')
	}
	return data, nil
}

// names are those of a struct's fields in JSON.
func names(value any) (list []string) {
	for _, field := range reflect.VisibleFields(reflect.Indirect(reflect.ValueOf(value)).Type()) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			list = append(list, name)
		}
	}
	return list
}
