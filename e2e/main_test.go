//go:build linux

package e2e

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/node/handler"
)

// What makes the test binary another program: a role, and its settings as JSON.
const (
	roleEnv     = "E2E_ROLE"
	settingsEnv = "E2E_SETTINGS"
	tagEnv      = "E2E_TAG"     // the same for all processes of a test, and theirs
	historyEnv  = "E2E_HISTORY" // where exec children write
)

func TestMain(m *testing.M) {
	handler.Guard()
	roles := map[string]func() error{"worker": work, "child": serveBatches}
	if role, ok := roles[os.Getenv(roleEnv)]; ok {
		if err := role(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	waitTogether()
	code := leaktest.Run(m)
	built.Remove() //nolint:errcheck // a temporary directory
	os.Exit(code)
}

// together is how many tests run side by side: they mostly wait for leases and processes, but with more of them two cores
// are late for leases.
const together = 3

// waitTogether makes it so, unless -parallel asks for more.
func waitTogether() {
	flag.Parse()
	parallel := flag.Lookup("test.parallel").Value
	if n, err := strconv.Atoi(parallel.String()); err == nil && n < together {
		_ = parallel.Set(strconv.Itoa(together)) // a number is one
	}
}
