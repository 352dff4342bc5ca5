//go:build linux

package browser

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
)

// built is lowkiq-node for all tests. TestMain removes it.
var built nodebin.Binary

func TestMain(m *testing.M) {
	flag.Parse()
	parallel := flag.Lookup("test.parallel").Value
	if n, err := strconv.Atoi(parallel.String()); err == nil && n < together {
		_ = parallel.Set(strconv.Itoa(together)) // a number is one
	}
	goleak.VerifyTestMain(tests{m}, goleak.Cleanup(func(code int) {
		built.Remove() //nolint:errcheck // a temporary directory
		os.Exit(code)
	}))
}

// together is how many tabs are at work side by side.
const together = 4

// tests are all tests, and the end of their browser.
type tests struct{ m *testing.M }

func (t tests) Run() int {
	defer func() {
		if shared.end != nil {
			shared.end()
		}
	}()
	return t.m.Run()
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
