//go:build linux

package browser

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lowkiq/lowkiq/internal/nodebin"
)

// built is lowkiq-node for all tests. TestMain removes it.
var built nodebin.Binary

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		built.Remove() //nolint:errcheck // a temporary directory
		os.Exit(code)
	}))
}

func binary(t testing.TB) string { return built.Path(t, "../..") }

// await waits until a condition holds.
func await(t testing.TB, what string, limit time.Duration, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
