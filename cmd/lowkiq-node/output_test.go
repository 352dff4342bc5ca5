//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOutputOnAFullDisk: what cannot be written is a failure, and none of Redis or the node.
func TestOutputOnAFullDisk(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"queues", "list"}, {"queues", "list", "-o", "json"}} {
		code, _, said := runAgainst(t, full, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"queues":[{"name":"mails"}]}`) }, args...)
		if code != exitFailed || !strings.Contains(said, "no space left on device") {
			t.Errorf("%q: got exit code %d and %q, want %d and why", args, code, said, exitFailed)
		}
	}
}

// TestSearchInJSON: a search with -o json goes on until it has found enough, as one for people does; what it prints is one page.
func TestSearchInJSON(t *testing.T) {
	t.Parallel()
	for found, want := range map[string]string{
		`{"id":"needle"}`: `{"jobs":[{"id":"needle"}],"more":false,"next":"","examined":15,"ordered":false}`,
		``:                `{"jobs":[],"more":false,"next":"","examined":15,"ordered":false}`,
	} {
		code, out, errs := runAgainst(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("cursor") == "" {
				fmt.Fprint(w, `{"jobs":[],"more":true,"next":"c1","examined":10}`)
				return
			}
			fmt.Fprint(w, `{"jobs":[`+found+`],"more":false,"next":"","examined":5}`)
		}, "jobs", "orders", "--contains", "needle", "-o", "json")
		if code != exitOK || out != want+"\n" {
			t.Errorf("got exit code %d, %q, %q, want %s", code, out, errs, want)
		}
	}
}

// TestWatchInterrupted: who waits for events and is interrupted has not had them.
func TestWatchInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&watchCommand{Count: 1}).interrupted(ctx); codeOf(err) != exitInterrupted {
		t.Errorf("with --count: got %v, exit code %d, want %d", err, codeOf(err), exitInterrupted)
	}
	if err := new(watchCommand).interrupted(ctx); err != nil {
		t.Errorf("without: got %v, want none", err)
	}
}

// TestConfirm: a person says yes or no at a terminal, or interrupts.
func TestConfirm(t *testing.T) {
	t.Parallel()
	person, at := openTerminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := &streams{in: at, out: at, err: at}
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "why\n": false} {
		if _, err := person.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		if yes, err := confirm(ctx, s, "Delete all?"); yes != want || err != nil {
			t.Errorf("%q: got %t, %v, want %t", answer, yes, err, want)
		}
	}
	cancel()
	if yes, err := confirm(ctx, s, "Delete all?"); yes || !errors.Is(err, context.Canceled) {
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
