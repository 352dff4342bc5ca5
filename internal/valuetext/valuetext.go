// Package valuetext answers how a person writes a value, and reads it: as in the configuration file.
package valuetext

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Parse reads a value, as in 10, 30s, all, {base: 1m} or [10s, 1m].
func Parse(text string) (json.RawMessage, error) {
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil || value == nil {
		return nil, fmt.Errorf("%.60q is no value: want one as in the configuration file, as 10, 30s or {base: 1m}", text)
	}
	return json.Marshal(value)
}

// Text is a value: text without quotes, "" for null.
func Text(value json.RawMessage) string {
	var text *string
	if len(value) == 0 || json.Unmarshal(value, &text) != nil {
		return string(value)
	}
	if text == nil {
		return ""
	}
	return *text
}

// Written is a value as it stands in the configuration file, in one line: {base: 1m, power: 2}, [10s, 1m]. Keys are in order of
// their names. [Parse] reads it as the same value.
func Written(value json.RawMessage) string {
	var list []json.RawMessage
	var object map[string]json.RawMessage
	switch {
	case len(value) == 0:
		return ""
	case value[0] == '[' && json.Unmarshal(value, &list) == nil:
		parts := make([]string, len(list))
		for i, v := range list {
			parts[i] = inside(v)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case value[0] == '{' && json.Unmarshal(value, &object) == nil:
		var parts []string
		for key, v := range object {
			name, _ := json.Marshal(key) // a text always is one
			parts = append(parts, inside(name)+": "+inside(v))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return Text(value)
}

// inside is a value within another one: a text keeps its quotes where it would not be read as that text without them.
func inside(value json.RawMessage) string {
	var text string
	if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &text) != nil {
		if string(value) == "null" {
			return "null"
		}
		return Written(value)
	}
	var read any
	if strings.ContainsAny(text, " ,:#'\"[]{}\\&*!|>%@`\t\n") || yaml.Unmarshal([]byte(text), &read) != nil || read != text {
		return string(value)
	}
	return text
}
