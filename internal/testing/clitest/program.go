package clitest

import (
	"os/exec"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// Program returns the path of a program, such as an interpreter. make test skips a test that needs more than is installed,
// and says what it has not run. make test-all fails.
func Program(t testing.TB, name, untested string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case tier.IsAll():
		t.Fatalf("%s is not on PATH, and %s needs it", name, untested)
	default:
		t.Skipf("SKIPPED: %s is not on PATH, so %s was NOT run; install %s to run it", name, untested, name)
	}
	return path
}
