package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func client(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := newClient(addr)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestServerTakesArguments(t *testing.T) {
	t.Parallel()
	s := Start(t, "--maxmemory", "12mb", "--appendonly", "yes")
	options, err := redis.ParseURL(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if options.Addr != s.Addr() || options.DB != 0 {
		t.Errorf("URL %s: got %s database %d, want %s database 0", s.URL(), options.Addr, options.DB, s.Addr())
	}
	config, err := client(t, s.Addr()).ConfigGet(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"maxmemory": "12582912", "appendonly": "yes", "save": "", "bind": "127.0.0.1"} {
		if config[name] != want {
			t.Errorf("config %s: got %q, want %q", name, config[name], want)
		}
	}
}

func TestServerFaults(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Server){"stop": (*Server).Stop, "kill": (*Server).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Start(t)
			c := client(t, s.Addr())
			c.Set(t.Context(), "k", "v", 0)
			first := s.PID()
			end(s)
			if alive(first) {
				t.Errorf("process %d lives after %s", first, name)
			}
			if err := c.Ping(t.Context()).Err(); err == nil {
				t.Errorf("ping after %s: got nil, want an error", name)
			}
			s.Restart()
			if s.PID() == first {
				t.Errorf("pid after restart: got the old one, %d", first)
			}
			if n, err := c.DBSize(t.Context()).Result(); n != 0 || err != nil {
				t.Errorf("keys after restart: got %d, %v, want 0", n, err)
			}
		})
	}
}

func TestRestartKeepsTheFiles(t *testing.T) {
	t.Parallel()
	s := Start(t, "--appendonly", "yes")
	c := client(t, s.Addr())
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	if got, err := c.Get(t.Context(), "k").Result(); got != "v" {
		t.Errorf("k after a restart with an append-only file: got %q, %v, want v", got, err)
	}
}

func TestPausedServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := Start(t)
	c := client(t, s.Addr())
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	paused := c.WithTimeout(200 * time.Millisecond)
	defer func() { _ = paused.Close() }()
	if err := paused.Ping(ctx).Err(); err == nil {
		t.Error("ping of a paused server: got nil, want a timeout")
	}
	s.Resume()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Errorf("ping after resume: %v", err)
	}
	s.Pause()
	s.Stop()
	if alive(s.PID()) {
		t.Error("a paused server outlived Stop")
	}
}

func TestServerIsGoneAfterItsTest(t *testing.T) {
	t.Parallel()
	var s *Server
	t.Run("inner", func(t *testing.T) { s = Start(t) })
	if alive(s.PID()) {
		t.Errorf("process %d outlived its test", s.PID())
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory %s outlived its test: %v", s.dir, err)
	}
}

func TestServerDiesWithItsTest(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // only Linux promises it, see the package doc
	}
	test := exec.Command(os.Args[0], "-test.run=^TestOrphan$")
	test.Env = append(os.Environ(), orphanEnv+"=1", "TMPDIR="+t.TempDir())
	out, err := test.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := test.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(out).ReadString('\n')
	_ = test.Process.Kill()
	_ = test.Wait()
	var pid int
	if _, err := fmt.Sscanf(line, "pid %d", &pid); err != nil {
		t.Fatalf("child said %q (%v), want its server's pid", line, readErr)
	}
	eventually(t, "server gone after its test was killed", func() bool { return !running(pid) })
}

// running is alive without zombies, which a container's first process may not reap.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestFailedStartShowsTheLog(t *testing.T) {
	t.Parallel()
	p, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, binary: requireBinary(t), dir: t.TempDir(), port: p}
	defer p.release()
	s.argv = append(serverArgs(p, s.dir), "--no-such-setting", "1")
	err = s.launch()
	if err == nil {
		s.Kill()
		t.Fatal("launch with an unknown setting: got nil, want an error")
	}
	for _, want := range []string{p.addr(), "died at its start", "no-such-setting"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error: got %q, want it to contain %q", err, want)
		}
	}
}

func TestTakenPortIsToldApart(t *testing.T) {
	t.Parallel()
	taken := Start(t)
	s := &Server{t: t, binary: taken.binary, dir: t.TempDir(), port: taken.port}
	argv := serverArgs(taken.port, s.dir)
	p, err := launchProcess(s.binary, s.dir, argv)
	if err != nil {
		t.Fatal(err)
	}
	<-p.done
	if err := s.awaitPing(p); !errors.Is(err, errPortTaken) {
		t.Errorf("second server on %s: got %v, want %v", s.Addr(), err, errPortTaken)
	}
}

func TestReservedPortIsTaken(t *testing.T) {
	t.Parallel()
	p, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reserveNumber(p.number); err == nil {
		t.Errorf("port %d reserved twice", p.number)
	}
	p.release()
	comesBack(t, p)
}

// comesBack waits until a port that was released can be reserved: a process that is forked
// meanwhile has a copy of its lock for an instant.
func comesBack(t *testing.T, p *port) {
	t.Helper()
	eventually(t, "a released port can be reserved", func() bool {
		again, err := reserveNumber(p.number)
		if err == nil {
			again.release()
		}
		return err == nil
	})
}

func TestAddressesAreOnesOwn(t *testing.T) {
	t.Parallel()
	var row []string
	t.Run("inner", func(t *testing.T) {
		row = Addresses(t, 3)
		first, err := strconv.Atoi(strings.TrimPrefix(row[0], "127.0.0.1:"))
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range row {
			if want := localAddress(first + i); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		if got, err := reserveNumbers(first, 1); err == nil {
			t.Errorf("got %v, want an error: it is taken", got)
		}
	})
	for _, one := range row {
		l, err := Listen(one)
		if err != nil {
			t.Fatalf("after the test: %v", err)
		}
		l.Close()
	}
}

func TestRowIsReservedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	row, err := reserveRow(2)
	if err != nil {
		t.Fatal(err)
	}
	defer row[1].release()
	row[0].release()
	if got, err := reserveNumbers(row[0].number, 2); err == nil {
		t.Fatalf("got %v, want an error: the second is taken", got)
	}
	comesBack(t, row[0])
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, line string
		ok         bool
	}{
		{"old", "Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64", false},
		{"oldest that does", "Redis server v=6.2.0 sha=00000000:0", true},
		{"newer", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", true},
		{"two digits", "Redis server v=10.1.0", true},
		{"something else", "hello", false},
		{"empty", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := checkVersion(c.line)
			if (err == nil) != c.ok {
				t.Errorf("checkVersion(%q): got %v, want ok %t", c.line, err, c.ok)
			}
			if err != nil && !errors.Is(err, errMissing) {
				t.Errorf("checkVersion(%q): got %v, want it to say what to install", c.line, err)
			}
		})
	}
}

func TestMissingRedisSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", filepath.Join(t.TempDir(), "empty"))
	if _, err := findBinary(); !errors.Is(err, errMissing) {
		t.Errorf("without redis-server: got %v, want %v", err, errMissing)
	}
}

func TestOldServerIsTheOneAskedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "redis-server")
	if err := os.Symlink(requireBinary(t), path); err != nil {
		t.Fatal(err)
	}
	t.Setenv(OldEnv, "")
	if s := StartOld(t); s.binary != requireBinary(t) {
		t.Errorf("without %s it is %s, want that on PATH", OldEnv, s.binary)
	}
	t.Setenv(OldEnv, path)
	if s := StartOld(t); s.binary != path {
		t.Errorf("it is %s, want %s", s.binary, path)
	}
}
