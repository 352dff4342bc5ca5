package procs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ErrEnded means that a process has ended and waits for its parent.
var ErrEnded = errors.New("the process has ended")

// StartTime returns when a process started, in clock ticks since the host's boot. That is field 22 of
// /proc/PID/stat. A zombie has ended.
func StartTime(pid int) (string, error) {
	fields, err := statFields(pid)
	if err != nil {
		return "", err
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return "", ErrEnded
	}
	return fields[19], nil
}

// ticksPerSecond is the unit of times in /proc. It is the same on all systems that Go supports.
const ticksPerSecond = 100

// Usage returns the CPU time that this process has used so far, and its resident memory in bytes. Child processes do
// not count.
func Usage() (cpu time.Duration, memory int64, err error) {
	fields, err := statFields(os.Getpid())
	if err != nil {
		return 0, 0, err
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	pages, err3 := strconv.ParseInt(fields[21], 10, 64)
	return time.Duration(user+system) * time.Second / ticksPerSecond, pages * int64(os.Getpagesize()), errors.Join(err1, err2, err3)
}

// statFields returns the fields of /proc/PID/stat after the name, from field 3 on.
func statFields(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if os.IsNotExist(err) {
			if _, err := os.Stat("/proc/self/stat"); err != nil {
				return nil, fmt.Errorf("no /proc: %v", err)
			}
		}
		return nil, err
	}
	// The name in parentheses may itself contain spaces and parentheses.
	i := strings.LastIndexByte(string(text), ')')
	fields := strings.Fields(string(text[i+1:]))
	if i < 0 || len(fields) < 22 {
		return nil, fmt.Errorf("/proc/%d/stat: unexpected %q", pid, text)
	}
	return fields, nil
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
