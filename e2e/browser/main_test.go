//go:build linux

package browser

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
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
	code := m.Run()
	if shared.end != nil {
		shared.end()
	}
	if err := leaktest.Check(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	built.Remove() //nolint:errcheck // a temporary directory
	os.Exit(code)
}

// together is how many tabs are at work side by side.
const together = 4

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
