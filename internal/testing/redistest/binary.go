package redistest

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// errMissing is the error of a test on a machine without Redis.
var errMissing = errors.New("redis-server >= 6.2 not found on PATH: apt-get install redis-server")

// OldEnv is the environment variable with the path of the redis-server that [StartOld] runs. Its version may be any.
const OldEnv = "LOWKIQ_OLD_REDIS"

// requireBinary returns the path of a redis-server that is new enough. Without it the test fails.
func requireBinary(t testing.TB) string {
	t.Helper()
	path, err := findBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func findBinary() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", errMissing
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	return path, checkVersion(string(out))
}

var versionPattern = regexp.MustCompile(`\bv=(\d+)\.(\d+)`)

// checkVersion checks the version in the output of "redis-server --version".
func checkVersion(line string) error {
	m := versionPattern.FindStringSubmatch(line)
	if m == nil {
		return fmt.Errorf("%w (found one that says %q)", errMissing, line)
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major < 6 || major == 6 && minor < 2 {
		return fmt.Errorf("%w (found %d.%d)", errMissing, major, minor)
	}
	return nil
}
