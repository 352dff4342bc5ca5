//go:build linux

package handler

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A child that has closed its stdin can never answer: nobody waits for it.
func TestExecClosedStdin(t *testing.T) {
	t.Parallel()
	e := running(t, ExecConfig{Argv: sh(`exec <&-; : >closed; sleep 60`), Dir: t.TempDir()})
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	// A batch that is longer than a pipe's buffer cannot be written before the pipe is closed.
	b := batch()
	b.Jobs[0].Payloads[0].Data = []byte(strings.Repeat("x", 200_000))
	if err := e.Handle(ctx, b); err == nil || !strings.Contains(err.Error(), "closed its stdin") {
		t.Errorf("got %v, want that it closed its stdin", err)
	}
}
