//go:build linux

package terminal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestConfirm checks the three answers of a person at a terminal: yes, no and an interrupt.
func TestConfirm(t *testing.T) {
	t.Parallel()
	person, at := openTerminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := &Streams{In: at, Out: at, Err: at}
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "why\n": false} {
		if _, err := person.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		if yes, err := Confirm(ctx, s, "Delete all?"); yes != want || err != nil {
			t.Errorf("%q: got %t, %v, want %t", answer, yes, err, want)
		}
	}
	cancel()
	if yes, err := Confirm(ctx, s, "Delete all?"); yes || !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: got %t, %v, want no", yes, err)
	}
}

// openTerminal opens a terminal, and the end of it at which a person sits.
func openTerminal(t *testing.T) (person, terminal *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIPPED: no terminal can be had here: %v", err)
	}
	t.Cleanup(func() { person.Close() }) // ends what reads from the other end
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return person, terminal
}
