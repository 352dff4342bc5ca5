//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
)

// TestOutputOnAFullDisk checks that a full disk is a failure of the output, not of Redis or the node.
func TestOutputOnAFullDisk(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"queues", "list"}, {"queues", "list", "-o", "json"}} {
		code, _, said := runAgainst(t, full, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"queues":[{"name":"mails"}]}`) }, args...)
		if code != exit.Failed || !strings.Contains(said, "no space left on device") {
			t.Errorf("%q: got exit code %d and %q, want %d and why", args, code, said, exit.Failed)
		}
	}
}

// TestSearchInJSON checks that search -o json goes on until it has found enough, like the search for people, and that
// it prints one page.
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
		if code != exit.OK || out != want+"\n" {
			t.Errorf("got exit code %d, %q, %q, want %s", code, out, errs, want)
		}
	}
}

// TestWatchInterrupted checks that an interrupted watch with --count fails, because it has not seen its events.
func TestWatchInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&watchCommand{Count: 1}).interruptError(ctx); exitCode(err) != exit.Interrupted {
		t.Errorf("with --count: got %v, exit code %d, want %d", err, exitCode(err), exit.Interrupted)
	}
	if err := new(watchCommand).interruptError(ctx); err != nil {
		t.Errorf("without: got %v, want none", err)
	}
}
