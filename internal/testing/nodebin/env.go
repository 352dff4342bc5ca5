package nodebin

import (
	"os"
	"strings"
)

// Env returns the environment of a process that a test starts: that of the test without LOWKIQ_… variables, and more.
// lowkiq-node takes LOWKIQ_… variables for settings and refuses those of tests, such as LOWKIQ_TEST_ALL of make test-all.
// Under the race detector a process ends at once.
func Env(more ...string) []string {
	env := []string{"GORACE=atexit_sleep_ms=0"} // otherwise each process sleeps for a second at its end
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, "LOWKIQ_") {
			env = append(env, line)
		}
	}
	return append(env, more...)
}
