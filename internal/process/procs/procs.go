package procs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ErrEnded means that a process has ended and waits for its parent.
var ErrEnded = errors.New("the process has ended")

// StartTime returns when a process started, in clock ticks since the host's boot. That is field 22 of
// /proc/PID/stat. A zombie has ended.
func StartTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if os.IsNotExist(err) {
			if _, err := os.Stat("/proc/self/stat"); err != nil {
				return "", fmt.Errorf("no /proc: %v", err)
			}
		}
		return "", err
	}
	// The name in parentheses may itself contain spaces and parentheses.
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

// GuardName is the first word of a guard's command line. The second word is the ProcessName of the
// process that started the guard.
const GuardName = "lowkiq-guard"

// ProcessName returns the name of a process for its guards. No other process of the host has it.
func ProcessName(pid int, start string) string { return fmt.Sprintf("%d.%s", pid, start) }

// SelfName returns the name of this process, "?" if it is unknown.
func SelfName() string {
	start, err := StartTime(os.Getpid())
	if err != nil {
		return "?"
	}
	return ProcessName(os.Getpid(), start)
}

// IsGuarded reports whether a guard of the process lives. A guard outlives all processes that it guards.
// IsGuarded returns an error if it cannot know, because /proc hides the processes of other users.
func IsGuarded(name string) (bool, error) {
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
