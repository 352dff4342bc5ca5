package node

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain looks for leaks for longer than goleak does by itself: gossip does not wait for
// its probes under way, and a busy machine lets anything end late.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
	}
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
