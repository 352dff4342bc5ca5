// Package golden keeps examples of every form that is stored or sent, of every release, for
// tests that read them all. They lie beside the test, in testdata/golden/<release>/.
package golden

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// release is the one whose examples are what is written today.
const release = "0.1"

// writeVariable makes tests write the examples of this release.
const writeVariable = "LOWKIQ_GOLDEN_WRITE"

// Check fails unless today is what this release writes, and calls read with what each
// release wrote: it must fail the test if that cannot be read. A release that did not
// have the form has no file.
func Check(t *testing.T, name, today string, read func(t *testing.T, stored string)) {
	t.Helper()
	dir := filepath.Join("testdata", "golden")
	if os.Getenv(writeVariable) != "" {
		if err := write(dir, name, today); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := load(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range slices.Sorted(maps.Keys(stored)) {
		t.Run(name+" of "+of, func(t *testing.T) { read(t, stored[of]) })
	}
	if err := changed(stored, name, today); err != nil {
		t.Error(err)
	}
}

// changed says what is wrong with what is written today, beside the examples by release.
func changed(stored map[string]string, name, today string) error {
	example, found := stored[release]
	switch {
	case !found:
		return fmt.Errorf("no example of %s; run the test with %s=1, and commit it", name, writeVariable)
	case example != today:
		return fmt.Errorf("%s: today %q is written, the example of %s is %q; before a release a new example may replace it, after it a form may only be added", name, today, release, example)
	}
	return nil
}

// write stores today's example.
func write(dir, name, today string) error {
	file := filepath.Join(dir, release, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	text := strconv.Quote(today)
	if strconv.CanBackquote(today) {
		text = "`" + today + "`"
	}
	return os.WriteFile(file, []byte(text+"\n"), 0o644)
}

// load reads the examples of a form by release: each a Go string, so that each byte can be seen.
func load(dir, name string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", name))
	if err != nil {
		return nil, err
	}
	stored := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		of := filepath.Base(filepath.Dir(file))
		if stored[of], err = strconv.Unquote(strings.TrimSpace(string(text))); err != nil {
			return nil, fmt.Errorf("%s: %w: want a Go string", file, err)
		}
	}
	return stored, nil
}
