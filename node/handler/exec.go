package handler

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/logbuf"
)

// ExecConfig says which child processes handle batches. A child reads batches of package wire from
// stdin, one per line. It writes an answer per line to stdout. Its stderr is logged.
type ExecConfig struct {
	Argv      []string     // the command and its arguments; no shell is involved
	Processes int          // number of children; default DefaultProcesses
	Dir       string       // working directory; default the node's
	Env       []string     // "KEY=value", added to the node's environment without its LOWKIQ_* variables
	Log       *slog.Logger // default slog.Default(); nothing waits for it, as for node.Config.Log
}

// DefaultProcesses returns GOMAXPROCS, the number of CPUs that the process may use. Programs in most languages use a single
// CPU.
func DefaultProcesses() int { return runtime.GOMAXPROCS(0) }

// Validate returns an error that names the first wrong field.
func (c ExecConfig) Validate() error {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return errors.New(`exec: empty, want a command such as [python3, handler.py]`)
	}
	for _, arg := range c.Argv {
		if strings.IndexByte(arg, 0) >= 0 {
			return fmt.Errorf("exec: %q contains a zero byte", arg)
		}
	}
	for _, env := range c.Env {
		if key, _, ok := strings.Cut(env, "="); !ok || key == "" {
			return fmt.Errorf("env: %q, want KEY=value", env)
		}
	}
	if c.Processes < 0 {
		return fmt.Errorf("processes: %d, want 1 or more", c.Processes)
	}
	return nil
}

// withDefaults also finds the command. A missing command is then an error of the configuration, and
// not of each job.
func (c ExecConfig) withDefaults() (ExecConfig, string, error) {
	if c.Processes == 0 {
		c.Processes = DefaultProcesses()
	}
	c.Log = logbuf.Logger(cmp.Or(c.Log, slog.Default()))
	path, err := findExecutable(c.Argv[0], c.Dir)
	return c, path, err
}

// findExecutable resolves a command. A command with a slash is relative to the child's working
// directory, as in os/exec.
func findExecutable(name, dir string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) && !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
		if !strings.ContainsRune(name, filepath.Separator) {
			name = "." + string(filepath.Separator) + name // Join has dropped the dot, and LookPath must not search PATH
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// backoffAfter returns the pause before a child is started again. It is 100 ms, and doubles up to 10 s
// with each child in a row that has answered nothing and was not told to stop. A random part of up to
// a half is cut off, so that the children of many nodes do not restart at the same time.
func backoffAfter(inARow int, random float64) time.Duration {
	const first, most = 100 * time.Millisecond, 10 * time.Second
	pause := most
	if inARow < 7 {
		pause = min(first<<max(inARow, 0), most)
	}
	return pause/2 + time.Duration(random*float64(pause/2))
}
