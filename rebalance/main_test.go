package rebalance

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain looks for leaks for longer than goleak does by itself: a busy machine lets Raft's
// connections end late.
func TestMain(m *testing.M) {
	code := m.Run()
	for deadline := time.Now().Add(patience); code == 0; {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
