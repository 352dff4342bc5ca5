package nodebin

import (
	"os"
	"strings"
)

// Env is the environment of a process that a test starts, and more of it: the test's own without LOWKIQ_…, as lowkiq-node takes these for its settings and
// refuses those of tests, such as LOWKIQ_TEST_ALL of make test-all. Under the race detector a process ends at once.
func Env(more ...string) []string {
	env := []string{"GORACE=atexit_sleep_ms=0"} // or each would sleep for a second at its end
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, "LOWKIQ_") {
			env = append(env, line)
		}
	}
	return append(env, more...)
}
