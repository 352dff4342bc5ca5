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

// clockSource is the library that makes a server's wall clock wrong. (libfaketime, which is
// made for that, and the jemalloc of redis-server end each other before main.)
//
//go:embed clock.c.txt
var clockSource []byte

// clockEnv names the file that holds by how much, for clock.c.txt.
const clockEnv = "REDISTEST_CLOCK"

// Clock is the wall clock of one server's host.
type Clock struct {
	t    testing.TB
	file string
}

// StartClocked is Start on a host of which the wall clock can be set. It needs Linux and a
// C compiler: without one the test is skipped, and says so.
func StartClocked(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	c := newClock(t)
	return startServer(t, nil, func(p *port, dir string) ([]string, error) {
		return append(serverArgs(p, dir), args...), nil
	}, c.env()...), c
}

func newClock(t testing.TB) *Clock {
	t.Helper()
	c := &Clock{t: t, file: filepath.Join(t.TempDir(), "clock")}
	c.Set(0)
	return c
}

// env has a server that is started with it see this clock.
func (c *Clock) env() []string {
	c.t.Helper()
	return []string{"LD_PRELOAD=" + c.compile(), clockEnv + "=" + c.file}
}

// Set makes the clock wrong by a duration, at once.
func (c *Clock) Set(off time.Duration) {
	c.t.Helper()
	// In place: the server has the file mapped.
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

func (c *Clock) compile() (library string) {
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
