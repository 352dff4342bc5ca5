package nodebin

import (
	"slices"
	"testing"
)

func TestEnvLeavesOutWhatTestsAreToldBy(t *testing.T) {
	t.Setenv("LOWKIQ_TEST_ALL", "1")
	t.Setenv("NODEBIN_TEST", "stays")
	env := Env("LOWKIQ_REDIS=given")
	if slices.Contains(env, "LOWKIQ_TEST_ALL=1") || !slices.Contains(env, "NODEBIN_TEST=stays") || env[len(env)-1] != "LOWKIQ_REDIS=given" {
		t.Errorf("got %q", env)
	}
}
