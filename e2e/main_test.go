//go:build linux

package e2e

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

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
	roles := map[string]func() error{"worker": work, "child": serveBatches, "rogue": goRogue}
	if role, ok := roles[os.Getenv(roleEnv)]; ok {
		if err := role(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		built.Remove() //nolint:errcheck // a temporary directory
		os.Exit(code)
	}))
}
