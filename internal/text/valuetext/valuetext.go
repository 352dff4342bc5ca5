// Package valuetext reads and writes values as people write them in the configuration file.
package valuetext

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxText is the largest number of bytes in a value's text. The YAML parser's time grows with the
// square of the number of brackets.
const maxText = 4 << 10

// Parse reads a value, for example 10, 30s, all, {base: 1m} or [10s, 1m]. It refuses aliases, because
// a few of them expand to gigabytes.
func Parse(text string) (json.RawMessage, error) {
	if len(text) > maxText && json.Valid([]byte(text)) {
		return json.RawMessage(text), nil // JSON needs no parser of YAML, and has no aliases
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("the value has %d bytes, at most %d are allowed", len(text), maxText)
	}
	file, err := parser.ParseBytes([]byte(text), 0)
	if err == nil && slices.ContainsFunc(file.Docs, func(d *ast.DocumentNode) bool { return d.Body != nil && len(ast.Filter(ast.AliasType, d)) > 0 }) {
		return nil, fmt.Errorf("%.60q has a YAML alias, write out the value it stands for", text)
	}
	var value any
	if err != nil || yaml.Unmarshal([]byte(text), &value) != nil || value == nil {
		return nil, fmt.Errorf("%.60q is no value: want one as in the configuration file, as 10, 30s or {base: 1m}", text)
	}
	return json.Marshal(value)
}

// Text returns a value as text. A string has no quotes, and null is "".
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

// Format returns a value on a single line as in the configuration file, for example
// {base: 1m, power: 2} or [10s, 1m]. Keys are sorted. [Parse] reads it as the same value.
func Format(value json.RawMessage) string {
	var list []json.RawMessage
	var object map[string]json.RawMessage
	switch {
	case len(value) == 0:
		return ""
	case value[0] == '[' && json.Unmarshal(value, &list) == nil:
		parts := make([]string, len(list))
		for i, v := range list {
			parts[i] = readableInside(v)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case value[0] == '{' && json.Unmarshal(value, &object) == nil:
		var parts []string
		for key, v := range object {
			name, _ := json.Marshal(key) // a string always marshals
			parts = append(parts, readableInside(name)+": "+readableInside(v))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return Text(value)
}

// readableInside returns a value that stands inside another. A string keeps its quotes if it would be
// read as something else without them.
func readableInside(value json.RawMessage) string {
	var text string
	if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &text) != nil {
		if string(value) == "null" {
			return "null"
		}
		return Format(value)
	}
	var read any
	if strings.ContainsAny(text, " ,:#'\"[]{}\\&*!|>%@`\t\n") || yaml.Unmarshal([]byte(text), &read) != nil || read != text {
		return string(value)
	}
	return text
}
