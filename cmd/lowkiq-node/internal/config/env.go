package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Prefix of the environment variables.
const Prefix = "LOWKIQ_"

// fromEnv turns LOWKIQ_* variables into overrides, in order of their names.
func (cfg *Config) fromEnv(env []string) ([]Override, error) {
	keys := cfg.keys()
	byName := make(map[string]string, len(keys))
	for _, key := range keys {
		byName[EnvName(key)] = key
	}
	var overrides []Override
	for _, line := range slices.Sorted(slices.Values(env)) {
		name, value, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(name, Prefix) || slices.Contains(reserved(), name) {
			continue
		}
		key, ok := byName[name]
		if !ok {
			known := slices.Concat(slices.Sorted(maps.Keys(byName)), reserved())
			return nil, &Error{Place: name, Reason: "unknown environment variable" + suggestion(name, known)}
		}
		overrides = append(overrides, Override{Source: name, Key: key, Value: value})
	}
	return overrides, nil
}

// EnvName is the variable that sets a key.
func EnvName(key string) string {
	return Prefix + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
}

// keys lists every key that can be set, those of the queues that are there included.
func (cfg *Config) keys() []string {
	keys := leaves(reflect.TypeFor[Config](), "")
	for _, name := range slices.Sorted(maps.Keys(cfg.Queues)) {
		keys = append(keys, leaves(reflect.TypeFor[Queue](), "queues."+name+".")...)
	}
	return keys
}

func leaves(t reflect.Type, prefix string) []string {
	var keys []string
	for field := range t.Fields() {
		key := field.Tag.Get("yaml")
		switch {
		case key == "" || field.Type.Kind() == reflect.Map:
		case field.Type.Kind() == reflect.Struct:
			keys = append(keys, leaves(field.Type, prefix+key+".")...)
		default:
			keys = append(keys, prefix+key)
		}
	}
	return keys
}

// suggestion is `; did you mean "x"?` for the nearest of the known names, or names
// them all if they are few.
func suggestion(name string, known []string) string {
	best, least := "", len(name)/2+1
	for _, k := range known {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %q?", best)
	case len(known) <= 16:
		return " (known: " + strings.Join(known, ", ") + ")"
	}
	return ""
}

// distance is Levenshtein's: how many letters to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
