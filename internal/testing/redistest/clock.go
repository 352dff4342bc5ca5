package redistest

import (
	_ "embed"
	endian "encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockSource is the source of a library that shifts the wall clock of a server. libfaketime exists for that, but it and the
// jemalloc of redis-server crash before main.
//
//go:embed clock.c.txt
var clockSource []byte

// clockEnv names the variable with the file that holds the shift, for clock.c.txt.
const clockEnv = "REDISTEST_CLOCK"

// Clock is the wall clock of a server's host.
type Clock struct {
	t    testing.TB
	file string
}

// StartClocked starts a server, as [Start] does, on a host whose wall clock can be set. It needs Linux and a C compiler.
// Without a compiler the test is skipped with a message.
func StartClocked(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	c := newClock(t)
	return startServer(t, nil, func(p *port, dir string) ([]string, error) {
		return append(serverArgs(p, dir), args...), nil
	}, c.environment()...), c
}

func newClock(t testing.TB) *Clock {
	t.Helper()
	c := &Clock{t: t, file: filepath.Join(t.TempDir(), "clock")}
	c.Set(0)
	return c
}

// environment returns the variables that make a server use this clock.
func (c *Clock) environment() []string {
	c.t.Helper()
	return []string{"LD_PRELOAD=" + c.compileLibrary(), clockEnv + "=" + c.file}
}

// Set shifts the clock by a duration, at once.
func (c *Clock) Set(off time.Duration) {
	c.t.Helper()
	// Write in place, because the server has mapped the file.
	file, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = file.Write(endian.NativeEndian.AppendUint64(nil, uint64(off)))
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		c.t.Fatalf("set the clock: %v", err)
	}
}

func (c *Clock) compileLibrary() (library string) {
	c.t.Helper()
	cc, err := exec.Command("go", "env", "CC").Output()
	compiler := strings.TrimSpace(string(cc))
	if _, lookErr := exec.LookPath(compiler); err != nil || lookErr != nil {
		c.t.Skipf("SKIPPED: no clock of Redis can be set without a C compiler (%q): apt-get install gcc libc6-dev", compiler)
	}
	library = filepath.Join(c.t.TempDir(), "clock.so")
	source := filepath.Join(c.t.TempDir(), "clock.c")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		c.t.Fatal(err)
	}
	if out, err := exec.Command(compiler, "-O2", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		c.t.Fatal(fmt.Errorf("%s: %w\n%s", compiler, err, out))
	}
	return library
}
