// Package leaktest answers one question for tests: do all goroutines end?
//
// [Main] looks for longer than goleak does by itself, for packages whose goroutines may end
// late: gossip does not wait for its probes under way, which a busy machine stretches
// eightfold, and lets connections end when it comes to it.
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

// Main runs a package's tests, and fails them if goroutines are left in the end. It does not return.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := await(goroutines, patience); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func goroutines() error { return goleak.Find() }

// await asks until nothing is found, and returns what is found when patience has run out.
func await(find func() error, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		err := find() // it waits for a moment itself
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
