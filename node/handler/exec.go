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

	"github.com/lowkiq/lowkiq/internal/logbuf"
)

// ExecConfig says which child processes handle batches. A child reads one batch of
// package wire per line from stdin and writes one answer per line to stdout. What it
// writes to stderr is logged.
type ExecConfig struct {
	Argv      []string     // the command and its arguments; no shell is involved
	Processes int          // children at once; default DefaultProcesses
	Dir       string       // working directory; default the node's
	Env       []string     // "KEY=value", added to the node's environment without its LOWKIQ_* variables
	Log       *slog.Logger // default: slog.Default(). As for node.Config.Log, nothing waits for it
}

// DefaultProcesses is one child per CPU (GOMAXPROCS): programs in most languages use one at a time.
func DefaultProcesses() int { return runtime.GOMAXPROCS(0) }

// Validate names the field that is wrong.
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

// withDefaults also finds the command, so that a missing one is an error of the
// configuration, not of a job.
func (c ExecConfig) withDefaults() (ExecConfig, string, error) {
	if c.Processes == 0 {
		c.Processes = DefaultProcesses()
	}
	c.Log = logbuf.Logger(cmp.Or(c.Log, slog.Default()))
	path, err := find(c.Argv[0], c.Dir)
	return c, path, err
}

// find resolves a command. One with a slash is relative to the directory that the
// child works in, as os/exec has it.
func find(name, dir string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) && !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
		if !strings.ContainsRune(name, filepath.Separator) {
			name = "." + string(filepath.Separator) + name // Join has dropped it; this is no name for PATH
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// backoff is the pause before a child is started again: 100 ms, doubled with each
// child in a row that answered nothing and was not told to stop, at most 10 s; of that, a random part between
// a half and the whole, so that the children of many nodes do not restart in step.
func backoff(inARow int, random float64) time.Duration {
	const first, most = 100 * time.Millisecond, 10 * time.Second
	pause := most
	if inARow < 7 {
		pause = min(first<<max(inARow, 0), most)
	}
	return pause/2 + time.Duration(random*float64(pause/2))
}
