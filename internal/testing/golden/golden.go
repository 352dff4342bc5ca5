// Package golden keeps examples of every form that is stored or sent, from every release, for tests that read all of them.
// The examples are in testdata/golden/<release>/ of the tested package.
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

// release is the release whose examples are written today.
const release = "0.1"

// writeVariable makes tests write the examples of this release.
const writeVariable = "LOWKIQ_GOLDEN_WRITE"

// Check fails unless today equals the example of this release. It calls read with the example of each release, and read must
// fail the test if it cannot read the example. A release without the form has no file.
func Check(t *testing.T, name, today string, read func(t *testing.T, stored string)) {
	t.Helper()
	dir := filepath.Join("testdata", "golden")
	if os.Getenv(writeVariable) != "" {
		if err := writeExample(dir, name, today); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := loadExamples(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range slices.Sorted(maps.Keys(stored)) {
		t.Run(name+" of "+of, func(t *testing.T) { read(t, stored[of]) })
	}
	if err := checkExamples(stored, name, today); err != nil {
		t.Error(err)
	}
}

// checkExamples returns an error if today does not fit the examples by release.
func checkExamples(stored map[string]string, name, today string) error {
	example, found := stored[release]
	switch {
	case !found:
		return fmt.Errorf("no example of %s; run the test with %s=1, and commit it", name, writeVariable)
	case example != today:
		return fmt.Errorf("%s: today %q is written, the example of %s is %q; before a release a new example may replace it, after it a form "+
			"may only be added", name, today, release, example)
	}
	return nil
}

// writeExample stores today's example.
func writeExample(dir, name, today string) error {
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

// loadExamples reads the examples of a form by release. Each file is a Go string, so that each byte is visible.
func loadExamples(dir, name string) (map[string]string, error) {
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
			return nil, fmt.Errorf("%s: %w: it must be a Go string", file, err)
		}
	}
	return stored, nil
}

// File fails unless a file of the package has today's text, which is made from the source.
func File(t *testing.T, name, today string) {
	t.Helper()
	if os.Getenv(writeVariable) != "" {
		if err := os.WriteFile(name, []byte(today), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(stored) != today {
		t.Errorf("%s does not match the source; run the test with %s=1, check the difference, and commit it", name, writeVariable)
	}
}
