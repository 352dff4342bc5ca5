// Package valuetext answers how a person writes a value, and reads it: as in the configuration file.
package valuetext

import (
	"encoding/json"
	"fmt"

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
