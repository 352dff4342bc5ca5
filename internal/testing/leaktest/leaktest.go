// Package leaktest answers one question for tests: do all goroutines end?
//
// [Main] waits longer than goleak does by itself, for packages whose goroutines may end late. Gossip does not wait for its
// open probes, which a busy machine stretches eightfold, and it closes connections late.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end.
const patience = time.Minute

// Main runs the tests of a package, and fails them if goroutines are left at the end. It does not return.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main for a package that does something else before it ends with the code that Run returns.
func Run(m *testing.M) (code int) {
	if code = m.Run(); code != 0 {
		return code
	}
	if err := Check(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Check waits until no goroutine is left, and returns an error that names those that do not end.
func Check() error { return awaitNone(findGoroutines, patience) }

func findGoroutines() error { return goleak.Find() }

// awaitNone repeats find until it returns nil. When patience is over, it returns the last result.
func awaitNone(find func() error, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		err := find() // find waits for a moment by itself
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
