// Package unknownfields rewrites stored JSON without losing the fields of a later release.
package unknownfields

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Keep encodes a struct that was decoded from stored and has been changed since. The result has the
// fields of the struct first, then the fields of stored that its type does not have, by name.
func Keep(value any, stored []byte) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(stored, &fields); err != nil {
		return nil, fmt.Errorf("fields of another release: %w", err)
	}
	for _, name := range fieldNames(value) {
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

// fieldNames returns the JSON names of a struct's fields.
func fieldNames(value any) (list []string) {
	for _, field := range reflect.VisibleFields(reflect.Indirect(reflect.ValueOf(value)).Type()) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			list = append(list, name)
		}
	}
	return list
}
