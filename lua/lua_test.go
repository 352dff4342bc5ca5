package lua

import (
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripts returns the names of all files, and which of them only others include.
func scripts(t *testing.T) (all []string, included map[string]bool) {
	t.Helper()
	entries, err := files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	included = map[string]bool{}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".lua")
		all = append(all, name)
		for _, found := range regexp.MustCompile(`(?m)^--#include (\S+)$`).FindAllStringSubmatch(text(t, name), -1) {
			included[found[1]] = true
		}
	}
	return all, included
}

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := files.ReadFile(name + ".lua")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSourceExpandsIncludes(t *testing.T) {
	t.Parallel()
	all, included := scripts(t)
	if len(all) < 20 || len(included) < 5 {
		t.Fatalf("got %d scripts, %d included ones, want more", len(all), len(included))
	}
	for _, name := range all {
		if source := Source(name); strings.Contains(source, "--") && strings.Contains(source, "#include") || source == "" {
			t.Errorf("%s: got an include or nothing in %q", name, source)
		}
	}
	if !strings.Contains(Source("ack"), "local function settle(") {
		t.Error("ack: got no settle, want the text of its include")
	}
}

// The header is the contract: purpose, and for what Redis runs its keys and answer.
func TestHeaders(t *testing.T) {
	t.Parallel()
	all, included := scripts(t)
	for _, name := range all {
		header, _, _ := strings.Cut(text(t, name), "\nlocal ")
		words := []string{"-- KEYS", "-- Returns"}
		if included[name] {
			words = []string{"-- Included"}
		}
		for _, want := range words {
			if !strings.Contains(header, want) {
				t.Errorf("%s.lua: got a header without %q", name, want)
			}
		}
	}
}

// The embedded Redis unfolds a whole string for string.byte(s), and its string.format
// and tonumber differ from Redis's: see record.lua.
func TestPortable(t *testing.T) {
	t.Parallel()
	bad := regexp.MustCompile(`string\.byte\([^,()]*\)|cmsgpack|cjson|struct\.|tonumber\([a-z.]*score`)
	all, _ := scripts(t)
	for _, name := range all {
		if found := bad.FindString(Source(name)); found != "" {
			t.Errorf("%s: got %q, want what runs the same on the embedded Redis", name, found)
		}
	}
	for _, script := range []string{"string.byte(x)", "cmsgpack.pack", "tonumber(job.score"} {
		if !bad.MatchString(script) {
			t.Errorf("%q passes, want an objection", script)
		}
	}
}

func TestUnknownScriptPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("unknown script: got no panic")
		}
	}()
	Source("nonsense")
}
