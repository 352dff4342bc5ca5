package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/internal/text/suggest"
)

// Prefix begins the names of the environment variables.
const Prefix = "LOWKIQ_"

// fromEnv turns LOWKIQ_* variables into overrides of known settings, in order of the names.
func fromEnv(env []string, known []setting) ([]Override, error) {
	byName := make(map[string][]string, len(known))
	for _, s := range known {
		byName[EnvName(s.key)] = append(byName[EnvName(s.key)], s.key)
	}
	var overrides []Override
	for _, line := range slices.Sorted(slices.Values(env)) {
		name, value, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(name, Prefix) || slices.Contains(reservedVariables(), name) {
			continue
		}
		keys := byName[name]
		switch len(keys) {
		case 0:
			return nil, &Error{Place: name, Reason: "unknown environment variable" + explainVariable(line, slices.Sorted(maps.Keys(byName)))}
		case 1:
			if value == "" {
				continue
			}
			overrides = append(overrides, Override{Source: name, Key: keys[0], Value: value})
		default:
			return nil, &Error{Place: name, Reason: "it could mean " + strings.Join(keys, " or ") + ": set these in the file"}
		}
	}
	return overrides, nil
}

// serviceLink matches the variables that Kubernetes sets for a Service named lowkiq or lowkiq-….
var serviceLink = regexp.MustCompile(`^LOWKIQ(_\w+)?_(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT_\d+_[A-Z]+(_\w+)?=|PORT=\w+://)`)

// explainVariable says why an unknown variable, given as NAME=value, may be set.
func explainVariable(line string, known []string) string {
	if serviceLink.MatchString(line) {
		return ", set by Kubernetes for a Service: enableServiceLinks: false in the pod's spec leaves it out"
	}
	name, _, _ := strings.Cut(line, "=")
	text := suggestName(name, slices.Concat(known, reservedVariables()))
	if strings.HasPrefix(name, Prefix+"QUEUES_") {
		text += " A variable changes a queue of the file, it adds none."
	}
	return text
}

// EnvName returns the name of the variable that sets a key.
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

// suggestName returns `; did you mean "x"?` for the nearest known name, or lists all names if they are few.
func suggestName(name string, known []string) string {
	meant := suggest.NearestName(name, known, len(name)/2+1)
	switch {
	case meant != "":
		return fmt.Sprintf("; did you mean %q?", meant)
	case len(known) <= 16:
		return " (known: " + strings.Join(known, ", ") + ")"
	}
	return ""
}
