// Package tier decides which tests a run includes. There are three tiers, and each includes the tiers before it:
//
//	make check      Short: tests of logic, and of a Redis per package
//	make test       Usual: the product on one real Redis, with clusters of real processes
//	make test-all   All: other kinds of Redis, a browser, Ruby, containers, and tests that take minutes
package tier

import (
	"os"
	"testing"
)

// env is set by "make test-all".
const env = "LOWKIQ_TEST_ALL"

// IsAll reports whether the run includes all tests.
func IsAll() bool { return os.Getenv(env) != "" }

// Usual skips a test in short runs.
func Usual(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped by -short: make test runs it")
	}
}

// All skips a test unless the run includes all tests.
func All(t testing.TB) {
	t.Helper()
	if !IsAll() || testing.Short() {
		t.Skip("make test-all runs it")
	}
}

// Of returns the value for this run, such as a number of rounds or a list of cases.
func Of[V any](short, usual, all V) V {
	switch {
	case testing.Short():
		return short
	case IsAll():
		return all
	}
	return usual
}
