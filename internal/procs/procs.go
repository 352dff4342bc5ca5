package procs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ErrEnded is the answer for a process that has ended and waits for its parent.
var ErrEnded = errors.New("the process has ended")

// Start is when a process started, in clock ticks since the host's boot: field 22 of
// /proc/PID/stat. A zombie has ended.
func Start(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if os.IsNotExist(err) {
			if _, err := os.Stat("/proc/self/stat"); err != nil {
				return "", fmt.Errorf("no /proc: %v", err)
			}
		}
		return "", err
	}
	// The name in parentheses may hold spaces and parentheses itself.
	i := strings.LastIndexByte(string(text), ')')
	fields := strings.Fields(string(text[i+1:]))
	if i < 0 || len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat: unexpected %q", pid, text)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return "", ErrEnded
	}
	return fields[19], nil
}

// GuardName is the first word of a guard's command line, and the name of the process that it guards
// for is the second.
const GuardName = "lowkiq-guard"

// Name is what the guards of a process call it; no other one has that name on a host.
func Name(pid int, start string) string { return fmt.Sprintf("%d.%s", pid, start) }

// Self is the name of this process, "?" where it is not known.
func Self() string {
	start, err := Start(os.Getpid())
	if err != nil {
		return "?"
	}
	return Name(os.Getpid(), start)
}

// Guarded reports whether a guard of the process still lives; a guard outlives all that it guards.
// It is an error if that cannot be known, because /proc hides the processes of other users.
func Guarded(name string) (bool, error) {
	if _, err := os.ReadFile("/proc/1/cmdline"); err != nil {
		return false, fmt.Errorf("look for guards: %w", err)
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return false, fmt.Errorf("look for guards: %w", err)
	}
	defer dir.Close() //nolint:errcheck // it was only read
	entries, err := dir.Readdirnames(-1)
	if err != nil {
		return false, fmt.Errorf("look for guards: %w", err)
	}
	wanted := []byte(GuardName + "\x00" + name + "\x00")
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry); err != nil {
			continue
		}
		line, err := os.ReadFile("/proc/" + entry + "/cmdline")
		switch {
		case err == nil && bytes.HasPrefix(line, wanted):
			return true, nil
		case errors.Is(err, os.ErrPermission):
			return false, fmt.Errorf("look for guards: %w", err)
		}
	}
	return false, nil
}
