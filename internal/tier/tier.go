// Package tier says how much of the tests one run takes on. Three runs are asked for:
//
//	go test -short ./...   Short: what an edit is checked with, in a minute
//	make test              Usual: what a change must pass
//	make test-all          All: the same cases on every kind of Redis, and what takes minutes
package tier

import (
	"os"
	"testing"
)

// env is set by "make test-all".
const env = "LOWKIQ_TEST_ALL"

// IsAll reports whether everything is to run.
func IsAll() bool { return os.Getenv(env) != "" }

// Usual skips a test in short runs.
func Usual(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped by -short: make test runs it")
	}
}

// All skips a test unless everything is to run.
func All(t testing.TB) {
	t.Helper()
	if !IsAll() || testing.Short() {
		t.Skip("make test-all runs it")
	}
}

// Of picks what this run has: a number of rounds, a list of cases.
func Of[V any](short, usual, all V) V {
	switch {
	case testing.Short():
		return short
	case IsAll():
		return all
	}
	return usual
}
