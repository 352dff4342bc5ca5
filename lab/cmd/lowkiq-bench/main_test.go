package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestMain is also the main of the lowkiq-bench that the scripts run.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"lowkiq-bench": main})
}

func TestScripts(t *testing.T) {
	tier.All(t)
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("LOWKIQ_REDIS", redistest.Start(t).URL())
			env.Setenv("GORACE", "atexit_sleep_ms=0") // or every command ends a second late
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits},
	})
}
